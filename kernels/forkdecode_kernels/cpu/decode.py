"""Decode rows: each group's trunk once for all its rows, tails beside it, one softmax over both.

Groups of equal padded shape run as one batch of matrix products. What a group is padded to, and
how its trunk is cut, follows from its own tables alone, so its result does too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from forkdecode_kernels.attention_work import I32, AttentionWork
from forkdecode_kernels.cpu.gather import KvRead, read_run, read_tables
from forkdecode_kernels.cpu.tables import Tables

LONG_TRUNK = 256
"""Tokens from which a trunk is read piece by piece, in place where it can be, and not padded."""
PIECE = 512
"""Tokens of a long trunk in one product: a sum this short is not split over threads by MKL."""
BATCH_TOKENS = 4096
"""Copied tokens in one batch: bounds memory, and keeps the copy in cache until it is used."""


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """N groups of R rows: query rows in the order (kv head, group, row, head of the kv head)."""

    groups: int
    rows: int
    trunk: tuple[KvRead, ...]
    tail: KvRead | None
    mask: torch.Tensor | None
    """[N, 1, L + Lt], 0 or -inf."""
    query_index: torch.Tensor
    """Rows of the query seen as [H * T, D]."""
    output_index: torch.Tensor
    """Rows of the output seen as [T * H, D]."""


def padded_length(tokens: int, block_size: int) -> int:
    """Rounds up to whole quanta: coarse, so that groups of like length share a batch."""
    quantum = max(block_size, 32 if tokens <= 128 else 64 if tokens <= 512 else 256)
    return -(-tokens // quantum) * quantum


def plan_decode(
    groups: Sequence[Tables], work: AttentionWork, num_heads: int, kv: torch.Tensor
) -> tuple[DecodeBatch, ...]:
    """Sorts groups into batches of equal padded shape."""
    size = work.block_size
    buckets: dict[tuple[int, int, int], list[Tables]] = defaultdict(list)
    batches: list[DecodeBatch] = []
    for group in groups:
        rows, trunk = len(group.tails), len(group.trunk) * size
        if rows == 1 and trunk < LONG_TRUNK:
            # Nothing is shared, so one table is cheaper than a trunk and a tail.
            table = np.concatenate([group.trunk, group.tails[0]])[None]
            group = Tables(group.token_start, group.trunk[:0], table, group.context, group.hidden)
            trunk = 0
        tail = padded_length(group.context - trunk, size) if group.context > trunk else 0
        if trunk >= LONG_TRUNK:
            batches.append(_batch([group], trunk, tail, work, num_heads, kv))
        else:
            buckets[rows, padded_length(trunk, size) if trunk else 0, tail].append(group)
    for (rows, trunk, tail), members in buckets.items():
        step = max(1, BATCH_TOKENS // (trunk + rows * tail))
        for start in range(0, len(members), step):
            batches.append(_batch(members[start : start + step], trunk, tail, work, num_heads, kv))
    return tuple(batches)


def _batch(
    groups: list[Tables], trunk: int, tail: int, work: AttentionWork, heads: int, kv: torch.Tensor
) -> DecodeBatch:
    size, null = work.block_size, work.null_block
    kv_heads, rows = kv.shape[1], len(groups[0].tails)
    starts = np.array([g.token_start for g in groups], dtype=np.int64)
    tokens = (starts[:, None] + np.arange(rows))[None, :, :, None]
    head = np.arange(heads, dtype=np.int64).reshape(kv_heads, 1, 1, -1)
    # By its own length: one that is only padded to LONG_TRUNK lies in a batch with others.
    if len(groups[0].trunk) * size >= LONG_TRUNK:
        pieces = tuple(_pieces(groups[0].trunk, null, kv))
    else:
        pieces = (read_tables([g.trunk for g in groups], trunk, null, kv),) if trunk else ()
    used = [-(-(g.context - len(g.trunk) * size) // size) for g in groups]
    tables = [row[:n] for g, n in zip(groups, used, strict=True) for row in g.tails]
    return DecodeBatch(
        groups=len(groups),
        rows=rows,
        trunk=pieces,
        tail=read_tables(tables, tail, null, kv) if tail else None,
        mask=_mask(groups, trunk, tail, size, kv.dtype),
        query_index=torch.from_numpy((head * work.num_tokens + tokens).reshape(-1)),
        output_index=torch.from_numpy((tokens * heads + head).reshape(-1)),
    )


def _pieces(trunk: I32, null_block: int, kv: torch.Tensor) -> Iterable[KvRead]:
    size = kv.shape[3]
    for start in range(0, len(trunk), PIECE // size):
        blocks = trunk[start : start + PIECE // size]
        yield read_run(blocks, len(blocks) * size, null_block, kv)


def _mask(groups: list[Tables], trunk: int, tail: int, size: int, dtype: torch.dtype) -> torch.Tensor | None:
    hidden = np.zeros((len(groups), 1, trunk + tail), dtype=bool)
    for row, g in zip(hidden[:, 0], groups, strict=True):
        own = len(g.trunk) * size
        row[own:trunk] = True
        row[trunk + g.context - own :] = True
        if g.hidden:
            row[: min(g.hidden, own)] = True
            row[trunk : trunk + max(0, g.hidden - own)] = True
    if not hidden.any():
        return None
    return torch.from_numpy(np.where(hidden, np.float32(-np.inf), np.float32(0))).to(dtype)


def run_batch(
    batch: DecodeBatch,
    query: torch.Tensor,
    kv: torch.Tensor,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """query [H * T, D] -> the batch's rows [K * N * R * G, D] in the order of its query_index."""
    kv_heads, dim = kv.shape[1], kv.shape[4]
    shared, alone = kv_heads * batch.groups, kv_heads * batch.groups * batch.rows
    rows = query.index_select(0, batch.query_index)
    reads = [(read.read(kv), shared) for read in batch.trunk]
    if batch.tail is not None:
        reads.append((batch.tail.read(kv), alone))
    scores = [torch.bmm(rows.view(n, -1, dim), k.transpose(1, 2)).view(len(rows), -1) for (k, _), n in reads]
    joint = scores[0] if len(scores) == 1 else torch.cat(scores, 1)
    cap_scores(joint, scale, softcap)
    if batch.mask is not None:
        joint.view(kv_heads, batch.groups, -1, joint.shape[1]).add_(batch.mask)
    weights = softmax(joint, _sink_column(sinks, kv_heads, batch) if sinks is not None else None)
    out: torch.Tensor | None = None
    column = 0
    for (_, values), n in reads:
        part = weights[:, column : column + values.shape[1]]
        column += values.shape[1]
        out = _accumulate(out, part.view(n, -1, values.shape[1]), values, len(rows))
    assert out is not None
    return out.to(query.dtype)


def cap_scores(scores: torch.Tensor, scale: float, softcap: float | None) -> None:
    """In place: scores * scale, or softcap * tanh(scores * scale / softcap)."""
    if softcap is None:
        scores.mul_(scale)
    else:
        scores.mul_(scale / softcap).tanh_().mul_(softcap)


def softmax(scores: torch.Tensor, sink: torch.Tensor | None) -> torch.Tensor:
    """Over the last axis; `sink`, broadcast to one column, joins the denominator only."""
    if sink is None:
        return torch.softmax(scores, -1)
    return torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1]


def _sink_column(sinks: torch.Tensor, kv_heads: int, batch: DecodeBatch) -> torch.Tensor:
    per_head = sinks.view(kv_heads, 1, -1).expand(-1, batch.groups * batch.rows, -1)
    return per_head.reshape(-1, 1)


def _accumulate(
    out: torch.Tensor | None, weights: torch.Tensor, values: torch.Tensor, rows: int
) -> torch.Tensor:
    dim = values.shape[2]
    if values.dtype != torch.float32:
        # Partial sums in half precision would add a rounding error for each part.
        part = torch.bmm(weights, values).view(rows, dim).float()
        return part if out is None else out.add_(part)
    if out is None:
        return torch.bmm(weights, values).view(rows, dim)
    out.view(len(weights), -1, dim).baddbmm_(weights, values)
    return out
