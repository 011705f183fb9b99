"""Perturbed top-k in one pass a row: random bits for every token, logarithms for the few that may win.

A token's noise is -log(E), E = -log(u) >= 1 - u. So it can't beat the k-th best h so far unless 1 - u is
below exp(logprob - h), which is a product and a comparison: about k * log(V / k) tokens of a row get past.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.jit import entry, inlined, kernel
from forkdecode_kernels.cpu.selection.parallel import for_each_block
from forkdecode_kernels.cpu.selection.rows import exponential

ROWS_PER_BLOCK = 4
STRIP = 256
"""Tokens whose random bits are made together."""
LEAST = np.float32(-87.0)
GUMBEL_STREAM = 0xF3

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]

_LOW, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)


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
        words, bits = np.empty((4, STRIP), np.uint32), np.empty(STRIP, np.uint64)

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
                bits,
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
    bits: U64,
    tokens: I64,
    values: F64,
    found: I64,
) -> None:
    """Lists each row's k best in no order -> tokens, values [m, most]; their number -> found [m]."""
    for r in range(logprobs.shape[0]):
        n = _race(logprobs[r], lineage[r], np.uint64(position[r]), k[r], words, bits, tokens[r], values[r])
        found[r] = n
        condition(values[r, :n], base[r], maximum[r])


@inlined
def _race(
    row: F32, key: np.uint64, counter: np.uint64, k: int, words: U32, bits: U64, tokens: I64, heap: F64
) -> int:
    """The k best by logprob + noise as a heap, the worst at its root; returns how many there are."""
    n = 0
    # While the heap is not full every token enters it.
    reach = math.inf
    for start in range(0, row.shape[0], STRIP):
        strip = row[start : start + STRIP]
        if not _any_listed(strip):
            continue
        for i in range(strip.shape[0]):
            words[3, i] = np.uint32(start + i)
        _random_bits(key, counter, words, bits[: strip.shape[0]])
        if n == k and not _any_reaching(strip, bits, reach):
            continue
        for i in range(strip.shape[0]):
            n, reach = _offered(strip[i], bits[i], np.int64(start + i), n, k, reach, tokens, heap)
    return n


@kernel
def race_listed(
    ids: I32,
    logprobs: F32,
    key: np.uint64,
    counter: np.uint64,
    k: int,
    words: U32,
    bits: U64,
    tokens: I64,
    heap: F64,
) -> int:
    """What `_race` does of tokens ids with these log-probabilities: the same noise for each."""
    n = 0
    reach = math.inf
    for start in range(0, ids.shape[0], STRIP):
        strip = ids[start : start + STRIP]
        for i in range(strip.shape[0]):
            words[3, i] = np.uint32(strip[i])
        _random_bits(key, counter, words, bits[: strip.shape[0]])
        for i in range(strip.shape[0]):
            token = np.int64(strip[i])
            n, reach = _offered(logprobs[start + i], bits[i], token, n, k, reach, tokens, heap)
    return n


@kernel
def _offered(
    logprob: np.float32,
    word: np.uint64,
    token: np.int64,
    n: int,
    k: int,
    reach: float,
    tokens: I64,
    heap: F64,
) -> tuple[int, float]:
    """The heap's new size and reach after a token that may win or not."""
    if logprob < LEAST:
        return n, reach
    uniform = (np.float64(word >> np.uint64(12)) + 0.5) * 2.0**-52
    if n == k and 1.0 - uniform > np.float64(exponential(logprob)) * reach:
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
        reach = math.exp(-heap[0]) * 1.00001
    return n, reach


@kernel
def _random_bits(key: np.uint64, counter: np.uint64, words: U32, out: U64) -> None:
    """The random words of the tokens in words[3] under stream GUMBEL_STREAM: Philox4x32-10, round by round,
    so that the tokens of a strip go side by side. words [4, STRIP]: the state."""
    n = out.shape[0]
    x0, x1, x2, x3 = words[0, :n], words[1, :n], words[2, :n], words[3, :n]
    for i in range(n):
        x0[i], x1[i] = np.uint32(counter & _LOW), np.uint32(counter >> _SHIFT)
        x2[i] = np.uint32(GUMBEL_STREAM)
    k0, k1 = np.uint32(key & _LOW), np.uint32(key >> _SHIFT)
    for _ in range(10):
        for i in range(n):
            p0 = np.uint64(x0[i]) * np.uint64(0xD2511F53)
            p1 = np.uint64(x2[i]) * np.uint64(0xCD9E8D57)
            x0[i] = np.uint32(p1 >> _SHIFT) ^ x1[i] ^ k0
            x1[i] = np.uint32(p1)
            x2[i] = np.uint32(p0 >> _SHIFT) ^ x3[i] ^ k1
            x3[i] = np.uint32(p0)
        k0, k1 = np.uint32(k0 + np.uint32(0x9E3779B9)), np.uint32(k1 + np.uint32(0xBB67AE85))
    for i in range(n):
        out[i] = np.uint64(x0[i]) | (np.uint64(x1[i]) << _SHIFT)


@kernel
def _any_reaching(strip: F32, bits: U64, reach: float) -> bool:
    """Whether any token's noise may do: 1 - u, rounded down a little, is not above its share of the reach."""
    found = np.int32(0)
    share = np.float32(min(reach * 1.00001, 3e38))
    for i in range(strip.shape[0]):
        # The upper 24 bits of u, as a float32 of 23 that is never above 1 - u.
        high = np.float32(np.int32(bits[i] >> np.uint64(40))) * np.float32(5.9604645e-8)
        weight = exponential(max(strip[i], np.float32(-88.0)))
        found |= np.int32(np.float32(0.9999998) - high <= weight * share)
    return bool(found != 0)


@kernel
def _any_listed(strip: F32) -> bool:
    best = np.float32(-np.inf)
    for i in range(strip.shape[0]):
        best = max(best, strip[i])
    return bool(best >= LEAST)


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
