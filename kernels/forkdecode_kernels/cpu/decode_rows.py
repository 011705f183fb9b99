"""Decode rows in float32 without copying a block: one compiled call for all groups of a step.

For few query rows a block, copying blocks together and starting small matrix products costs more
than the arithmetic. Groups with many rows over a long trunk go to `decode` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.attention_work import I32
from forkdecode_kernels.cpu.selection.jit import entry, inlined, kernel, reduction
from forkdecode_kernels.cpu.selection.parallel import for_each_block
from forkdecode_kernels.cpu.selection.rows import exponential
from forkdecode_kernels.cpu.tables import Tables

F32 = NDArray[np.float32]
THREAD_WORK = 1_000_000
"""Multiplications worth a thread of their own: waking one takes tens of microseconds."""


@dataclass(frozen=True, slots=True)
class RowsPlan:
    """Groups for the compiled kernel, as arrays.

    groups [N, 8]: token_start, rows, trunk blocks, where the trunk and the tails begin in `blocks`,
    columns of the tails, hidden tokens, context_len. scores: rows * G and tokens of the largest.
    """

    groups: NDArray[np.int64]
    blocks: I32
    score_rows: int
    score_columns: int
    products: int
    """Query rows times tokens, over all groups."""


def plan_rows(groups: Sequence[Tables], group_size: int) -> RowsPlan | None:
    """group_size G: query heads of a kv head."""
    if not groups:
        return None
    table = np.empty((len(groups), 8), dtype=np.int64)
    blocks: list[I32] = []
    end = products = 0
    for row, g in zip(table, groups, strict=True):
        rows, columns = g.tails.shape
        row[:] = (
            g.token_start, rows, len(g.trunk), end, end + len(g.trunk), columns, g.hidden, g.context,
        )  # fmt: skip
        blocks += (g.trunk, g.tails.reshape(-1))
        end += len(g.trunk) + g.tails.size
        products += rows * g.context
    most_rows, longest = int(table[:, 1].max()), int(table[:, 7].max())
    return RowsPlan(
        table, np.concatenate(blocks).astype(np.int32), most_rows * group_size, longest, products * group_size
    )


def run_rows(
    plan: RowsPlan,
    query: torch.Tensor,
    kv: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> None:
    """query [H, T, D], kv [2, K, B, S, D] -> rows of out [T, H, D], all float32 on the CPU."""
    kv_heads, dim = kv.shape[1], kv.shape[4]
    arrays = (query.numpy(), kv.numpy(), out.numpy())
    sink = np.empty(0, np.float32) if sinks is None else sinks.float().numpy()
    cap = np.float32(0.0 if softcap is None else softcap)

    def make_work() -> Callable[[int, int], None]:
        scores = np.empty((plan.score_rows, plan.score_columns), np.float32)
        rows = np.empty((2, plan.score_rows, dim), np.float32)

        def work(first: int, last: int) -> None:
            _attend(
                *arrays, plan.groups, plan.blocks, np.float32(scale), cap, sink, scores, rows, first, last
            )

        return work

    threads = min(torch.get_num_threads(), max(1, plan.products * kv_heads * dim * 2 // THREAD_WORK))
    items = len(plan.groups) * kv_heads
    for_each_block(items, 1 if threads > 1 else items, threads, make_work)


@inlined
def _dots(query: F32, first: int, rows: int, key: F32, scores: F32, column: int) -> None:
    """scores[m, column] = query[m] . key for `rows` rows, four at a time: they share the key's loads."""
    dim = key.shape[0]
    m = first
    while m + 4 <= first + rows:
        s0 = s1 = s2 = s3 = np.float32(0.0)
        for d in range(dim):
            k = key[d]
            s0 += query[m, d] * k
            s1 += query[m + 1, d] * k
            s2 += query[m + 2, d] * k
            s3 += query[m + 3, d] * k
        scores[m, column], scores[m + 1, column] = s0, s1
        scores[m + 2, column], scores[m + 3, column] = s2, s3
        m += 4
    while m < first + rows:
        s0 = np.float32(0.0)
        for d in range(dim):
            s0 += query[m, d] * key[d]
        scores[m, column] = s0
        m += 1


@reduction
def _score(
    keys: F32, table: I32, start: int, stop: int, column: int, query: F32, first: int, rows: int, scores: F32
) -> None:
    """Tokens start .. stop of one table against `rows` query rows; keys [B, S, D]."""
    size = keys.shape[1]
    for t in range(start, stop):
        _dots(query, first, rows, keys[table[t // size], t % size], scores, column + t - start)


@reduction
def _mix(
    values: F32, table: I32, start: int, stop: int, column: int, weights: F32, first: int, rows: int, out: F32
) -> None:
    """out[m] += sum over tokens of weights[m, token] * value, four tokens of a block at a time."""
    size, dim = values.shape[1], values.shape[2]
    t = start
    while t < stop:
        block, offset = values[table[t // size]], t % size
        last = min(size, offset + stop - t)
        o = offset
        while o + 4 <= last:
            c = column + t - start + o - offset
            for m in range(first, first + rows):
                w0, w1, w2, w3 = weights[m, c], weights[m, c + 1], weights[m, c + 2], weights[m, c + 3]
                for d in range(dim):
                    out[m, d] += (
                        w0 * block[o, d] + w1 * block[o + 1, d] + w2 * block[o + 2, d] + w3 * block[o + 3, d]
                    )
            o += 4
        while o < last:
            c = column + t - start + o - offset
            for m in range(first, first + rows):
                w0 = weights[m, c]
                for d in range(dim):
                    out[m, d] += w0 * block[o, d]
            o += 1
        t += last - offset


@reduction
def _softmax(scores: F32, sink: np.float32) -> None:
    """In place; `sink` is one more logit without a value, or -inf."""
    top = sink
    for i in range(scores.shape[0]):
        top = max(top, scores[i])
    total = np.float32(0.0)
    for i in range(scores.shape[0]):
        e = exponential(scores[i] - top)
        scores[i] = e
        total += e
    if sink > -np.inf:
        total += exponential(sink - top)
    norm = np.float32(1.0) / total
    for i in range(scores.shape[0]):
        scores[i] *= norm


@kernel
def _weigh(
    scores: F32, first_head: int, per_head: int, scale: np.float32, softcap: np.float32, sinks: F32
) -> None:
    """Products [m, width] of rows (row, head) -> softmax weights, in place."""
    for m in range(scores.shape[0]):
        line = scores[m]
        for i in range(line.shape[0]):
            line[i] *= scale
            if softcap > np.float32(0.0):
                line[i] = softcap * np.tanh(line[i] / softcap)
        sink = np.float32(-np.inf)
        if sinks.shape[0] > 0:
            sink = sinks[first_head + m % per_head]
        _softmax(line, sink)


@entry
def _attend(
    query: F32,
    kv: F32,
    result: F32,
    groups: NDArray[np.int64],
    blocks: I32,
    scale: np.float32,
    softcap: np.float32,
    sinks: F32,
    scores: F32,
    buffers: F32,
    first: int,
    last: int,
) -> None:
    """Items first .. last, each one kv head of one group."""
    kv_heads, size, dim = kv.shape[1], kv.shape[3], kv.shape[4]
    per_head = query.shape[0] // kv_heads
    for item in range(first, last):
        token, rows, trunk_blocks, trunk_at, tails_at, columns, hidden, context = groups[item // kv_heads]
        head = item % kv_heads
        keys, values = kv[0, head], kv[1, head]
        own, out = buffers[0], buffers[1]
        count = rows * per_head
        for m in range(count):
            for d in range(dim):
                own[m, d] = query[head * per_head + m % per_head, token + m // per_head, d]
                out[m, d] = np.float32(0.0)
        # Tokens of the trunk and of the tails that the window shows; they stand side by side in scores.
        shared = trunk_blocks * size
        trunk_from, tail_from = min(hidden, shared), max(hidden - shared, 0)
        width, tail_column, tail_to = context - hidden, shared - trunk_from, context - shared
        trunk = blocks[trunk_at : trunk_at + trunk_blocks]
        _score(keys, trunk, trunk_from, shared, 0, own, 0, count, scores)
        for r in range(rows):
            tail = blocks[tails_at + r * columns : tails_at + (r + 1) * columns]
            _score(keys, tail, tail_from, tail_to, tail_column, own, r * per_head, per_head, scores)
        _weigh(scores[:count, :width], head * per_head, per_head, scale, softcap, sinks)
        _mix(values, trunk, trunk_from, shared, 0, scores, 0, count, out)
        for r in range(rows):
            tail = blocks[tails_at + r * columns : tails_at + (r + 1) * columns]
            _mix(values, tail, tail_from, tail_to, tail_column, scores, r * per_head, per_head, out)
        for m in range(count):
            for d in range(dim):
                result[token + m // per_head, head * per_head + m % per_head, d] = out[m, d]
