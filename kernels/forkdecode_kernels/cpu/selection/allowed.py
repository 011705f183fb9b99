"""Masks by lists and by bits, written once over each row; entries found by binary search."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.jit import entry, kernel
from forkdecode_kernels.cpu.selection.parallel import for_each_block

ROWS_PER_BLOCK = 16

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
U32 = NDArray[np.uint32]


def read_only(array: Any) -> Any:
    """The same memory, always of one type for the compiler: arrays mapped from a file can't be written."""
    view = np.ascontiguousarray(array).view(np.ndarray)
    view.flags.writeable = False
    return view


def keep_listed(
    values: torch.Tensor,
    tokens: I32,
    start: I64,
    stop: I64,
    ends: Bools,
    also: Bools,
    also_ids: I64,
    without_ends: bool,
    threads: int,
) -> None:
    """See forkdecode_kernels.allowed."""
    rows = values.numpy()
    tokens, start, stop, ends, also, also_ids = map(read_only, (tokens, start, stop, ends, also, also_ids))
    skips = without_ends and len(ends) > 0

    def work(first: int, last: int) -> None:
        own = slice(first, last)
        _keep_listed(rows[own], tokens, start[own], stop[own], ends, also[own], also_ids, skips)

    for_each_block(len(rows), ROWS_PER_BLOCK, threads, lambda: work)


def keep_bits(values: torch.Tensor, words: U32, threads: int) -> None:
    """See forkdecode_kernels.allowed."""
    rows, words = values.numpy(), read_only(words)
    for_each_block(
        len(rows),
        ROWS_PER_BLOCK,
        threads,
        lambda: lambda first, last: _keep_bits(rows[first:last], words[first:last]),
    )


def find_entries(tokens: I32, start: I64, stop: I64, rows: I64, wanted: I64) -> I64:
    """See forkdecode_kernels.allowed."""
    found = np.empty(len(wanted), np.int64)
    tokens, start, stop, rows, wanted = map(read_only, (tokens, start, stop, rows, wanted))
    _find_entries(tokens, start, stop, rows, wanted, found)
    return found


def count_open(start: I64, stop: I64, ends: Bools) -> int:
    """See forkdecode_kernels.allowed."""
    return int(_count_open(*map(read_only, (start, stop, ends))))


def lists_of_bits(words: U32, longest: int) -> tuple[I32, I64] | None:
    """See forkdecode_kernels.allowed: tokens, and where each row's begin."""
    edges = np.zeros(len(words) + 1, np.int64)
    words = read_only(words)
    if not _count_bits(words, longest, edges):
        return None
    tokens = np.empty(int(edges[-1]), np.int32)
    _list_bits(words, edges, tokens)
    return tokens, edges


@entry
def _count_bits(words: U32, longest: int, edges: I64) -> bool:
    """Where each row's tokens begin among all -> edges [R + 1]; whether no row has more than `longest`."""
    for r in range(words.shape[0]):
        count = 0
        for w in range(words.shape[1]):
            word = words[r, w]
            while word != np.uint32(0):
                word &= word - np.uint32(1)
                count += 1
            if count > longest:
                return False
        edges[r + 1] = edges[r] + count
    return True


@entry
def _list_bits(words: U32, edges: I64, tokens: I32) -> None:
    for r in range(words.shape[0]):
        n = edges[r]
        for w in range(words.shape[1]):
            word = words[r, w]
            t = np.int32(32 * w)
            while word != np.uint32(0):
                if word & np.uint32(1):
                    tokens[n] = t
                    n += 1
                word >>= np.uint32(1)
                t += np.int32(1)


@entry
def _keep_listed(
    values: F32, tokens: I32, start: I64, stop: I64, ends: Bools, also: Bools, also_ids: I64, skips: bool
) -> None:
    nothing = np.float32(-np.inf)
    saved = np.empty(also_ids.shape[0], np.float32)
    for r in range(values.shape[0]):
        row = values[r]
        for i in range(also_ids.shape[0]):
            saved[i] = row[also_ids[i]]
        done = 0
        for e in range(start[r], stop[r]):
            if skips and ends[e]:
                continue
            token = tokens[e]
            row[done:token] = nothing
            done = token + 1
        row[done:] = nothing
        if also[r]:
            for i in range(also_ids.shape[0]):
                row[also_ids[i]] = saved[i]


@entry
def _keep_bits(values: F32, words: U32) -> None:
    nothing = np.float32(-np.inf)
    vocab = values.shape[1]
    for r in range(values.shape[0]):
        for w in range(words.shape[1]):
            word = words[r, w]
            if word == np.uint32(0xFFFFFFFF):
                continue
            first = w * 32
            last = min(vocab, first + 32)
            if word == np.uint32(0):
                values[r, first:last] = nothing
            else:
                for t in range(first, last):
                    if not (word >> np.uint32(t - first)) & np.uint32(1):
                        values[r, t] = nothing


@kernel
def place_of(tokens: I32, start: int, stop: int, wanted: int) -> int:
    """Where `wanted` stands in tokens[start:stop], which ascend; -1 if it does not."""
    low, high = start, stop
    while low < high:
        middle = (low + high) // 2
        if tokens[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low if low < stop and tokens[low] == wanted else -1


@entry
def _find_entries(tokens: I32, start: I64, stop: I64, rows: I64, wanted: I64, found: I64) -> None:
    for i in range(wanted.shape[0]):
        found[i] = place_of(tokens, start[rows[i]], stop[rows[i]], wanted[i])


@entry
def _count_open(start: I64, stop: I64, ends: Bools) -> int:
    total = 0
    for r in range(start.shape[0]):
        for e in range(start[r], stop[r]):
            if ends.shape[0] == 0 or not ends[e]:
                total += 1
    return total
