"""Lists of block ids in ascending order, with how much neighbours have in common.

They come in no order, so that what a comparison will say can't be foretold; most of the time goes into that.
Hence buckets by the first id, and few comparisons inside them. This is for the trunks of groups, which are of
any length; for the rows of one group see joined.py.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.jit import kernel

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

FEW, MANY = 8, 32
"""Lists: up to so many are inserted one by one; from so many on there are buckets first."""
DIGIT = 9
"""Bits of an id that a pass looks at."""


@kernel
def sort_lists(ids: I32, starts: I64, sizes: I64, order: I32, shared: I32) -> None:
    """List i is ids[starts[i] .. starts[i] + sizes[i]]. Fills order [n] with the lists, ascending, equal
    ones as they came, and shared [n] with how many ids each has in common with the one before it."""
    n = order.shape[0]
    other, other_shared = np.empty(n, np.int32), np.empty(n, np.int32)
    for i in range(n):
        order[i] = i
    begin = n
    if n < MANY:
        _sort_range(ids, starts, sizes, 0, n, order, shared, other, other_shared)
    else:
        begin = 0
        firsts = _sort_by_first(ids, starts, sizes, order, other)
    while begin < n:
        end = begin + 1
        while end < n and firsts[order[end]] == firsts[order[begin]]:
            end += 1
        _sort_range(ids, starts, sizes, begin, end, order, shared, other, other_shared)
        begin = end


@kernel
def _sort_by_first(ids: I32, starts: I64, sizes: I64, order: I32, other: I32) -> I32:
    """Sorts `order` by the lists' first ids, and returns these [n]; -1 for empty lists."""
    firsts = np.empty(order.shape[0], np.int32)
    for i in range(order.shape[0]):
        firsts[i] = ids[starts[i]] if sizes[i] else -1
    sort_by_keys(firsts, order, other)
    return firsts


@kernel
def sort_by_keys(keys: I32, order: I32, other: I32) -> None:
    """Sorts order [n] by the keys of what it holds, a digit at a time; those with equal ones stay as they
    were. other [>= n]: scratch memory."""
    n = order.shape[0]
    low, high = np.int64(1) << 40, np.int64(-1)
    for i in range(n):
        low, high = min(low, keys[order[i]]), max(high, keys[order[i]])
    places = np.empty((1 << DIGIT) + 1, np.int32)
    source, target, moved, shift = order, other, False, 0
    while (high - low) >> shift:
        for i in range(places.shape[0]):
            places[i] = 0
        for i in range(n):
            places[((keys[source[i]] - low >> shift) & (1 << DIGIT) - 1) + 1] += 1
        for i in range(1, places.shape[0]):
            places[i] += places[i - 1]
        for i in range(n):
            digit = (keys[source[i]] - low >> shift) & (1 << DIGIT) - 1
            target[places[digit]] = source[i]
            places[digit] += 1
        source, target, moved = target, source, not moved
        shift += DIGIT
    if moved:
        for i in range(n):
            order[i] = other[i]


@kernel
def _sort_range(
    ids: I32,
    starts: I64,
    sizes: I64,
    begin: int,
    end: int,
    order: I32,
    shared: I32,
    other: I32,
    other_shared: I32,
) -> None:
    """Sorts order[begin .. end] as it stands, and fills shared there, from 0."""
    if end - begin <= FEW:
        _insert_range(ids, starts, sizes, begin, end, order, shared)
        return
    for i in range(begin, end):
        shared[i] = 0
    from_order, from_shared, to_order, to_shared = order, shared, other, other_shared
    width, in_place = 1, True
    while width < end - begin:
        for first in range(begin, end, 2 * width):
            middle, last = min(first + width, end), min(first + 2 * width, end)
            if middle < last:
                _merge(ids, starts, sizes, first, middle, last, from_order, from_shared, to_order, to_shared)
            else:
                for i in range(first, last):
                    to_order[i], to_shared[i] = from_order[i], from_shared[i]
        from_order, to_order = to_order, from_order
        from_shared, to_shared = to_shared, from_shared
        in_place = not in_place
        width *= 2
    if not in_place:
        for i in range(begin, end):
            order[i], shared[i] = other[i], other_shared[i]


@kernel
def _insert_range(ids: I32, starts: I64, sizes: I64, begin: int, end: int, order: I32, shared: I32) -> None:
    """As _sort_range, for few."""
    for i in range(begin + 1, end):
        at, item = i, order[i]
        while at > begin:
            same = _common(ids, starts, sizes, order[at - 1], item, 0)
            if not _above(ids, starts, sizes, order[at - 1], item, same):
                break
            order[at] = order[at - 1]
            at -= 1
        order[at] = item
    shared[begin] = 0
    for i in range(begin + 1, end):
        shared[i] = _common(ids, starts, sizes, order[i - 1], order[i], 0)


@kernel
def _merge(
    ids: I32,
    starts: I64,
    sizes: I64,
    begin: int,
    middle: int,
    end: int,
    order: I32,
    shared: I32,
    to_order: I32,
    to_shared: I32,
) -> None:
    """Two sorted runs begin .. middle and middle .. end, neither empty, into one. a_same, b_same: what the
    head of each has in common with the list written last, so that unequal ones tell the smaller head without
    a look; -1 where there is none left. (Ng and Kakehi 2008, "Merging string sequences by longest common
    prefixes".)"""
    a, b, a_same, b_same = begin, middle, 0, 0
    for at in range(begin, end):
        common = max(a_same, b_same)
        if a_same == b_same:
            same = _common(ids, starts, sizes, order[a], order[b], common)
            from_a = not _above(ids, starts, sizes, order[a], order[b], same)
            # The head that stays has so much in common with the one that is written now.
            a_same, b_same = common if from_a else same, same if from_a else common
        else:
            from_a = a_same > b_same
        # Without branches from here on.
        run = a if from_a else b
        to_order[at], to_shared[at] = order[run], common
        run += 1
        limit = middle if from_a else end
        same = shared[min(run, limit - 1)]
        same = same if run < limit else -1
        a, a_same = run if from_a else a, same if from_a else a_same
        b, b_same = b if from_a else run, b_same if from_a else same


@kernel
def _common(ids: I32, starts: I64, sizes: I64, a: int, b: int, same: int) -> int:
    """How many ids lists a and b begin alike with, which do so with `same`."""
    x, y = starts[a], starts[b]
    size = min(sizes[a], sizes[b])
    while same + 8 <= size:
        different = np.int32(0)
        for i in range(8):
            different |= ids[np.uint64(x + same + i)] ^ ids[np.uint64(y + same + i)]
        if different:
            break
        same += 8
    while same < size and ids[np.uint64(x + same)] == ids[np.uint64(y + same)]:
        same += 1
    return same


@kernel
def _above(ids: I32, starts: I64, sizes: I64, a: int, b: int, same: int) -> bool:
    """Whether list a is above b, which begin with `same` equal ids and no more."""
    if same == min(sizes[a], sizes[b]):
        return bool(sizes[a] > sizes[b])
    return bool(ids[starts[a] + same] > ids[starts[b] + same])
