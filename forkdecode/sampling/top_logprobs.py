"""The most likely tokens of each row, raw and processed, for the groups that ask for log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch

from forkdecode.sampling.group_logits import Chunk, group_rows
from forkdecode.step import SelectionRequest, SelectionResult, TopLogprobs
from forkdecode_kernels.topk import row_topk

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class TopCollector:
    """Gathers the parts of each group, chunk by chunk."""

    threads: int
    parts: dict[int, list[TopLogprobs]] = field(default_factory=dict)

    def add(self, logits: torch.Tensor, chunk: Chunk, processed: torch.Tensor) -> None:
        """processed [m, V]: log-probabilities of the chunk's rows after processors and filters."""
        for piece, start in zip(chunk.pieces, chunk.starts, strict=False):
            k = piece.request.num_logprobs
            if k is None:
                continue
            own = slice(start, start + len(piece))
            raw = row_topk(logits[chunk.rows[own][0] : chunk.rows[own][-1] + 1], k, threads=self.threads)
            done = row_topk(processed[own], k, normalized=True, threads=self.threads) if k else raw
            self.parts.setdefault(piece.index, []).append(TopLogprobs(*raw, *done))

    def of(self, index: int) -> TopLogprobs | None:
        """Group `index` of the batch, all its rows."""
        parts = self.parts.get(index)
        return _joined(parts) if parts else None


def top_unchanged(logits: torch.Tensor, request: SelectionRequest, threads: int) -> TopLogprobs | None:
    """What TopCollector tells of a group whose log-probabilities nothing changes."""
    if request.num_logprobs is None:
        return None
    raw = row_topk(group_rows(logits, request), request.num_logprobs, threads=threads)
    return TopLogprobs(*raw, *raw)


def in_turn(
    changed: Sequence[bool],
    requests: Sequence[R],
    plain: Callable[[Sequence[R]], list[SelectionResult]],
    other: Callable[[Sequence[R]], list[SelectionResult]],
) -> list[SelectionResult]:
    """The results of all requests, in order: those that are `changed` by `other`, the rest by `plain`."""
    found: dict[int, SelectionResult] = {}
    for way, wanted in ((plain, False), (other, True)):
        places = [i for i, is_changed in enumerate(changed) if is_changed == wanted]
        if places:
            found.update(zip(places, way([requests[i] for i in places]), strict=True))
    return [found[i] for i in range(len(requests))]


def wants_top(requests: Sequence[SelectionRequest]) -> bool:
    """Whether any group needs the distribution itself."""
    return any(r.num_logprobs for r in requests)


def _joined(parts: Sequence[TopLogprobs]) -> TopLogprobs:
    if len(parts) == 1:
        return parts[0]
    return TopLogprobs(
        np.concatenate([p.raw_ids for p in parts]),
        np.concatenate([p.raw for p in parts]),
        np.concatenate([p.processed_ids for p in parts]),
        np.concatenate([p.processed for p in parts]),
    )
