"""The best of each row's list by itself: by score, or by perturbed log-probability."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.draw import Settings
from forkdecode_kernels.cpu.selection.jit import entry, kernel
from forkdecode_kernels.cpu.selection.listed import Lists, readable
from forkdecode_kernels.cpu.selection.listed_rows import best_listed, list_tokens, survivors, weigh
from forkdecode_kernels.cpu.selection.parallel import for_each_block
from forkdecode_kernels.cpu.selection.perturbed import STRIP as NOISE_STRIP
from forkdecode_kernels.cpu.selection.perturbed import condition, in_order, race_listed
from forkdecode_kernels.cpu.selection.row_best import score_key
from forkdecode_kernels.cpu.selection.rows import as_numpy, is_ready, row_sums, to_float32
from forkdecode_kernels.cpu.selection.scratch import Scratch, make_scratch
from forkdecode_kernels.cpu.selection.threshold import crossing

ROWS_PER_BLOCK = 8

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
Bools = NDArray[np.bool_]

_NO_SCORE = np.uint32(0x007FFFFF)
"""Key of -inf."""


def best_of_listed(
    logits: torch.Tensor, lists: Lists, base: F32, k: int, *, threads: int
) -> tuple[I64, I64, F32, F32, bool]:
    """row, token, score, logprob [N] of the k best of each row's list, and whether all rows are valid."""
    source = as_numpy(logits)
    count, vocab = source.shape
    tokens, start, stop, ends, also, also_ids, skips = readable(lists)
    longest = int((stop - start).max(initial=0)) + len(also_ids)
    packed = np.empty((count, max(1, min(k, longest))), np.uint64)
    sums, valid, found = np.empty(count, np.float64), np.empty(count, np.bool_), np.zeros(count, np.int64)
    ready = is_ready(source)

    def make_work() -> Callable[[int, int], None]:
        scratch = make_scratch(vocab)

        def work(first: int, last: int) -> None:
            own = slice(first, last)
            values = np.asarray(source[own], np.float32) if ready else to_float32(source[own])
            _best(
                values,
                tokens,
                start[own],
                stop[own],
                ends,
                also[own],
                also_ids,
                skips,
                base[own],
                k,
                sums[own],
                valid[own],
                packed[own],
                found[own],
                scratch,
            )

        return work

    for_each_block(count, ROWS_PER_BLOCK, threads, make_work)
    row, at = np.nonzero(np.arange(packed.shape[1]) < found[:, None])
    token = (packed[row, at] & np.uint64(0xFFFFFFFF)).astype(np.int64)
    logprob = (to_float32(source[row, token][None])[0] - sums[row]).astype(np.float32)
    return row, token, base[row] + logprob, logprob, bool(valid.all())


@entry
def _best(
    values: F32,
    tokens: I32,
    start: I64,
    stop: I64,
    ends: Bools,
    also: Bools,
    also_ids: I64,
    skips: bool,
    base: F32,
    k: int,
    sums: F64,
    valid: Bools,
    packed: U64,
    found: I64,
    scratch: Scratch,
) -> None:
    """Each row's best as (score, token) -> packed [n, K] from the best down; how many -> found [n]."""
    tiles, self = np.empty((1, scratch.tiles.shape[0]), np.int32), np.zeros(1, np.int64)
    for r in range(values.shape[0]):
        row = values[r]
        row_sums(values[r : r + 1], self, tiles, sums[r : r + 1], valid[r : r + 1], False)
        if not valid[r]:
            continue
        if sums[r] == -np.inf:
            sums[r] = 0.0
        beside = also_ids if also[r] else also_ids[:0]
        n = list_tokens(tokens, ends, start[r], stop[r], beside, skips, scratch.ids)
        n = _scored(row, n, sums[r], base[r], scratch)
        if n > k:
            n = _cut(n, k, scratch)
        order = np.empty(n, np.uint64)
        for j in range(n):
            order[j] = (np.uint64(~scratch.keys[j]) << np.uint64(32)) | np.uint64(scratch.ids[j])
        order.sort()
        found[r] = min(n, k)
        packed[r, : found[r]] = order[: found[r]]


@kernel
def _scored(row: F32, n: int, shift: np.float64, base: np.float32, scratch: Scratch) -> int:
    """The scores of the n listed as ordered integers -> scratch.keys, without those of -inf; how many."""
    kept = 0
    for j in range(n):
        key = score_key(row[scratch.ids[j]], shift, base)
        scratch.ids[kept], scratch.keys[kept] = scratch.ids[j], key
        kept += 1 if key > _NO_SCORE else 0
    return kept


@kernel
def _cut(n: int, k: int, scratch: Scratch) -> int:
    """Those that reach the k-th highest key; how many."""
    ids, keys = scratch.ids, scratch.keys
    scratch.weights[:n] = np.float32(1.0)
    ones = scratch.weights[:n]
    floor, _ = crossing(keys[:n], ones, np.float64(k), scratch.spare_keys, scratch.spare_weights)
    kept = 0
    for j in range(n):
        ids[kept], keys[kept] = ids[j], keys[j]
        kept += 1 if keys[j] >= floor else 0
    return kept


def perturbed_of_listed(
    logits: torch.Tensor,
    lists: Lists,
    settings: Settings,
    base: F64,
    maximum: F64,
    lineage: U64,
    position: int,
    k: int,
    *,
    threads: int,
) -> tuple[I64, I64, F32, F64, F64, bool]:
    """row, token, logprob, perturbed [N] of the k best of each row's list, the logsumexp [R] of the rows as
    they came, and whether all are valid."""
    source = as_numpy(logits)
    count, vocab = source.shape
    tokens, start, stop, ends, also, also_ids, skips = readable(lists)
    most = max(1, min(k, int((stop - start).max(initial=0)) + len(also_ids)))
    best, values = np.empty((count, most), np.int64), np.empty((count, most), np.float64)
    shift, sums = np.empty((count, 3), np.float64), np.empty(count, np.float64)
    valid, found = np.empty(count, np.bool_), np.zeros(count, np.int64)
    ready = is_ready(source)

    def make_work() -> Callable[[int, int], None]:
        scratch = make_scratch(vocab)
        words, bits = np.empty((4, NOISE_STRIP), np.uint32), np.empty(NOISE_STRIP, np.uint64)

        def work(first: int, last: int) -> None:
            own = slice(first, last)
            _perturbed(
                np.asarray(source[own], np.float32) if ready else to_float32(source[own]),
                tokens,
                start[own],
                stop[own],
                ends,
                also[own],
                also_ids,
                skips,
                Settings(
                    settings.temperature[own],
                    settings.top_k[own],
                    settings.top_p[own],
                    settings.min_p[own],
                    settings.typical_p[own],
                ),
                base[own],
                maximum[own],
                lineage[own],
                position,
                most,
                sums[own],
                valid[own],
                shift[own],
                best[own],
                values[own],
                found[own],
                words,
                bits,
                scratch,
            )

        return work

    for_each_block(count, ROWS_PER_BLOCK, threads, make_work)
    row, token, value = in_order(best, values, found)
    chosen = to_float32(source[row, token][None])[0]
    top, scale, log_total = shift[row].T
    scaled = (chosen - top.astype(np.float32)) * scale.astype(np.float32)
    logprob = (scaled.astype(np.float64) - log_total).astype(np.float32)
    return row, token, logprob, value, sums, bool(valid.all())


@entry
def _perturbed(
    values: F32,
    tokens: I32,
    start: I64,
    stop: I64,
    ends: Bools,
    also: Bools,
    also_ids: I64,
    skips: bool,
    settings: Settings,
    base: F64,
    condition_on: F64,
    lineage: U64,
    position: int,
    k: int,
    sums: F64,
    valid: Bools,
    shift: F64,
    best: I64,
    perturbed: F64,
    found: I64,
    words: U32,
    bits: U64,
    scratch: Scratch,
) -> None:
    """Each row's k best in no order -> best, perturbed; what their log-probabilities are made by, the highest
    logit, the scale and the logarithm of the sum -> shift [n, 3]."""
    tiles, self = np.empty((1, scratch.tiles.shape[0]), np.int32), np.zeros(1, np.int64)
    for r in range(values.shape[0]):
        row = values[r]
        row_sums(values[r : r + 1], self, tiles, sums[r : r + 1], valid[r : r + 1], False)
        if not valid[r]:
            continue
        beside = also_ids if also[r] else also_ids[:0]
        n = list_tokens(tokens, ends, start[r], stop[r], beside, skips, scratch.ids)
        maximum = best_listed(row, scratch.ids[:n])
        if maximum == -np.inf:
            continue
        scale = np.float32(min(1.0 / max(settings.temperature[r], 1e-30), 1e30))
        n, log_total = _remaining(row, r, n, maximum, scale, settings, scratch)
        shift[r, 0], shift[r, 1], shift[r, 2] = maximum, scale, log_total
        logprobs = scratch.distances
        for j in range(n):
            z = np.float64((row[scratch.ids[j]] - maximum) * scale)
            logprobs[j] = np.float32(z - log_total)
        ids, counter = scratch.ids[:n], np.uint64(position)
        n = race_listed(ids, logprobs, lineage[r], counter, k, words, bits, best[r], perturbed[r])
        found[r] = n
        condition(perturbed[r, :n], base[r], condition_on[r])


@kernel
def _remaining(
    row: F32, r: int, n: int, maximum: np.float32, scale: np.float32, settings: Settings, scratch: Scratch
) -> tuple[int, float]:
    """How many of the n listed the filters leave, and the logarithm of their weight."""
    top_k, top_p, min_p = settings.top_k[r], settings.top_p[r], settings.min_p[r]
    typical_p = settings.typical_p[r]
    if not (0 < top_k < row.shape[0] or top_p < 1.0 or min_p > 0.0 or typical_p < 1.0):
        return n, math.log(weigh(row, n, maximum, scale, scratch))
    n = survivors(row, n, maximum, scale, top_k, top_p, min_p, typical_p, scratch)
    total = np.float64(0.0)
    for j in range(n):
        total += np.float64(scratch.weights[j])
    return n, math.log(total)
