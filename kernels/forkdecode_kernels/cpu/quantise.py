"""Each row is read once: its largest number by its bits, then its codes."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.cpu.half import Stored, stored, widen
from forkdecode_kernels.cpu.layers import run_rows
from forkdecode_kernels.cpu.selection.jit import entry

_MAGNITUDE = np.int32(0x7FFFFFFF)
_NOT_FINITE = np.int32(0x7F800000)


def quantise_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See forkdecode_kernels.quantise."""
    codes = torch.empty(x.shape, dtype=torch.uint8)
    scale = torch.empty(len(x), dtype=torch.float32)
    rows, out, scales = stored(x), codes.numpy(), scale.numpy()

    def work(first: int, last: int) -> None:
        _quantise(rows, out, scales, first, last)

    run_rows(len(rows), rows.size, work)
    return codes, scale


@entry
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
