"""Perturbed top-k in one pass a row: random bits for every token, logarithms for the few that may win.

A token's noise is -log(E), E = -log(u) >= 1 - u. So it can't beat the k-th best h so far unless 1 - u is
below exp(logprob - h), which is a product and a comparison: about k * log(V / k) tokens of a row get past.
The comparison needs the upper half of a token's random word alone, and is made side by side for a strip.

Where even h is so low that exp(logprob - h) is out of a float32's reach (a cold beam has few likely tokens),
tokens are compared one by one, by logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.jit import entry, inlined, kernel
from forkdecode_kernels.cpu.selection.noise import uniform_of, upper_halves, upper_halves_of
from forkdecode_kernels.cpu.selection.parallel import for_each_block
from forkdecode_kernels.cpu.selection.rows import exponential

ROWS_PER_BLOCK = 4
STRIP = 256
"""Tokens whose random bits are made together."""
SPAN = 16
"""Tokens that are passed over together when none may win."""
LEAST = np.float32(-87.0)
"""Log-probabilities from here up have an exponential in float32."""
NOISE = 37.0
"""No token's noise is above it: u is below 1 by 2 ** -53 at least."""
DEEP = math.exp(50.0)
"""A reach up to which nothing below LEAST can win: h is -50 then, and LEAST + NOISE no more."""

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]


def perturbed_topk(
    logprobs: F32, base: F64, maximum: F64, lineage: U64, position: I64, k: I64, *, threads: int
) -> tuple[I64, I64, F32, F64]:
    """See forkdecode_kernels.perturbed: rows, tokens, logprobs, perturbed."""
    count, vocab = logprobs.shape
    most = min(int(k.max(initial=1)), vocab)
    wanted = np.minimum(k, vocab).astype(np.int64)
    tokens, found = np.empty((count, most), np.int64), np.empty(count, np.int64)
    values = np.empty((count, most), np.float64)

    def make_work() -> Callable[[int, int], None]:
        words = np.empty(STRIP, np.uint32)

        def work(first: int, last: int) -> None:
            own = slice(first, last)
            _rows(
                logprobs[own],
                base[own],
                maximum[own],
                lineage[own],
                position[own],
                wanted[own],
                words,
                tokens[own],
                values[own],
                found[own],
            )

        return work

    for_each_block(count, ROWS_PER_BLOCK, threads, make_work)
    row, token, value = in_order(tokens, values, found)
    return row, token, logprobs[row, token], value


def in_order(tokens: I64, values: F64, found: I64) -> tuple[I64, I64, F64]:
    """row, token, value [N] of the first found[r] of each row, the best first; of equals the lower token."""
    row = np.repeat(np.arange(len(found)), found)
    listed = np.arange(tokens.shape[1]) < found[:, None]
    token, value = tokens[listed], values[listed]
    order = np.lexsort((token, -value, row))
    return row, token[order], value[order]


@entry
def _rows(
    logprobs: F32,
    base: F64,
    maximum: F64,
    lineage: U64,
    position: I64,
    k: I64,
    words: U32,
    tokens: I64,
    values: F64,
    found: I64,
) -> None:
    """Lists each row's k best in no order -> tokens, values [m, most]; their number -> found [m]."""
    for r in range(logprobs.shape[0]):
        n = _race(logprobs[r], lineage[r], np.uint64(position[r]), k[r], words, tokens[r], values[r])
        found[r] = n
        condition(values[r, :n], base[r], maximum[r])


@inlined
def _race(row: F32, key: np.uint64, counter: np.uint64, k: int, words: U32, tokens: I64, heap: F64) -> int:
    """The k best by logprob + noise as a heap, the worst at its root; returns how many there are."""
    n, at, reach = 0, 0, math.inf
    while n < k and at < row.shape[0]:  # while the heap is not full every token enters it
        n, reach = _offered(row[at], at, key, counter, n, k, reach, tokens, heap)
        at += 1
    for start in range(at, row.shape[0], STRIP):
        strip = row[start : start + STRIP]
        if reach > DEEP:
            for j in range(strip.shape[0]):
                n, reach = _offered(strip[j], start + j, key, counter, n, k, reach, tokens, heap)
            continue
        if not _any_listed(strip):
            continue
        own = words[: strip.shape[0]]
        upper_halves(np.uint32(start), key, counter, own)
        if not _mark(strip, own, reach):
            continue
        for i in range(0, strip.shape[0], SPAN):
            span = own[i : min(i + SPAN, strip.shape[0])]
            if not _any(span):
                continue
            for j in range(span.shape[0]):
                if span[j]:
                    token = start + i + j
                    n, reach = _offered(strip[i + j], token, key, counter, n, k, reach, tokens, heap)
    return n


@kernel
def race_listed(
    ids: I32,
    logprobs: F32,
    key: np.uint64,
    counter: np.uint64,
    k: int,
    words: U32,
    tokens: I64,
    heap: F64,
) -> int:
    """What `_race` does of tokens ids with these log-probabilities: the same noise for each."""
    n, at, reach = 0, 0, math.inf
    while n < k and at < ids.shape[0]:
        n, reach = _offered(logprobs[at], int(ids[at]), key, counter, n, k, reach, tokens, heap)
        at += 1
    for start in range(at, ids.shape[0], STRIP):
        strip = ids[start : start + STRIP]
        own, values = words[: strip.shape[0]], logprobs[start : start + strip.shape[0]]
        if reach > DEEP:
            for i in range(strip.shape[0]):
                n, reach = _offered(values[i], int(strip[i]), key, counter, n, k, reach, tokens, heap)
            continue
        upper_halves_of(strip, key, counter, own)
        if not _mark(values, own, reach):
            continue
        for i in range(strip.shape[0]):
            if own[i]:
                token = int(strip[i])
                n, reach = _offered(values[i], token, key, counter, n, k, reach, tokens, heap)
    return n


@kernel
def _offered(
    logprob: np.float32,
    token: int,
    key: np.uint64,
    counter: np.uint64,
    n: int,
    k: int,
    reach: float,
    tokens: I64,
    heap: F64,
) -> tuple[int, float]:
    """The heap's new size and reach after a token that may win or not."""
    if logprob == -np.inf or (n == k and np.float64(logprob) + NOISE < heap[0]):
        return n, reach
    uniform = uniform_of(np.uint32(token), key, counter)
    if n == k and logprob >= LEAST and 1.0 - uniform > np.float64(exponential(logprob)) * reach:
        return n, reach
    value = np.float64(logprob) - math.log(-math.log(uniform))
    if n < k:
        heap[n], tokens[n] = value, token
        n += 1
        _rise(heap, tokens, n - 1)
    elif value > heap[0]:
        heap[0], tokens[0] = value, token
        _sink(heap, tokens, n)
    if n == k:
        # With a margin for the exponentials, which err by 1e-7.
        reach = math.exp(min(-heap[0], 700.0)) * 1.00001
    return n, reach


@kernel
def _mark(strip: F32, words: U32, reach: float) -> bool:
    """Which tokens' noise may do, 1 or 0 -> words, which hold the upper halves of their random words; whether
    any's does: 1 - u, rounded down a little, is not above its share of the reach."""
    found = np.uint32(0)
    share = np.float32(min(reach * 1.00001, 3e38))
    for i in range(strip.shape[0]):
        # The upper 24 bits of u, as a float32 of 23 that is never above 1 - u.
        high = np.float32(np.int32(words[i] >> np.uint32(8))) * np.float32(5.9604645e-8)
        weight = exponential(max(strip[i], np.float32(-88.0)))
        hit = np.uint32(np.float32(0.9999998) - high <= weight * share)
        words[i] = hit
        found |= hit
    return bool(found != 0)


@kernel
def _any(marks: U32) -> bool:
    hit = np.uint32(0)
    for i in range(marks.shape[0]):
        hit |= marks[i]
    return bool(hit != 0)


@kernel
def _any_listed(strip: F32) -> bool:
    """Whether any token of a strip may win while the reach is not deep."""
    hit = np.uint32(0)
    for i in range(strip.shape[0]):
        hit |= np.uint32(strip[i] >= LEAST)
    return bool(hit != 0)


@kernel
def _before(heap: F64, tokens: I64, a: int, b: int) -> bool:
    """Whether entry a is worse than b: lower, or of the same value and a higher token."""
    return bool(heap[a] < heap[b] or (heap[a] == heap[b] and tokens[a] > tokens[b]))


@kernel
def _swap(heap: F64, tokens: I64, a: int, b: int) -> None:
    heap[a], heap[b] = heap[b], heap[a]
    tokens[a], tokens[b] = tokens[b], tokens[a]


@kernel
def _rise(heap: F64, tokens: I64, at: int) -> None:
    while at > 0:
        above = (at - 1) // 2
        if not _before(heap, tokens, at, above):
            break
        _swap(heap, tokens, at, above)
        at = above


@kernel
def _sink(heap: F64, tokens: I64, n: int) -> None:
    at = 0
    while 2 * at + 1 < n:
        below = 2 * at + 1
        if below + 1 < n and _before(heap, tokens, below + 1, below):
            below += 1
        if not _before(heap, tokens, below, at):
            break
        _swap(heap, tokens, at, below)
        at = below


@kernel
def condition(values: F64, base: np.float64, maximum: np.float64) -> None:
    """Perturbed log-probabilities, and the condition on them (Kool et al. 2019, appendix B.3), in place."""
    best = np.float64(-np.inf)
    for i in range(values.shape[0]):
        values[i] = base + values[i]
        best = max(best, values[i])
    if maximum == np.inf:
        return
    for i in range(values.shape[0]):
        x = values[i] - best
        log_rest = math.log(-math.expm1(x)) if x > -0.6931471805599453 else math.log1p(-math.exp(x))
        if x == 0.0:
            log_rest = -np.inf
        v = maximum - values[i] + log_rest
        values[i] = maximum - max(0.0, v) - math.log1p(math.exp(-abs(v)))
