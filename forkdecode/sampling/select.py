"""From next-token logits to candidates: the one entry that the model runner calls.

Groups fail alone: whatever goes wrong with one becomes the error of its result. What a group gets
depends on its own rows and request only, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch

from forkdecode.allowed import Allowed, AllowedBits, AllowedLists, Ready
from forkdecode.sampling.allowed import reads_lists, reads_short_lists, settled, with_short_lists
from forkdecode.sampling.device.select import Selecting, begin_on_device
from forkdecode.sampling.group_logits import failed, is_active
from forkdecode.sampling.kinds import KINDS, Kind
from forkdecode.step import (
    Choice,
    Draw,
    GumbelTopK,
    ProcessorSpec,
    RowTopK,
    SelectionRequest,
    SelectionResult,
    TopK,
)
from forkdecode_kernels import topk

_CPU = torch.device("cpu")
_Work: TypeAlias = tuple[int, SelectionRequest]


def select(
    logits: torch.Tensor, requests: Sequence[SelectionRequest], *, threads: int | None = None
) -> tuple[SelectionResult, ...]:
    """One result for each request, in order.

    logits [M, V]: any float type, any device; never written to. threads: how many to use on the
    CPU, torch's own number by default; no result depends on it.
    """
    return begin(logits, requests, threads=threads).results()


def begin(
    logits: torch.Tensor, requests: Sequence[SelectionRequest], *, threads: int | None = None
) -> Selecting:
    """Starts `select` on a GPU. On a CPU it has run by then."""
    if logits.device.type == "cuda":
        return begin_on_device(logits, requests)
    workers = torch.get_num_threads() if threads is None else threads
    done: dict[int, SelectionResult] = {}
    free = [(i, request) for i, request in enumerate(requests) if request.allowed is None]
    _select(logits, free, workers, done)
    if len(free) < len(requests):  # last of all: what is allowed may still be in the making
        bound = [(i, request) for i, request in enumerate(requests) if request.allowed is not None]
        _select(logits, _settled(logits, bound, done), workers, done)
    results = tuple(done[i] for i in range(len(requests)))
    return Selecting(lambda: results)


def _settled(
    logits: torch.Tensor, requests: Sequence[tuple[int, SelectionRequest]], done: dict[int, SelectionResult]
) -> Iterator[tuple[int, SelectionRequest]]:
    """Those of which it is known what is allowed; the others' constraints failed, and they with them."""
    for i, request in requests:
        try:
            found = settled(request)
        except Exception as error:
            done[i] = failed(request, error)
            continue
        listed = logits.device.type == "cpu" and found.num_logprobs is None
        yield i, with_short_lists(found, logits.shape[1]) if listed else found


def _select(
    logits: torch.Tensor,
    requests: Iterable[tuple[int, SelectionRequest]],
    workers: int,
    done: dict[int, SelectionResult],
) -> None:
    work: dict[type[Choice], list[_Work]] = {kind: [] for kind in KINDS}
    for i, request in requests:
        if (kind := type(request.choice)) in work:
            work[kind].append((i, request))
        else:
            done[i] = SelectionResult.failed(request.group_id, f"{kind.__name__} is not known here")
    for kind, own in work.items():
        _serve(logits, own, KINDS[kind], workers, done)


def warm_up(
    threads: int = 1,
    device: torch.device = _CPU,
    vocab: int = 256,
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.bfloat16),
) -> None:
    """Have ready what `select` runs on a device, so that no request waits for it. vocab, dtypes: of the
    logits, which kernels of GPUs are compiled for.

    The first time on a machine this compiles, for some ten seconds; then it loads from a cache. Raises
    RuntimeError where a selection fails.
    """
    if device.type == "cuda":
        topk.warm_up(device, vocab)
    nothing = np.empty(0, np.int64)
    draw = Draw(np.zeros(2, np.int32), np.arange(2, dtype=np.uint64), 0, temperature=0.5, top_p=0.5)
    beams = TopK(2, np.zeros(2, np.float32), 1)
    by_row = RowTopK(2, beams.base)
    zeros = np.zeros(2, np.float64)
    perturbed = GumbelTopK(2, zeros, zeros, draw.lineage, 0, top_p=0.5)
    for dtype in dtypes:
        asked = [
            SelectionRequest(0, 0, 2, choice, ProcessorSpec(), nothing, None, 0, num_logprobs)
            for choice in (draw, beams, by_row, perturbed)
            for num_logprobs in (None, 1)
        ]
        ways = [replace(asked[2], allowed=Ready(allowed)) for allowed in _every_form(2, vocab)]
        ways += [replace(one, num_logprobs=1) for one in ways]
        ways += [replace(asked[i], allowed=ways[1].allowed) for i in (0, 4, 6)]
        logits = torch.zeros(2, vocab, dtype=dtype, device=device)
        for result in select(logits, [*asked, *ways], threads=threads):
            if result.error is not None:
                raise RuntimeError(f"a selection failed: {result.error}")


def _every_form(rows: int, vocab: int) -> list[Allowed]:
    """Each way to tell what rows may continue with."""
    start, ends = np.zeros(rows, np.int64), np.zeros(4, np.bool_)
    beside, ids = np.ones(rows, np.bool_), np.zeros(1, np.int64)
    listed = [AllowedLists(np.arange(4, dtype=np.int32), start, start + 4, e) for e in (None, ends)]
    also = AllowedLists(listed[0].tokens, start, start + 4, None, beside, ids)
    words = np.full((rows, -(-vocab // 32)), 5, np.uint32)
    words[:, -1] = 1  # which may stand for one token alone
    return [*listed, also, AllowedBits(words)]


def _serve(
    logits: torch.Tensor,
    work: Sequence[_Work],
    kind: Kind[Any],
    threads: int,
    done: dict[int, SelectionResult],
) -> None:
    """Groups of one kind."""
    sorted_out: list[list[_Work]] = [[] for _ in kind.ways]
    for i, request in work:
        try:
            kind.check(logits, request, request.choice)
        except ValueError as error:
            done[i] = failed(request, error)
            continue
        sorted_out[_way(logits, request, len(kind.ways))].append((i, request))
    for groups, way in zip(sorted_out, kind.ways, strict=True):
        _serve_together(logits, groups, way, threads, done)


def _way(logits: torch.Tensor, request: SelectionRequest, ways: int) -> int:
    if request.num_logprobs is not None:
        return 1
    if ways > 2 and _reads_lists(logits, request):
        return 2
    return int(is_active(request))


def _reads_lists(logits: torch.Tensor, request: SelectionRequest) -> bool:
    """A beam reads lists of any length: in its dense way all rows' candidates are sorted."""
    if isinstance(request.choice, TopK):
        return reads_lists(request)
    return logits.device.type == "cpu" and reads_short_lists(request, logits.shape[1])


def _serve_together(
    logits: torch.Tensor,
    groups: Sequence[_Work],
    way: Callable[..., list[SelectionResult]],
    threads: int,
    done: dict[int, SelectionResult],
) -> None:
    if not groups:
        return
    try:
        results = way(logits, [(request, request.choice) for _, request in groups], threads=threads)
        done.update(zip((i for i, _ in groups), results, strict=True))
    except Exception as error:
        if len(groups) == 1:
            done[groups[0][0]] = failed(groups[0][1], error)
            return
        # One of them is at fault: alone, each of the others gets what it would have got together.
        for one in groups:
            _serve_together(logits, [one], way, threads, done)
