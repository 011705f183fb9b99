"""The most likely tokens of each row, raw and processed, for the groups that ask for log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from forkdecode.sampling.group_logits import Chunk
from forkdecode.step import SelectionRequest, TopLogprobs
from forkdecode_kernels.topk import row_topk


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
