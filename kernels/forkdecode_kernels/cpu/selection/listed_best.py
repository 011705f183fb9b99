"""The best of each row's list by itself: by score, or by perturbed log-probability."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.draw import Settings
from forkdecode_kernels.cpu.selection.jit import entry, kernel
from forkdecode_kernels.cpu.selection.listed import Lists, readable, rows_of
from forkdecode_kernels.cpu.selection.listed_rows import best_listed, list_tokens, remaining
from forkdecode_kernels.cpu.selection.parallel import for_each_block
from forkdecode_kernels.cpu.selection.perturbed import STRIP as NOISE_STRIP
from forkdecode_kernels.cpu.selection.perturbed import condition, in_order, race_listed
from forkdecode_kernels.cpu.selection.row_best import NO_SCORE, keep_keys, pack_best, score_key, unpacked
from forkdecode_kernels.cpu.selection.rows import as_numpy, is_ready, row_sums, to_float32
from forkdecode_kernels.cpu.selection.scratch import Scratch, make_scratch
from forkdecode_kernels.cpu.selection.threshold import crossing
from forkdecode_kernels.cpu.selection.weights import scale_of

ROWS_PER_BLOCK = 8

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]
Bools = NDArray[np.bool_]


def best_of_listed(
    logits: torch.Tensor, lists: Lists, base: F32, k: int, *, threads: int
) -> tuple[I64, I64, F32, F32, bool]:
    """row, token, score, logprob [N] of the k best of each row's list, and whether all rows are valid."""
    source = as_numpy(logits)
    count, vocab = source.shape
    lists = readable(lists)
    packed = np.empty((count, _most(lists, k)), np.uint64)
    sums, valid, found = np.empty(count, np.float64), np.empty(count, np.bool_), np.zeros(count, np.int64)
    ready = is_ready(source)

    def make_work() -> Callable[[int, int], None]:
        scratch = make_scratch(vocab)

        def work(first: int, last: int) -> None:
            own = slice(first, last)
            values = np.asarray(source[own], np.float32) if ready else to_float32(source[own])
            _best(
                values, rows_of(lists, own), base[own], k, sums[own], valid[own], packed[own], found[own],
                scratch,
            )  # fmt: skip

        return work

    for_each_block(count, ROWS_PER_BLOCK, threads, make_work)
    row, token = unpacked(packed, found)
    logprob = (to_float32(source[row, token][None])[0] - sums[row]).astype(np.float32)
    return row, token, base[row] + logprob, logprob, bool(valid.all())


@entry
def _best(
    values: F32, lists: Lists, base: F32, k: int, sums: F64, valid: Bools, packed: U64, found: I64,
    scratch: Scratch,
) -> None:  # fmt: skip
    """Each row's best as (score, token) -> packed [n, K] from the best down; how many -> found [n]."""
    tiles, self = np.empty((1, scratch.tiles.shape[0]), np.int32), np.zeros(1, np.int64)
    for r in range(values.shape[0]):
        row = values[r]
        row_sums(values[r : r + 1], self, tiles, sums[r : r + 1], valid[r : r + 1], False)
        if not valid[r]:
            continue
        if sums[r] == -np.inf:
            sums[r] = 0.0
        n = list_tokens(lists, r, scratch.ids)
        n = _scored(row, n, sums[r], base[r], scratch)
        if n > k:
            n = _cut(n, k, scratch)
        found[r] = pack_best(scratch.keys, scratch.ids, n, k, packed[r])


@kernel
def _scored(row: F32, n: int, shift: np.float64, base: np.float32, scratch: Scratch) -> int:
    """The scores of the n listed as ordered integers -> scratch.keys, without those of -inf; how many."""
    kept = 0
    for j in range(n):
        key = score_key(row[scratch.ids[j]], shift, base)
        scratch.ids[kept], scratch.keys[kept] = scratch.ids[j], key
        kept += 1 if key > NO_SCORE else 0
    return kept


@kernel
def _cut(n: int, k: int, scratch: Scratch) -> int:
    """Those that reach the k-th highest key; how many."""
    keys, ones = scratch.keys, scratch.weights[:n]
    ones[:] = np.float32(1.0)
    floor, _ = crossing(keys[:n], ones, np.float64(k), scratch.spare_keys, scratch.spare_weights)
    return keep_keys(keys, scratch.ids, n, floor)


def _most(lists: Lists, k: int) -> int:
    """How many a row can have at the most of its k best; 1 at least, as arrays have it."""
    return max(1, min(k, int((lists.stop - lists.start).max(initial=0)) + len(lists.also_ids)))


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
    lists = readable(lists)
    most = _most(lists, k)
    best, values = np.empty((count, most), np.int64), np.empty((count, most), np.float64)
    shift, sums = np.empty((count, 3), np.float64), np.empty(count, np.float64)
    valid, found = np.empty(count, np.bool_), np.zeros(count, np.int64)
    ready = is_ready(source)

    def make_work() -> Callable[[int, int], None]:
        scratch = make_scratch(vocab)
        words = np.empty(NOISE_STRIP, np.uint32)

        def work(first: int, last: int) -> None:
            own = slice(first, last)
            values_of = np.asarray(source[own], np.float32) if ready else to_float32(source[own])
            _perturbed(
                values_of, rows_of(lists, own), Settings._make(column[own] for column in settings), base[own],
                maximum[own], lineage[own], position, most, sums[own], valid[own], shift[own], best[own],
                values[own], found[own], words, scratch,
            )  # fmt: skip

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
    values: F32, lists: Lists, settings: Settings, base: F64, condition_on: F64, lineage: U64, position: int,
    k: int, sums: F64, valid: Bools, shift: F64, best: I64, perturbed: F64, found: I64, words: U32,
    scratch: Scratch,
) -> None:  # fmt: skip
    """Each row's k best in no order -> best, perturbed; what their log-probabilities are made by, the highest
    logit, the scale and the logarithm of the sum -> shift [n, 3]."""
    tiles, self = np.empty((1, scratch.tiles.shape[0]), np.int32), np.zeros(1, np.int64)
    for r in range(values.shape[0]):
        row = values[r]
        row_sums(values[r : r + 1], self, tiles, sums[r : r + 1], valid[r : r + 1], False)
        if not valid[r]:
            continue
        n = list_tokens(lists, r, scratch.ids)
        maximum = best_listed(row, scratch.ids[:n])
        if maximum == -np.inf:
            continue
        scale = scale_of(settings.temperature[r])
        n, total, _ = remaining(row, r, n, maximum, scale, settings, scratch)
        log_total = math.log(total)
        shift[r, 0], shift[r, 1], shift[r, 2] = maximum, scale, log_total
        logprobs = scratch.distances
        for j in range(n):
            z = np.float64((row[scratch.ids[j]] - maximum) * scale)
            logprobs[j] = np.float32(z - log_total)
        ids, counter = scratch.ids[:n], np.uint64(position)
        n = race_listed(ids, logprobs, lineage[r], counter, k, words, best[r], perturbed[r])
        found[r] = n
        condition(perturbed[r, :n], base[r], condition_on[r])
