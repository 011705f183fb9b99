"""What the compiled attention is handed besides its plan, as words, and the same inside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba.np.numpy_support import carray

from forkdecode_kernels.cpu.heads import THREAD_WORK
from forkdecode_kernels.cpu.pieces import PIECE, Scratch, padded
from forkdecode_kernels.cpu.selection.jit import inlined
from forkdecode_kernels.cpu.team import take_number
from forkdecode_kernels.cpu.vectors import LANES
from forkdecode_kernels.cpu.words import address_of, bits, memory, number, words_at

COMMON = 21
"""Words of `Operands.words`; those of the plan follow."""


@dataclass(frozen=True, slots=True)
class Operands:
    """query [H, T, D], kv [2, K, B, S, D] -> out [T, H, D], contiguous, all float32 or all bfloat16.

    softcap 0 is none; sinks [H] float32 or None. They must be there until the work is done.
    """

    query: torch.Tensor
    kv: torch.Tensor
    out: torch.Tensor
    scale: float
    softcap: float
    sinks: torch.Tensor | None

    @property
    def half(self) -> bool:
        return self.query.dtype == torch.bfloat16

    def threads(self, products: int) -> int:
        """On how many to run; products: query rows of a kv head times tokens."""
        enough = products * self.kv.shape[1] * self.kv.shape[4] * 2 >= 2 * THREAD_WORK
        return torch.get_num_threads() if enough else 1

    def scratch(self, query_rows: int, threads: int | None = None) -> torch.Tensor:
        """[threads, numbers] for up to so many query rows: zeros, for what pads a row is never written.
        threads: that run, all of torch's by default."""
        numbers = _numbers(*self._sizes(query_rows))
        return torch.zeros(threads or torch.get_num_threads(), numbers, dtype=torch.float32)

    def words(self, query_rows: int, scratch: torch.Tensor) -> tuple[int, ...]:
        """counter, counter of threads, query, kv, out, H, T, K, B, S, D, scale, softcap, sinks, how many,
        scratch of all threads, numbers of one, its columns, wide, G, copied."""
        sinks = (0, 0) if self.sinks is None else (self.sinks.data_ptr(), len(self.sinks))
        return (
            0, 0, self.query.data_ptr(), self.kv.data_ptr(), self.out.data_ptr(), *self.query.shape[:2],
            *self.kv.shape[1:], bits(self.scale), bits(self.softcap), *sinks,
            scratch.data_ptr(), scratch.shape[1], *self._sizes(query_rows),
        )  # fmt: skip

    def _sizes(self, query_rows: int) -> tuple[int, int, int, int]:
        _, kv_heads, _, size, dim = self.kv.shape
        return padded(query_rows), padded(dim), len(self.query) // kv_heads, max(size, PIECE)


def contiguous(
    query: torch.Tensor,
    kv: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> Operands:
    """Of a query of any strides: kernels are compiled for one layout. out is contiguous."""
    sinks = None if sinks is None else sinks.float().contiguous()
    return Operands(query.contiguous(), kv.contiguous(), out, scale, softcap or 0.0, sinks)


def _numbers(columns: int, wide: int, heads: int, copied: int) -> int:
    """How many float32 numbers _scratch_at takes."""
    return 3 * columns * wide + (PIECE + 3) * columns + heads * (PIECE + LANES) + copied * wide


@inlined
def operands_at(address: Any, kind: Any) -> Any:
    """In kernels: query, kv, out, scale, softcap, sinks, scratch of the thread that calls, from those words.

    kind: numpy's type of what is stored.
    """
    a = carray(address, COMMON)
    heads, tokens, kv_heads, size, dim = a[5], a[6], a[7], a[9], a[10]
    query = carray(memory(a[2]), (heads, tokens, dim), kind)
    kv = carray(memory(a[3]), (2, kv_heads, a[8], size, dim), kind)
    out = carray(memory(a[4]), (tokens, heads, dim), kind)
    sinks = carray(memory(a[13]), (a[14],), np.float32)
    thread = take_number(words_at(address_of(address) + 8))
    scratch = _scratch_at(a[15] + 4 * thread * a[16], a[17], a[18], a[19], a[20])
    return query, kv, out, number(a[11]), number(a[12]), sinks, scratch


@inlined
def _scratch_at(address: int, columns: int, wide: int, heads: int, copied: int) -> Scratch:
    """One thread's memory."""
    square, at = 4 * columns * wide, address
    lines = carray(memory(at), (columns, wide), np.float32)
    across = carray(memory(at + square), (wide, columns), np.float32)
    out = carray(memory(at + 2 * square), (columns, wide), np.float32)
    at += 3 * square
    scores = carray(memory(at), (PIECE, columns), np.float32)
    at += 4 * PIECE * columns
    alone = carray(memory(at), (heads, PIECE + LANES), np.float32)
    at += 4 * heads * (PIECE + LANES)
    buffer = carray(memory(at), (copied, wide), np.float32)
    state = carray(memory(at + 4 * copied * wide), (3, columns), np.float32)
    return Scratch(lines, across, out, scores, alone, buffer, state)
