"""Each row is read once: its largest number by its bits, then its codes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba.np.numpy_support import carray
from numpy.typing import NDArray

from forkdecode_kernels.cpu.half import Stored, widen
from forkdecode_kernels.cpu.layer_calls import threads_for
from forkdecode_kernels.cpu.layer_passes import check_stored
from forkdecode_kernels.cpu.layer_work import ROWS
from forkdecode_kernels.cpu.selection.jit import inlined
from forkdecode_kernels.cpu.team import Work, compile_work, run, take_number
from forkdecode_kernels.cpu.words import memory

_MAGNITUDE = np.int32(0x7FFFFFFF)
_NOT_FINITE = np.int32(0x7F800000)


def quantise_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See forkdecode_kernels.quantise."""
    check_stored(x)
    codes = torch.empty(x.shape, dtype=torch.uint8)
    scale = torch.empty(len(x), dtype=torch.float32)
    x = x.contiguous()
    arguments = (0, *x.shape, x.data_ptr(), codes.data_ptr(), scale.data_ptr())
    run(_work(x.dtype == torch.bfloat16), *arguments, threads=threads_for(x))
    return codes, scale


@inlined
def _quantise(x: Stored, codes: NDArray[np.uint8], scale: NDArray[np.float32], first: int, last: int) -> None:
    width = x.shape[1]
    row, peak = np.empty(width, np.float32), np.empty(1, np.float32)
    bits, peak_bits = row.view(np.int32), peak.view(np.int32)
    for t in range(first, last):
        for i in range(width):
            row[i] = widen(x[t, i])
        most = np.int32(0)
        for i in range(width):  # magnitudes are in the order of their bits, which compare faster
            most = max(most, np.int32(bits[i] & _MAGNITUDE))
        peak_bits[0] = most
        scale[t], inverse = np.float32(0.0), np.float32(0.0)
        if most >= _NOT_FINITE:
            scale[t] = np.nan
            row[:] = np.float32(0.0)
        elif peak[0] >= np.float32(1e-30):
            scale[t] = peak[0] / np.float32(127.0)
            inverse = np.float32(127.0) / peak[0]
        for i in range(width):
            codes[t, i] = np.uint8(np.int32(row[i] * inverse + np.float32(128.5)))


@inlined
def _over_rows(address: Any, kind: Any) -> None:
    """counter, rows, width, x, codes, scales."""
    a = carray(address, 6)
    rows, width = a[1], a[2]
    x, codes = carray(memory(a[3]), (rows, width), kind), carray(memory(a[4]), (rows, width), np.uint8)
    scale = carray(memory(a[5]), (rows,), np.float32)
    first = take_number(address) * ROWS
    while first < rows:
        _quantise(x, codes, scale, first, min(rows, first + ROWS))
        first = take_number(address) * ROWS


def _full(address: Any) -> None:
    _over_rows(address, np.float32)


def _half(address: Any) -> None:
    _over_rows(address, np.uint16)


@cache
def _work(half: bool) -> Work:
    """Compiled when first wanted."""
    return compile_work(_half if half else _full)
