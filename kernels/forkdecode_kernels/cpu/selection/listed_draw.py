"""Draws from what rows' lists hold: the vocabulary is read once, for its sum, and then the lists alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.draw import Outputs, Settings, place_in
from forkdecode_kernels.cpu.selection.jit import entry, inlined, kernel
from forkdecode_kernels.cpu.selection.listed import Lists, readable
from forkdecode_kernels.cpu.selection.listed_rows import best_listed, list_tokens, survivors, weigh
from forkdecode_kernels.cpu.selection.parallel import for_each_block
from forkdecode_kernels.cpu.selection.rows import CHUNK, as_numpy, is_ready, row_sums, to_float32
from forkdecode_kernels.cpu.selection.scratch import Scratch, make_scratch

ROWS_PER_BLOCK = 8

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]


def listed_draw(
    logits: torch.Tensor, lists: Lists, offsets: I64, settings: Settings, uniform: F64, *, threads: int
) -> Outputs:
    """See forkdecode_kernels.listed_draw; logits [R, V] are one group's."""
    source = as_numpy(logits)
    count, vocab = source.shape
    tokens, start, stop, ends, also, also_ids, skips = readable(lists)
    out = Outputs(
        np.full(len(uniform), -1, np.int64),
        np.zeros(len(uniform), np.float32),
        np.zeros(count, np.float64),
        np.zeros(count, np.uint8),
        np.empty((0, 0), np.float32),
    )
    ready = is_ready(source)

    def make_work() -> Callable[[int, int], None]:
        scratch = make_scratch(vocab)

        def work(first: int, last: int) -> None:
            own = slice(first, last)
            values = np.asarray(source[own], np.float32) if ready else to_float32(source[own])
            _draw_rows(
                values,
                first,
                tokens,
                start[own],
                stop[own],
                ends,
                also[own],
                also_ids,
                skips,
                offsets,
                settings,
                uniform,
                out,
                scratch,
            )

        return work

    for_each_block(count, ROWS_PER_BLOCK, threads, make_work)
    return out


@entry
def _draw_rows(
    values: F32,
    first: int,
    tokens: I32,
    start: I64,
    stop: I64,
    ends: Bools,
    also: Bools,
    also_ids: I64,
    skips: bool,
    offsets: I64,
    settings: Settings,
    uniform: F64,
    out: Outputs,
    scratch: Scratch,
) -> None:
    tiles, sums = np.empty((1, scratch.tiles.shape[0]), np.int32), np.empty(1, np.float64)
    valid, self = np.empty(1, np.bool_), np.zeros(1, np.int64)
    for r in range(values.shape[0]):
        at, row = first + r, values[r]
        row_sums(values[r : r + 1], self, tiles, sums, valid, False)
        out.logsumexp[at] = sums[0]
        if not valid[0]:
            out.status[at] = 1
            continue
        beside = also_ids if also[r] else also_ids[:0]
        n = list_tokens(tokens, ends, start[r], stop[r], beside, skips, scratch.ids)
        maximum = best_listed(row, scratch.ids[:n])
        if maximum == -np.inf:
            out.status[at] = 2
        elif settings.temperature[at] == 0.0:
            _greedy(row, at, n, maximum, offsets, out, scratch)
        else:
            _sampled(row, at, n, maximum, offsets, settings, uniform, out, scratch)


@inlined
def _greedy(
    row: F32, at: int, n: int, maximum: np.float32, offsets: I64, out: Outputs, scratch: Scratch
) -> None:
    log_total = math.log(weigh(row, n, maximum, np.float32(1.0), scratch))
    j = 0
    while row[scratch.ids[j]] != maximum:
        j += 1
    for child in range(offsets[at], offsets[at + 1]):
        out.tokens[child] = scratch.ids[j]
        out.logprobs[child] = np.float32(-log_total)


@inlined
def _sampled(
    row: F32,
    at: int,
    n: int,
    maximum: np.float32,
    offsets: I64,
    settings: Settings,
    uniform: F64,
    out: Outputs,
    scratch: Scratch,
) -> None:
    scale = np.float32(min(1.0 / max(settings.temperature[at], 1e-30), 1e30))
    top_k, top_p, min_p = settings.top_k[at], settings.top_p[at], settings.min_p[at]
    filtered = 0 < top_k < row.shape[0] or top_p < 1.0 or min_p > 0.0 or settings.typical_p[at] < 1.0
    total = np.float64(0.0)
    if filtered:
        n = survivors(row, n, maximum, scale, top_k, top_p, min_p, settings.typical_p[at], scratch)
        for j in range(n):
            total += np.float64(scratch.weights[j])
            scratch.cumulative[j] = total
    else:
        total = weigh(row, n, maximum, scale, scratch)
    log_total = math.log(total)
    for child in range(offsets[at], offsets[at + 1]):
        target = uniform[child] * total
        if filtered:
            token = scratch.ids[place_in(scratch.cumulative[:n], target)]
        else:
            token = _find(scratch.ids[:n], scratch.weights[:n], scratch.sums, target)
        out.tokens[child] = token
        out.logprobs[child] = np.float32(np.float64((row[token] - maximum) * scale) - log_total)


@kernel
def _find(ids: I32, weights: F32, sums: F64, target: np.float64) -> int:
    """The first token whose cumulative weight exceeds target: by chunk, then inside it."""
    before = np.float64(0.0)
    t = 0
    last = 0
    while t < sums.shape[0]:
        if sums[t] > 0.0:
            last = t
            if before + sums[t] > target:
                break
            before += sums[t]
        t += 1
    token = last * CHUNK
    for j in range(np.searchsorted(ids, last * CHUNK), ids.shape[0]):
        if ids[j] >= (last + 1) * CHUNK:
            break
        if weights[j] > np.float32(0.0):
            token = int(ids[j])
            before += np.float64(weights[j])
            if t < sums.shape[0] and before > target:
                break
    return token
