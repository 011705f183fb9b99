"""Attention by torch's own products over keys and values that are gathered from their blocks: what a device
without kernels for it computes by. Some launches a group and layer, where the reference has some a query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.attention_work import I32, AttentionWork

WORK_BYTES = 256 * 1024 * 1024
"""Of scores and of gathered keys and values together, about."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Queries `start ..` of the step at `positions` [n], which all read `trunk`, and each its row of `tails`
    [n, C] after that."""

    start: int
    positions: NDArray[np.int64]
    trunk: I32
    tails: I32

    def part(self, first: int, last: int) -> _Rows:
        """Of its queries those from first to last."""
        return _Rows(self.start + first, self.positions[first:last], self.trunk, self.tails[first:last])


@dataclass(frozen=True, slots=True)
class _Scores:
    """What scores go through: see forkdecode_kernels.attention. sinks: [K, G, 1, 1]."""

    scale: float
    window: int | None
    softcap: float | None
    sinks: torch.Tensor | None


def gathered_attention(
    query: torch.Tensor,
    kv: torch.Tensor,
    work: AttentionWork,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """query [H, T, D], kv [2, K, B, S, D] -> [T, H, D] in the query's dtype; zeros for tokens that the work
    omits. Scores are summed in the query's dtype's own products, and weighed in float32."""
    heads, tokens, dim = query.shape
    kv_heads = kv.shape[1]
    out = torch.zeros(tokens, heads, dim, dtype=query.dtype, device=query.device)
    own = None if sinks is None else sinks.float().view(kv_heads, -1, 1, 1)
    scores = _Scores(scale, window, softcap, own)
    for rows in _pieces(work, heads, kv):
        stop = rows.start + len(rows.positions)
        some = query[:, rows.start : stop].reshape(kv_heads, -1, stop - rows.start, dim)
        out[rows.start : stop] = _attend(some, kv, rows, scores).flatten(0, 1).transpose(0, 1)
    return out


def _pieces(work: AttentionWork, heads: int, kv: torch.Tensor) -> Iterator[_Rows]:
    """All queries, so many at a time as there is memory for."""
    size, row_bytes = work.block_size, 2 * kv.shape[1] * kv.shape[4] * kv.element_size()
    for rows in _all_rows(work):
        columns = rows.tails.shape[1]
        each = size * (12 * heads * (len(rows.trunk) + columns) + row_bytes * columns)
        step = max(1, WORK_BYTES // max(1, each))
        for first in range(0, len(rows.positions), step):
            yield rows.part(first, first + step)


def _all_rows(work: AttentionWork) -> Iterator[_Rows]:
    for s in work.segments:
        none = np.empty((s.token_count, 0), np.int32)
        yield _Rows(s.token_start, s.position + np.arange(s.token_count), s.blocks, none)
    for d in work.decodes:
        yield _Rows(d.token_start, np.full(len(d.tails), d.context_len - 1), d.trunk, d.tails)


def _attend(query: torch.Tensor, kv: torch.Tensor, rows: _Rows, how: _Scores) -> torch.Tensor:
    """query [K, G, n, D] -> [K, G, n, D]. Nothing is read behind the last of the positions."""
    kv_heads, group, n, dim = query.shape
    length, size = int(rows.positions[-1]) + 1, kv.shape[3]
    shared = min(length, len(rows.trunk) * size)
    # [K, L, D] of the trunk, which all read; [K, n, L', D] of the tails.
    keys, values = kv[:, :, _index(rows.trunk, kv)].flatten(2, 3)[:, :, :shared]
    tail_keys, tail_values = kv[:, :, _index(rows.tails, kv)].flatten(3, 4)[:, :, :, : length - shared]
    flat = query.reshape(kv_heads, group * n, dim)
    scores = torch.cat(
        [
            (flat @ keys.transpose(1, 2)).view(kv_heads, group, n, shared),
            torch.einsum("kgnd,knld->kgnl", query, tail_keys),
        ],
        -1,
    )
    weights = _weights(scores.float(), rows.positions, how).to(values.dtype)
    shares = weights[..., :shared].reshape(kv_heads, group * n, shared)
    out: torch.Tensor = (shares @ values).view(query.shape)
    return out.add_(torch.einsum("kgnl,knld->kgnd", weights[..., shared:], tail_values))


def _weights(scores: torch.Tensor, positions: NDArray[np.int64], how: _Scores) -> torch.Tensor:
    """Raw products [K, G, n, L] float32 -> weights of the values."""
    scores = scores * how.scale
    if how.softcap is not None:
        scores = torch.tanh(scores / how.softcap) * how.softcap
    at = torch.arange(scores.shape[-1], device=scores.device)
    last = torch.from_numpy(positions).to(scores.device)[:, None]
    seen = at <= last
    if how.window is not None:
        seen &= at > last - how.window
    scores = scores.masked_fill(~seen, -torch.inf)
    if how.sinks is None:
        return torch.softmax(scores, -1)
    sink = how.sinks.expand(*scores.shape[:3], 1)
    return torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1]


def _index(blocks: I32, kv: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(blocks.astype(np.int64)).to(kv.device)
