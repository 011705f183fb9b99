"""x @ weight.T + bias by a kernel of our own: the weight is read once for all rows of a block, as a stream.

A row's sums don't depend on the tile it lies in, nor on the thread: its bits are the same whatever
rows are beside it, from one row on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from numba.np.numpy_support import carray

from forkdecode_kernels.cpu.product_tile import FULL, HALF, Shape, tile
from forkdecode_kernels.cpu.selection.jit import inlined
from forkdecode_kernels.cpu.team import Call, Work, compile_work, run_call, take_number

THREAD_WORK = 500_000
"""Multiplications worth waking the team: a product below takes some ten microseconds."""
_BLOCK_BYTES = 512 * 1024
"""Rows that stay in a core's own cache while all panels go over them."""
_SHARE = 4
"""Pieces of work a thread: one on a busy core delays nobody by more than a piece."""


@dataclass(frozen=True, slots=True)
class Panels:
    """A weight [N, K] as product_tile has it, and the bias, zeros where there is none."""

    memory: torch.Tensor
    bias: torch.Tensor
    outputs: int
    inputs: int

    @property
    def half(self) -> bool:
        """Whether it is stored as bfloat16."""
        return self.memory.dtype == torch.bfloat16

    @property
    def shape(self) -> Shape:
        return HALF if self.half else FULL


def pack(weight: torch.Tensor, bias: torch.Tensor | None, half: bool) -> Panels:
    """weight [N, K] on the CPU, bias [N]. half: as bfloat16, which the weight must be exactly."""
    shape = HALF if half else FULL
    outputs, inputs = weight.shape
    panels = -(-outputs // shape.width)
    memory = torch.zeros(panels, inputs, shape.width, dtype=torch.bfloat16 if half else torch.float32)
    padded = torch.zeros(panels * shape.width, dtype=torch.float32)
    if bias is not None:
        padded[:outputs] = bias
    whole = outputs // shape.width
    _fill(memory[:whole], weight[: whole * shape.width], shape, half)
    if whole < panels:
        rest = weight.new_zeros(shape.width, inputs)
        rest[: outputs - whole * shape.width] = weight[whole * shape.width :]
        _fill(memory[whole:], rest, shape, half)
    return Panels(memory, padded, outputs, inputs)


def _fill(memory: torch.Tensor, weight: torch.Tensor, shape: Shape, half: bool) -> None:
    """weight [panels * width, K] -> memory [panels, K, width]."""
    panels, inputs, width = memory.shape
    if half:
        pairs = weight.reshape(panels, shape.vectors // 2, 2, shape.lanes, inputs)
        memory.view(panels, inputs, shape.vectors // 2, shape.lanes, 2).copy_(pairs.permute(0, 4, 1, 3, 2))
    else:
        memory.copy_(weight.reshape(panels, width, inputs).transpose(1, 2))


def unpack(panels: Panels) -> torch.Tensor:
    """The weight [N, K], float32."""
    memory, shape = panels.memory.float(), panels.shape
    if panels.half:
        pairs = memory.view(*memory.shape[:2], shape.vectors // 2, shape.lanes, 2)
        memory = pairs.transpose(3, 4).reshape(memory.shape)
    return memory.transpose(1, 2).reshape(-1, panels.inputs)[: panels.outputs]


def product(x: torch.Tensor, panels: Panels) -> torch.Tensor:
    """x [T, K] float32 or bfloat16 -> [T, N] of its dtype; sums and bias in float32, rounded once."""
    out = x.new_empty(len(x), panels.outputs)
    if not out.numel():
        return out
    wide = x.float()
    if wide.stride(1) != 1 and panels.inputs > 1:
        wide = wide.contiguous()
    run_call(product_call(wide, panels, out))
    return out


def product_call(x: torch.Tensor, panels: Panels, out: torch.Tensor) -> Call:
    """x [T, K] float32 with rows of consecutive numbers -> out [T, N], float32 or bfloat16."""
    rows, shape = len(x), panels.shape
    enough = rows * panels.inputs * panels.outputs >= THREAD_WORK
    threads = torch.get_num_threads() if enough else 1
    block = max(1, _BLOCK_BYTES // (4 * panels.inputs) // shape.rows[0]) * shape.rows[0]
    count = len(panels.memory)
    group = count if threads == 1 else -(-count // (_SHARE * threads))
    arguments = (
        0, rows, panels.inputs, panels.outputs, x.data_ptr(), 4 * x.stride(0),
        panels.memory.data_ptr(), panels.bias.data_ptr(), out.data_ptr(), out.element_size(),
        block, group, shape.width, shape.far, shape.ahead,
    )  # fmt: skip
    return _work(panels.half, out.dtype == torch.bfloat16), arguments, threads


@inlined
def _over_panels(address: Any, half: int, narrow: int) -> None:
    """All tiles of the pieces that a thread takes: a block of rows and a group of panels each."""
    a = carray(address, 15)
    rows, inputs, outputs, x, x_row = a[1], a[2], a[3], a[4], a[5]
    weight, bias, out, size, block, group, width = a[6], a[7], a[8], a[9], a[10], a[11], a[12]
    far, ahead = a[13], a[14]
    line = width * (2 if half else 4)
    panel_bytes = line * inputs
    count = (outputs + width - 1) // width
    groups = (count + group - 1) // group
    pieces = groups * ((rows + block - 1) // block)
    piece = take_number(address)
    while piece < pieces:
        begin, first = piece // groups * block, piece % groups * group
        end, last = min(rows, begin + block), min(count, first + group)
        full = max(1, (end - begin) // far)
        for panel in range(first, last):
            w, b, y = weight + panel * panel_bytes, bias + panel * width * 4, out + panel * width * size
            # The first of several tiles would wait for memory: each asks for its part of the next panel.
            step = (line + full - 1) // full if panel + 1 < count else 0
            m, asked = begin, w + panel_bytes
            while m < end:
                if end - m < far:  # the panel is read for the only time, or lies in the second cache
                    asked, step = w + ahead, line
                m += tile(
                    half, narrow, end - m, x + m * x_row, x_row, w, b, y + m * outputs * size,
                    outputs * size, inputs, outputs - panel * width, asked, step,
                )  # fmt: skip
                asked += step * inputs
        piece = take_number(address)


def _full(address: Any) -> None:
    _over_panels(address, 0, 0)


def _full_narrow(address: Any) -> None:
    _over_panels(address, 0, 1)


def _half(address: Any) -> None:
    _over_panels(address, 1, 0)


def _half_narrow(address: Any) -> None:
    _over_panels(address, 1, 1)


@cache
def _work(half: bool, narrow: bool) -> Work:
    """Compiled when first wanted: a model needs one or two of them."""
    if half:
        return compile_work(_half_narrow if narrow else _half)
    return compile_work(_full_narrow if narrow else _full)
