"""The best of what rows' lists hold: the vocabulary is read once, for its sum, and then the lists alone.

A block of rows keeps the k best that it has met in a buffer of 2 k, cut back to k when it is full; the
k-th best of the last cut is a bound that few later ones pass.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.allowed import read_only
from forkdecode_kernels.cpu.selection.jit import entry, kernel
from forkdecode_kernels.cpu.selection.parallel import for_each_block
from forkdecode_kernels.cpu.selection.rows import TILE, as_numpy, is_ready, row_sums, to_float32

ROWS_PER_BLOCK = 16

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Lists(NamedTuple):
    """The arrays of forkdecode_kernels.allowed.TokenLists; as they come, or as `readable` makes them."""

    tokens: I32
    start: I64
    stop: I64
    ends: Bools
    also: Bools
    also_ids: I64
    without_ends: bool


class Found(NamedTuple):
    """Candidates, best first; entry: the place of each in the lists' tokens, -1 for one of also_ids."""

    rows: I64
    tokens: I64
    entries: I64
    scores: F32
    logprobs: F32
    valid: bool


_NO_PLACES, _NO_NUMBERS = np.empty(0, np.int64), np.empty(0, np.float32)
_INVALID = Found(_NO_PLACES, _NO_PLACES, _NO_PLACES, _NO_NUMBERS, _NO_NUMBERS, False)


def listed_topk(logits: torch.Tensor, lists: Lists, base: F32, k: int, threads: int) -> Found:
    """See forkdecode_kernels.listed_topk; logits [R, V] are one group's."""
    source = as_numpy(logits)
    count = len(source)
    room = _room(lists)
    lists, base = readable(lists), read_only(base)
    ready = is_ready(source)
    parts: list[tuple[I64, F32] | None] = [None] * -(-count // ROWS_PER_BLOCK)
    valid = np.empty(count, np.bool_)

    def work(first: int, last: int) -> None:
        own = slice(first, last)
        values = np.asarray(source[own], np.float32) if ready else to_float32(source[own])
        size = int(min(2 * k, room[own].sum()))
        places, numbers = np.empty((3, size), np.int64), np.empty((2, size), np.float32)
        n = _list_best(values, valid[own], base[own], rows_of(lists, own), k, places, numbers)
        places[0, :n] += first
        parts[first // ROWS_PER_BLOCK] = (places[:, :n], numbers[:, :n])

    for_each_block(count, ROWS_PER_BLOCK, threads, lambda: work)
    if not valid.all():
        return _INVALID
    found = [part for part in parts if part is not None]
    places = np.concatenate([p for p, _ in found], axis=1)
    numbers = np.concatenate([n for _, n in found], axis=1)
    best = _best(numbers[0], k)
    row, token, entry = places[:, best]
    score, logprob = numbers[:, best]
    return Found(row, token, entry, score, logprob, True)


def readable(lists: Lists) -> Lists:
    """As kernels take them: also_ids ascending, and without_ends only where `ends` says something."""
    arrays = (*lists[:5], np.unique(lists.also_ids))
    return Lists._make((*map(read_only, arrays), lists.without_ends and len(lists.ends) > 0))


def rows_of(lists: Lists, own: slice) -> Lists:
    """Of some rows alone."""
    return lists._replace(start=lists.start[own], stop=lists.stop[own], also=lists.also[own])


def _room(lists: Lists) -> I64:
    """How many candidates each row can have."""
    entries: I64 = np.maximum(lists.stop - lists.start, 0) + lists.also * len(lists.also_ids)
    return entries


def _best(scores: F32, k: int) -> I64:
    """The places of the k highest, best first; of equals the earlier."""
    kept = np.arange(len(scores))
    if len(scores) > k:
        kept = np.flatnonzero(scores >= np.partition(scores, len(scores) - k)[len(scores) - k])
    order: I64 = kept[np.argsort(-scores[kept], kind="stable")[:k]]
    return order


@entry
def _list_best(values: F32, valid: Bools, base: F32, lists: Lists, k: int, places: I64, numbers: F32) -> int:
    """The k best of the block's rows, and some others, in the order of rows and tokens: row, token and
    entry -> places [3, room], score and log-probability -> numbers [2, room]; returns how many."""
    tokens, ends, also_ids, skips = lists.tokens, lists.ends, lists.also_ids, lists.without_ends
    n = 0
    bound = np.float32(-np.inf)
    tiles = np.empty((1, -(-values.shape[1] // TILE)), np.int32)
    sums = np.empty(1, np.float64)
    self = np.zeros(1, np.int64)
    for r in range(values.shape[0]):
        row = values[r]
        # Its list is read right after the row itself, while that lies in the cache.
        row_sums(values[r : r + 1], self, tiles, sums, valid[r : r + 1], False)
        if not valid[r]:
            return 0
        shift = np.float64(0.0) if sums[0] == -np.inf else sums[0]
        at, last = lists.start[r], lists.stop[r]
        beside, others = 0, also_ids.shape[0] if lists.also[r] else 0
        if others == 0 and not skips:
            n, bound = _list_row(row, shift, base[r], tokens[at:last], r, at, k, bound, n, places, numbers)
            continue
        while at < last or beside < others:
            # Both lists ascend; an id that is in both is one candidate.
            listed = at < last and (beside == others or tokens[at] <= also_ids[beside])
            place = at if listed else -1
            token = np.int64(tokens[at]) if listed else also_ids[beside]
            if beside < others and also_ids[beside] == token:
                beside += 1
                if listed and skips and ends[at]:
                    place = -1
            if listed:
                at += 1
                if place >= 0 and skips and ends[place]:
                    continue
            logprob = np.float32(np.float64(row[token]) - shift)
            score = np.float32(base[r] + logprob)
            if not score > bound:
                continue
            if n == places.shape[1]:
                n, bound = _cut(places, numbers, n, k)
                if not score > bound:
                    continue
            places[0, n], places[1, n], places[2, n] = r, token, place
            numbers[0, n], numbers[1, n] = score, logprob
            n += 1
    return n


@kernel
def _list_row(
    row: F32,
    shift: np.float64,
    base: np.float32,
    tokens: I32,
    number: int,
    entry: int,
    k: int,
    bound: np.float32,
    n: int,
    places: I64,
    numbers: F32,
) -> tuple[int, np.float32]:
    """What _list_best does of a row that may continue with all of `tokens`, and nothing beside."""
    for i in range(tokens.shape[0]):
        logprob = np.float32(np.float64(row[tokens[i]]) - shift)
        score = np.float32(base + logprob)
        if score > bound:
            if n == places.shape[1]:
                n, bound = _cut(places, numbers, n, k)
                if not score > bound:
                    continue
            places[0, n], places[1, n], places[2, n] = number, tokens[i], entry + i
            numbers[0, n], numbers[1, n] = score, logprob
            n += 1
    return n, bound


@kernel
def _cut(places: I64, numbers: F32, n: int, k: int) -> tuple[int, np.float32]:
    """Keeps the k best of n, of equals the earlier, in their order. Returns k and the worst score kept."""
    bound = np.partition(numbers[0, :n], n - k)[n - k]
    better = 0
    for i in range(n):
        better += numbers[0, i] > bound
    equal = k - better
    kept = 0
    for i in range(n):
        if numbers[0, i] == bound:
            equal -= 1
        if numbers[0, i] > bound or (numbers[0, i] == bound and equal >= 0):
            for c in range(3):
                places[c, kept] = places[c, i]
            numbers[0, kept], numbers[1, kept] = numbers[0, i], numbers[1, i]
            kept += 1
    return kept, bound
