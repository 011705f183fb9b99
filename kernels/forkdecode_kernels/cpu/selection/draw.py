"""Filtered draws without a sort: exponentials once, a short list of survivors, one search a child."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.draw_tops import Tops, make_tops, top_of_listed, top_of_row
from forkdecode_kernels.cpu.selection.filters import gather_above, gather_top_k, shorten, top_p_floor
from forkdecode_kernels.cpu.selection.jit import entry, inlined, kernel
from forkdecode_kernels.cpu.selection.parallel import for_each_block
from forkdecode_kernels.cpu.selection.rows import (
    CHUNK,
    NEGATIVE_INFINITY_KEY,
    TILE,
    as_numpy,
    exponentials,
    is_ready,
    sum_exponentials,
    tile_maxima,
    to_float32,
    unordered,
)
from forkdecode_kernels.cpu.selection.scratch import Scratch, make_scratch
from forkdecode_kernels.cpu.selection.typical import LISTED, count_from, gather_typical
from forkdecode_kernels.cpu.selection.weights import accumulate, chunk_in, place_in, scale_of

ROWS_PER_BLOCK = 8

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


class Settings(NamedTuple):
    """One value a row, [m] each."""

    temperature: F64
    top_k: I64
    top_p: F64
    min_p: F64
    typical_p: F64


class Outputs(NamedTuple):
    """tokens, logprobs [N]; logsumexp, status [m]; distribution [m, V], or [0, 0] when not wanted."""

    tokens: I64
    logprobs: F32
    logsumexp: F64
    status: NDArray[np.uint8]
    distribution: F32


def filtered_draw(
    logits: torch.Tensor,
    rows: I64,
    offsets: I64,
    settings: Settings,
    uniform: F64,
    *,
    distribution: bool,
    threads: int,
    tops: Tops | None = None,
) -> Outputs:
    """See forkdecode_kernels.draw; tops are filled, for who wants them."""
    source = as_numpy(logits)
    vocab = source.shape[1]
    shape = (len(rows), vocab) if distribution else (0, 0)
    out = Outputs(
        np.full(len(uniform), -1, np.int64),
        np.zeros(len(uniform), np.float32),
        np.zeros(len(rows), np.float64),
        np.zeros(len(rows), np.uint8),
        np.empty(shape, np.float32),
    )
    ready = is_ready(source)
    found = make_tops(np.zeros(len(rows), np.int64)) if tops is None else tops

    def make_work() -> Callable[[int, int], None]:
        scratch = make_scratch(vocab)

        def work(first: int, last: int) -> None:
            block = rows[first:last]
            # Anything but float32 is widened block by block; the copy stays in the cache.
            values = np.asarray(source, np.float32) if ready else to_float32(source[block])
            places = block if ready else np.arange(len(block))
            _draw_rows(values, places, first, offsets, settings, uniform, out, found, scratch)

        return work

    for_each_block(len(rows), ROWS_PER_BLOCK, threads, make_work)
    return out


@entry
def _draw_rows(
    logits: F32,
    rows: I64,
    first: int,
    offsets: I64,
    settings: Settings,
    uniform: F64,
    out: Outputs,
    tops: Tops,
    scratch: Scratch,
) -> None:
    for i in range(rows.shape[0]):
        at = first + i
        row = logits[rows[i]]
        best, bad = tile_maxima(row, scratch.tiles)
        if bad:
            out.status[at] = 1
            out.logsumexp[at] = np.nan
            continue
        if best <= NEGATIVE_INFINITY_KEY:
            out.status[at] = 2
            out.logsumexp[at] = -np.inf
            continue
        maximum = unordered(best)
        if settings.temperature[at] == 0.0:
            _greedy_row(row, at, maximum, offsets, out, scratch)
        else:
            _sampled_row(row, at, maximum, offsets, settings, uniform, out, tops, scratch)
        k = tops.k[at]
        if k > 0:
            # Of the row as it came, whose logits are their own distance from 0.
            raw_ids, raw, total = tops.raw_ids[at], tops.raw[at], out.logsumexp[at]
            top_of_row(row, k, np.float32(0.0), np.float32(1.0), total, scratch, raw_ids, raw)
            if settings.temperature[at] == 0.0:
                tops.shown_ids[at], tops.shown[at] = raw_ids, raw


@inlined
def _greedy_row(row: F32, at: int, maximum: np.float32, offsets: I64, out: Outputs, scratch: Scratch) -> None:
    log_total = math.log(sum_exponentials(row, maximum))
    out.logsumexp[at] = np.float64(maximum) + log_total
    if out.distribution.shape[0] > 0:
        for j in range(row.shape[0]):
            out.distribution[at, j] = np.float32(np.float64(row[j]) - out.logsumexp[at])
    t = 0
    while unordered(scratch.tiles[t]) != maximum:
        t += 1
    token = t * TILE
    while row[token] != maximum:
        token += 1
    for child in range(offsets[at], offsets[at + 1]):
        out.tokens[child] = token
        out.logprobs[child] = np.float32(-log_total)


@inlined
def _sampled_row(
    row: F32,
    at: int,
    maximum: np.float32,
    offsets: I64,
    settings: Settings,
    uniform: F64,
    out: Outputs,
    tops: Tops,
    scratch: Scratch,
) -> None:
    scale = scale_of(settings.temperature[at])
    top_k, top_p, min_p = settings.top_k[at], settings.top_p[at], settings.min_p[at]
    short = 0 < top_k < row.shape[0]
    total = np.float64(0.0)
    if not short:
        total = exponentials(row, maximum, scale, scratch.exps, scratch.sums)
    raw_total = total
    if short or scale != np.float32(1.0):
        raw_total = sum_exponentials(row, maximum)
    out.logsumexp[at] = np.float64(maximum) + math.log(raw_total)

    if not short and top_p >= 1.0 and min_p <= 0.0 and settings.typical_p[at] >= 1.0:
        log_total = _draw_all(row, at, maximum, scale, total, offsets, uniform, out, scratch)
        if tops.k[at] > 0:
            ids, shown = tops.shown_ids[at], tops.shown[at]
            top_of_row(row, tops.k[at], maximum, scale, log_total, scratch, ids, shown)
        return
    n = _survivors(row, at, maximum, scale, total, short, settings, scratch)
    log_total = _draw_listed(row, at, maximum, scale, n, offsets, uniform, out, scratch)
    if tops.k[at] > 0:
        ids, shown = tops.shown_ids[at], tops.shown[at]
        top_of_listed(row, n, tops.k[at], maximum, scale, log_total, scratch, ids, shown)


@kernel
def _survivors(
    row: F32,
    at: int,
    maximum: np.float32,
    scale: np.float32,
    total: np.float64,
    short: bool,
    settings: Settings,
    scratch: Scratch,
) -> int:
    top_p, min_p, typical_p = settings.top_p[at], settings.min_p[at], settings.typical_p[at]
    exps = scratch.exps[: row.shape[0]]
    typical_alone = not short and top_p >= 1.0 and typical_p < 1.0
    if typical_alone and count_from(exps, min_p) * LISTED > row.shape[0]:
        return gather_typical(row, maximum, scale, min_p, typical_p, scratch)
    if short:
        n = gather_top_k(row, settings.top_k[at], maximum, scale, scratch)
        total = accumulate(n, scratch)
    else:
        floor = min_p
        if top_p < 1.0:
            floor = max(floor, top_p_floor(exps, total, top_p))
        n = gather_above(row.shape[0], floor, maximum, scale, scratch)
    return shorten(row, n, total, maximum, scale, top_p, min_p, typical_p, scratch)


@inlined
def _draw_listed(
    row: F32,
    at: int,
    maximum: np.float32,
    scale: np.float32,
    n: int,
    offsets: I64,
    uniform: F64,
    out: Outputs,
    scratch: Scratch,
) -> float:
    """Returns the logarithm of what the n weigh."""
    ids, cumulative = scratch.ids, scratch.cumulative
    total = accumulate(n, scratch)
    log_total = math.log(total)
    if out.distribution.shape[0] > 0:
        out.distribution[at, :] = np.float32(-np.inf)
        for j in range(n):
            z = np.float64((row[ids[j]] - maximum) * scale)
            out.distribution[at, ids[j]] = np.float32(z - log_total)
    for child in range(offsets[at], offsets[at + 1]):
        token = ids[place_in(cumulative[:n], uniform[child] * total)]
        out.tokens[child] = token
        out.logprobs[child] = np.float32(np.float64((row[token] - maximum) * scale) - log_total)
    return log_total


@inlined
def _draw_all(
    row: F32,
    at: int,
    maximum: np.float32,
    scale: np.float32,
    total: np.float64,
    offsets: I64,
    uniform: F64,
    out: Outputs,
    scratch: Scratch,
) -> float:
    """Returns the logarithm of the total."""
    log_total = math.log(total)
    if out.distribution.shape[0] > 0:
        for j in range(row.shape[0]):
            out.distribution[at, j] = np.float32(np.float64((row[j] - maximum) * scale) - log_total)
    for child in range(offsets[at], offsets[at + 1]):
        token = _find(row.shape[0], scratch.exps, scratch.sums, uniform[child] * total)
        out.tokens[child] = token
        out.logprobs[child] = np.float32(np.float64((row[token] - maximum) * scale) - log_total)
    return log_total


@inlined
def _find(size: int, exps: F32, sums: F64, target: np.float64) -> int:
    """The first token whose cumulative weight exceeds target: by chunk, then inside it."""
    last, before, inside = chunk_in(sums, target)
    token = last * CHUNK
    for i in range(last * CHUNK, min(size, (last + 1) * CHUNK)):
        if exps[i] > np.float32(0.0):
            token = i
            before += np.float64(exps[i])
            if inside and before > target:
                break
    return token
