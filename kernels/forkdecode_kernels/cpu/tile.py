"""Small matrix products inside compiled kernels, a tile of sums at a time in vector registers.

A compiler left to itself keeps the sums of a three-fold loop in memory. Here the tile's loop is
written out for it with explicit vectors (the register blocking of Goto and van de Geijn, "Anatomy of
High-Performance Matrix Multiplication", 2008, section 6), which any target then splits to its own.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic

from forkdecode_kernels.cpu.selection.jit import kernel
from forkdecode_kernels.cpu.vectors import (
    FLOAT,
    I64,
    LANES,
    VECTOR,
    Typed,
    at,
    fused,
    many,
    repeat,
    splat,
)

WIDE = bool(binding.get_host_cpu_features().get("avx512f"))
"""Whether a vector is one register, of 32. Elsewhere a tile has one vector's columns."""


def _tile(builder: ir.IRBuilder, rows: int, vectors: int, args: list[ir.Value]) -> None:
    """A tile of the product: `rows` rows and `vectors` * LANES columns."""
    a, a_row, a_k, b, b_k, c, c_row, k, onto = args
    cells = [(r, v) for r in range(rows) for v in range(vectors)]
    lines = [builder.add(a, builder.mul(a_row, I64(4 * r))) for r in range(rows)]
    places = [
        at(builder, c, builder.add(builder.mul(c_row, I64(r)), I64(v * LANES)), VECTOR) for r, v in cells
    ]
    keep = builder.trunc(onto, ir.IntType(1))
    start = [builder.select(keep, builder.load(place, align=4), many(0.0)) for place in places]

    def body(i: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        along, down = builder.mul(i, a_k), builder.mul(i, b_k)
        left = [splat(builder, builder.load(at(builder, line, along, FLOAT))) for line in lines]
        columns = [builder.add(down, I64(v * LANES)) for v in range(vectors)]
        right = [builder.load(at(builder, b, column, VECTOR), align=4) for column in columns]
        return [fused(builder, left[r], right[v], total) for (r, v), total in zip(cells, sums, strict=True)]

    for place, result in zip(places, repeat(builder, k, start, body), strict=True):
        builder.store(result, place, align=4)


def _panel(vectors: int, heights: tuple[int, ...]) -> Any:
    """The product for `vectors` * LANES columns: tiles of the first height while they fit, then of the next.

    Compiled to a function like `product`, without its columns.
    """

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Constant:
        a, a_row, a_k, b, b_k, c, c_row, rows, k, onto = args
        for height in heights:

            def body(i: ir.Value, at_row: list[ir.Value], height: int = height) -> list[ir.Value]:
                _tile(builder, height, vectors, [at_row[0], a_row, a_k, b, b_k, at_row[1], c_row, k, onto])
                down = I64(4 * height)
                return [
                    builder.add(place, builder.mul(stride, down))
                    for place, stride in zip(at_row, (a_row, c_row), strict=True)
                ]

            count = builder.sdiv(rows, I64(height))
            a, c = repeat(builder, count, [a, c], body)
            rows = builder.sub(rows, builder.mul(count, I64(height)))
        return context.get_dummy_value()

    def typing(
        typing_context: Any,
        a: Any,
        a_row: Any,
        a_k: Any,
        b: Any,
        b_k: Any,
        c: Any,
        c_row: Any,
        rows: Any,
        k: Any,
        onto: Any,
    ) -> Typed:
        return types.void(*[types.int64] * 10), emit

    return intrinsic(typing)


# As many sums as leave registers for one row of b and one number of a.
_panel_1, _panel_2 = _panel(1, (8, 4, 2, 1)), _panel(2, (8, 4, 2, 1))
_panel_3, _panel_4 = _panel(3, (8, 4, 2, 1)), _panel(4, (6, 3, 2, 1))


@kernel
def product(
    a: int,
    a_row: int,
    a_k: int,
    b: int,
    b_k: int,
    c: int,
    c_row: int,
    rows: int,
    columns: int,
    k: int,
    onto: int,
) -> None:
    """c[r, j] = onto * c[r, j] + sum over i < k of a[r * a_row + i * a_k] * b[i * b_k + j], j < columns.

    float32; a, b, c: addresses; strides in floats; columns a multiple of LANES; onto 0 or 1. c must not
    overlap a or b. Each sum is taken in the order of i, so that its bits don't depend on the tile it lies in.
    """
    left = columns // LANES
    while left > 0:
        if WIDE and (left == 4 or left >= 7):
            done = 4
            _panel_4(a, a_row, a_k, b, b_k, c, c_row, rows, k, onto)
        elif WIDE and left >= 3:
            done = 3
            _panel_3(a, a_row, a_k, b, b_k, c, c_row, rows, k, onto)
        elif WIDE and left == 2:
            done = 2
            _panel_2(a, a_row, a_k, b, b_k, c, c_row, rows, k, onto)
        else:
            done = 1
            _panel_1(a, a_row, a_k, b, b_k, c, c_row, rows, k, onto)
        b += 4 * LANES * done
        c += 4 * LANES * done
        left -= done
