"""Decode rows in float32 without copying a block: one compiled call for all groups of a step.

A block is read where it lies, once for up to ROWS rows of its group. Scores are kept by token,
[tokens, query rows], so that sums and exponentials run over vectors of query rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.attention_work import I32
from forkdecode_kernels.cpu.selection.jit import entry, kernel
from forkdecode_kernels.cpu.selection.parallel import for_each_block
from forkdecode_kernels.cpu.selection.rows import exponential
from forkdecode_kernels.cpu.tables import Tables
from forkdecode_kernels.cpu.tile import LANES, product

F32 = NDArray[np.float32]
QUERY_ROWS = 48
"""Query rows of a kv head that read a block together."""
THREAD_WORK = 3_000_000
"""Multiplications worth a thread of their own: waking one takes tens of microseconds."""


class Scratch(NamedTuple):
    """One thread's memory. M query rows, a multiple of LANES and one more tile of them.

    query [D, M]; scores [tokens, M]; out [M, D]; tail [S, G]: one row's scores of one block;
    sums [2, M]: largest score and sum of exponentials.
    """

    query: F32
    scores: F32
    out: F32
    tail: F32
    sums: F32


@dataclass(frozen=True, slots=True)
class RowsPlan:
    """Groups for the compiled kernel, as arrays; those of many rows in parts.

    groups [N, 8]: token_start, rows, trunk blocks, where the trunk and the tails begin in `blocks`,
    columns of the tails, hidden tokens, context_len. score_rows, score_columns: tokens and query
    rows (R * G) of the largest.
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
    most = max(1, QUERY_ROWS // group_size)
    table: list[tuple[int, ...]] = []
    blocks: list[I32] = []
    end = products = 0
    for g in groups:
        rows, columns = g.tails.shape
        for first in range(0, rows, most):
            part = min(most, rows - first)
            tails = end + len(g.trunk) + first * columns
            table.append((
                g.token_start + first, part, len(g.trunk), end, tails, columns, g.hidden, g.context,
            ))  # fmt: skip
        blocks += (g.trunk, g.tails.reshape(-1))
        end += len(g.trunk) + g.tails.size
        products += rows * g.context
    array = np.array(table, dtype=np.int64)
    widest, longest = int(array[:, 1].max()) * group_size, int(array[:, 7].max())
    return RowsPlan(array, np.concatenate(blocks).astype(np.int32), longest, widest, products * group_size)


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
    group_size = len(query) // kv_heads
    arrays = (query.numpy(), kv.numpy(), out.numpy())
    sink = np.empty(0, np.float32) if sinks is None else sinks.float().numpy()
    cap = np.float32(0.0 if softcap is None else softcap)

    def make_work() -> Callable[[int, int], None]:
        # A tile of LANES columns may begin at the last query row.
        columns = padded(plan.score_columns) + padded(group_size)
        scratch = Scratch(
            np.zeros((dim, columns), np.float32),
            np.empty((plan.score_rows, columns), np.float32),
            np.empty((columns, dim), np.float32),
            np.zeros((kv.shape[3], padded(group_size)), np.float32),
            np.zeros((2, columns), np.float32),
        )

        def work(first: int, last: int) -> None:
            _attend(*arrays, plan.groups, plan.blocks, np.float32(scale), cap, sink, scratch, first, last)

        return work

    threads = min(torch.get_num_threads(), max(1, plan.products * kv_heads * dim * 2 // THREAD_WORK))
    items = len(plan.groups) * kv_heads
    for_each_block(items, 1 if threads > 1 else items, threads, make_work)


def padded(query_rows: int) -> int:
    """Up to a multiple of LANES."""
    return -(-query_rows // LANES) * LANES


@kernel
def _score(keys: F32, table: I32, start: int, stop: int, query: F32, columns: int, scores: F32) -> None:
    """scores[t - start] = keys of token t . query, for tokens start .. stop; keys [B, S, D]."""
    size, dim = keys.shape[1], keys.shape[2]
    for i in range(stop - start):
        for m in range(columns):
            scores[i, m] = np.float32(0.0)
    t = start
    while t < stop:
        offset = t % size
        count = min(size - offset, stop - t)
        key, line = keys[table[t // size], offset:], scores[t - start :]
        product(
            key.ctypes.data, dim, 1, query.ctypes.data, query.shape[1], line.ctypes.data, line.shape[1],
            count, columns, dim,
        )  # fmt: skip
        t += count


@kernel
def _score_tail(
    keys: F32, table: I32, start: int, stop: int, query: F32, first: int, rows: int, tail: F32, scores: F32
) -> None:
    """The same for the query rows first .. first + rows of one row alone."""
    size, dim = keys.shape[1], keys.shape[2]
    t = start
    while t < stop:
        offset = t % size
        count = min(size - offset, stop - t)
        key, own = keys[table[t // size], offset:], query[0, first:]
        tail[:count] = np.float32(0.0)
        product(
            key.ctypes.data, dim, 1, own.ctypes.data, query.shape[1], tail.ctypes.data, tail.shape[1],
            count, tail.shape[1], dim,
        )  # fmt: skip
        for i in range(count):
            for m in range(rows):
                scores[t - start + i, first + m] = tail[i, m]
        t += count


@kernel
def _mix(
    values: F32, table: I32, start: int, stop: int, scores: F32, first: int, rows: int, out: F32
) -> None:
    """out[m] += sum over tokens of scores[token - start, m] * value, for m in first .. first + rows."""
    size, dim = values.shape[1], values.shape[2]
    whole = dim // LANES * LANES
    t = start
    while t < stop:
        offset = t % size
        count = min(size - offset, stop - t)
        value, weight, target = values[table[t // size], offset:], scores[t - start, first:], out[first:]
        product(
            weight.ctypes.data, 1, scores.shape[1], value.ctypes.data, dim, target.ctypes.data, dim,
            rows, whole, count,
        )  # fmt: skip
        for m in range(rows if whole < dim else 0):
            for i in range(count):
                for d in range(whole, dim):
                    target[m, d] += scores[t - start + i, first + m] * value[i, d]
        t += count


@kernel
def _weigh(scores: F32, columns: int, scale: np.float32, softcap: np.float32, sinks: F32, sums: F32) -> None:
    """Products [tokens, M] -> exponentials less each column's largest; sums of the exponentials.

    sinks [M] take part as one more logit each, -inf where there is none.
    """
    top, total = sums[0], sums[1]
    for m in range(columns):
        top[m] = sinks[m]
    for t in range(scores.shape[0]):
        for m in range(columns):
            scores[t, m] *= scale
        if softcap > np.float32(0.0):
            for m in range(columns):
                scores[t, m] = softcap * np.tanh(scores[t, m] / softcap)
        for m in range(columns):
            top[m] = max(top[m], scores[t, m])
    for m in range(columns):
        total[m] = exponential(sinks[m] - top[m]) if sinks[m] > -np.inf else np.float32(0.0)
    for t in range(scores.shape[0]):
        for m in range(columns):
            e = exponential(scores[t, m] - top[m])
            scores[t, m] = e
            total[m] += e


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
    scratch: Scratch,
    first: int,
    last: int,
) -> None:
    """Items first .. last, each one kv head of one group."""
    kv_heads, size, dim = kv.shape[1], kv.shape[3], kv.shape[4]
    per_head = query.shape[0] // kv_heads
    own, out, tail_scores, sums = scratch.query, scratch.out, scratch.tail, scratch.sums
    sink = np.full(own.shape[1], -np.inf, np.float32)
    for item in range(first, last):
        token, rows, trunk_blocks, trunk_at, tails_at, columns, hidden, context = groups[item // kv_heads]
        head = item % kv_heads
        keys, values = kv[0, head], kv[1, head]
        count = rows * per_head
        wide = -(-count // LANES) * LANES
        for d in range(dim):
            for m in range(count, wide):
                own[d, m] = np.float32(0.0)
        for m in range(count):
            if sinks.shape[0] > 0:
                sink[m] = sinks[head * per_head + m % per_head]
            for d in range(dim):
                own[d, m] = query[head * per_head + m % per_head, token + m // per_head, d]
                out[m, d] = np.float32(0.0)
        # Tokens of the trunk and of the tails that the window shows; they stand one after the other.
        shared = trunk_blocks * size
        trunk_from, tail_from, tail_to = min(hidden, shared), max(hidden - shared, 0), context - shared
        scores = scratch.scores[: context - hidden]
        tail_part = scores[shared - trunk_from :]
        trunk = blocks[trunk_at : trunk_at + trunk_blocks]
        _score(keys, trunk, trunk_from, shared, own, wide, scores)
        for i in range(tail_part.shape[0]):
            for m in range(count, wide):
                tail_part[i, m] = np.float32(0.0)
        for r in range(rows):
            tail = blocks[tails_at + r * columns : tails_at + (r + 1) * columns]
            at = r * per_head
            _score_tail(keys, tail, tail_from, tail_to, own, at, per_head, tail_scores, tail_part)
        _weigh(scores, wide, scale, softcap, sink, sums)
        _mix(values, trunk, trunk_from, shared, scores, 0, count, out)
        for r in range(rows):
            tail = blocks[tails_at + r * columns : tails_at + (r + 1) * columns]
            _mix(values, tail, tail_from, tail_to, tail_part, r * per_head, per_head, out)
        for m in range(count):
            norm = np.float32(1.0) / sums[1, m]
            for d in range(dim):
                result[token + m // per_head, head * per_head + m % per_head, d] = out[m, d] * norm
