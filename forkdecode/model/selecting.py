"""A step's logits and selections, in runs that the head's byte bound allows."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import torch
from transformers.utils.generic import ModelOutput

from forkdecode.model.head import LogitsHead
from forkdecode.model.timed import timed
from forkdecode.sampling.device.select import Selecting
from forkdecode.sampling.gather import cut, joined
from forkdecode.sampling.select import begin
from forkdecode.step import SelectionRequest, SelectionResult


def selected(
    head: LogitsHead,
    selections: tuple[SelectionRequest, ...],
    output: ModelOutput,
    index: torch.Tensor,
    timings: dict[str, float],
) -> tuple[Callable[[], tuple[SelectionResult, ...]], torch.Tensor | None]:
    """Starts logits and selections, groups in runs whose logits stay within the head's byte bound; what
    waits for the last of them, and what a step could go ahead with (see Selecting). index: the plan's
    logits_index on the device."""
    limit = head.max_rows
    cuts = [(s,) if s.rows <= limit else tuple(cut(s, limit)) for s in selections]
    pieces = tuple(piece for pieces in cuts for piece in pieces)
    found: list[SelectionResult] = []
    last = Selecting(tuple)
    for first, end in head.runs([s.rows for s in pieces]):
        found.extend(last.results())  # before there are more logits
        requests = pieces[first:end]
        start, stop = requests[0].logits_start, requests[-1].logits_start + requests[-1].rows
        with timed(timings, "logits"):
            logits = head(output, index[start:stop])
        with timed(timings, "select"):
            last = begin(logits, _shifted(requests, start))

    def results() -> tuple[SelectionResult, ...]:
        every = iter([*found, *last.results()])
        if len(pieces) == len(cuts):
            return tuple(every)
        return tuple(joined(pieces, list(itertools.islice(every, len(pieces)))) for pieces in cuts)

    # The logits of two steps at once must not take more than is counted for one.
    goes_ahead = not found and 2 * len(index) <= limit
    return results, last.drawn if goes_ahead else None


def _shifted(requests: tuple[SelectionRequest, ...], start: int) -> tuple[SelectionRequest, ...]:
    """The requests with logits_start counted from row `start`."""
    if start == 0:
        return requests
    return tuple(dataclasses.replace(r, logits_start=r.logits_start - start) for r in requests)
