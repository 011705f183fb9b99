"""Which tokens each row may continue with: masks of logits, and which entry of a row's list a token is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection import allowed as cpu
from forkdecode_kernels.reference import allowed as reference
from forkdecode_kernels.transfer import to_device


@dataclass(frozen=True, slots=True)
class TokenLists:
    """Row r may continue with tokens[start[r] : stop[r]], which ascend, and if also[r] with also_ids.

    tokens [E] int32; start, stop [R] int64; also [R] bool, also_ids [n] int64. ends [E] bool, or [0] for
    none: entries that complete something. without_ends: such entries are left out.
    """

    tokens: NDArray[np.int32]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    ends: NDArray[np.bool_]
    also: NDArray[np.bool_]
    also_ids: NDArray[np.int64]
    without_ends: bool = False

    def part(self, first: int, last: int) -> TokenLists:
        """Rows first .. last."""
        own = slice(first, last)
        rows = (self.start[own], self.stop[own], self.ends, self.also[own])
        return TokenLists(self.tokens, *rows, self.also_ids, self.without_ends)

    def check(self, vocab: int) -> None:
        """Raises ValueError for ranges outside `tokens` and for ids outside the vocabulary."""
        filled = self.start < self.stop
        start, stop = self.start[filled], self.stop[filled]
        if len(start) and (start.min() < 0 or stop.max() > len(self.tokens)):
            raise ValueError(f"ranges reach outside the {len(self.tokens)} entries")
        known = np.concatenate([self.tokens[stop - 1], self.tokens[start], self.also_ids])
        if len(known) and (known.max() >= vocab or known.min() < 0):
            raise ValueError(f"an allowed token is not among the vocabulary's {vocab}")


def keep_listed(values: torch.Tensor, lists: TokenLists, *, threads: int = 1) -> None:
    """Sets what is not in its row's list to -inf; values [R, V] float32, in place."""
    lists.check(values.shape[1])
    if len(lists.start) != len(values):
        raise ValueError(f"lists of {len(lists.start)} rows for values {tuple(values.shape)}")
    if values.device.type == "cpu":
        cpu.keep_listed(values, lists.tokens, *_rows(lists), threads)
    else:
        reference.keep_listed(values, lists.tokens, *_rows(lists))


def keep_bits(values: torch.Tensor, words: NDArray[np.uint32], *, threads: int = 1) -> None:
    """Sets token t of row r to -inf unless bit t % 32 of words[r, t // 32] is set; values [R, V] float32,
    in place."""
    vocab = values.shape[1]
    if words.shape != (len(values), -(-vocab // 32)):
        raise ValueError(f"a mask of {len(values)} rows of {vocab} bits can't be {words.shape}")
    if values.device.type == "cpu":
        cpu.keep_bits(values, words, threads)
    elif values.device.type == "cuda":
        gpu_bits(values, words)
    else:
        reference.keep_bits(values, words)


def gpu_bits(values: torch.Tensor, words: NDArray[np.uint32]) -> None:
    """`keep_bits` by a Triton kernel; one copy to the device."""
    from forkdecode_kernels.triton import float_rows as fast

    rows, sent = to_device([np.arange(len(words)), words.view(np.int32)], values.device)
    fast.keep_bits(values, rows, sent)


def packed_lists(lists: TokenLists) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """tokens, start [R], stop [R] int32: what each row may continue with, of the lists no more than that, and
    what several rows share once. Unordered, and an id may stand twice."""
    spans = np.stack([lists.start, np.maximum(lists.start, lists.stop), lists.also], 1).astype(np.int64)
    each, which = np.unique(spans, axis=0, return_inverse=True)
    row, at = reference.entries(each[:, 0], each[:, 1])
    if lists.without_ends and len(lists.ends):
        row, at = row[~lists.ends[at]], at[~lists.ends[at]]
    beside = np.flatnonzero(each[:, 2])
    owner = np.concatenate([row, np.repeat(beside, len(lists.also_ids))])
    tokens = np.concatenate([lists.tokens[at], np.tile(lists.also_ids, len(beside))]).astype(np.int32)
    edges = np.searchsorted(np.sort(owner), np.arange(len(each) + 1)).astype(np.int32)
    which = which.ravel()
    return tokens[np.argsort(owner, kind="stable")], edges[which], edges[which + 1]


def find_entries(
    lists: TokenLists, rows: NDArray[np.int32] | NDArray[np.int64], tokens: NDArray[np.int64]
) -> NDArray[np.int64]:
    """[N] Which entry of `lists.tokens` tokens[i] is in the list of row rows[i]; -1 where it is none."""
    return cpu.find_entries(lists.tokens, lists.start, lists.stop, rows.astype(np.int64), tokens)


def count_open(lists: TokenLists) -> int:
    """How many entries of the rows' lists are not in `ends`."""
    return cpu.count_open(lists.start, lists.stop, lists.ends)


def lists_of_bits(words: NDArray[np.uint32], vocab: int, longest: int) -> TokenLists | None:
    """The tokens that `keep_bits` would keep, as lists; None where a row has more than `longest`."""
    if words.shape[1] != -(-vocab // 32):
        raise ValueError(f"a mask of {vocab} bits can't be {words.shape}")
    beyond = vocab % 32
    if beyond and (words[:, -1] >> np.uint32(beyond)).any():
        words = words.copy()
        words[:, -1] &= np.uint32((1 << beyond) - 1)
    found = cpu.lists_of_bits(words, longest)
    if found is None:
        return None
    tokens, edges = found
    none, nowhere = np.empty(0, np.bool_), np.zeros(len(words), np.bool_)
    return TokenLists(tokens, edges[:-1], edges[1:], none, nowhere, np.empty(0, np.int64))


def _rows(
    lists: TokenLists,
) -> tuple[
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.bool_],
    NDArray[np.bool_],
    NDArray[np.int64],
    bool,
]:
    return lists.start, lists.stop, lists.ends, lists.also, lists.also_ids, lists.without_ends
