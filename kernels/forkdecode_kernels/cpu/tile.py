"""Small matrix products inside compiled kernels, a tile of sums at a time in vector registers.

A compiler left to itself keeps the sums of a three-fold loop in memory. Here the tile's loop is
written out for it with explicit vectors (the register blocking of Goto and van de Geijn, "Anatomy of
High-Performance Matrix Multiplication", 2008, section 6), which any target then splits to its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from forkdecode_kernels.cpu.selection.jit import kernel

LANES = 16
"""Columns of a product come in multiples of this."""
_FLOAT, _I64 = ir.FloatType(), ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, LANES)


def _tile(rows: int, vectors: int) -> Any:
    """c[r, :] += sum over i < k of a[r, i] * b[i, :], for `rows` rows and `vectors` * LANES columns.

    Compiled to a function of addresses and strides in floats (a, a_row, a_k, b, b_k, c, c_row, k).
    Each sum is taken in the order of i, so that its bits don't depend on the tile it lies in.
    """

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Constant:
        a, a_row, a_k, b, b_k, c, c_row, k = args
        cells = [(r, v) for r in range(rows) for v in range(vectors)]
        places = [
            _at(builder, c, builder.add(builder.mul(c_row, _I64(r)), _I64(v * LANES)), _VECTOR)
            for r, v in cells
        ]
        start = [builder.load(place, align=4) for place in places]
        before = builder.block
        loop, after = builder.append_basic_block("tile"), builder.append_basic_block("tile_end")
        builder.cbranch(builder.icmp_signed(">", k, _I64(0)), loop, after)

        builder.position_at_end(loop)
        i, sums = builder.phi(_I64), [builder.phi(_VECTOR) for _ in cells]
        here = [builder.add(builder.mul(a_row, _I64(r)), builder.mul(i, a_k)) for r in range(rows)]
        left = [_splat(builder, builder.load(_at(builder, a, each, _FLOAT))) for each in here]
        line = [builder.add(builder.mul(i, b_k), _I64(v * LANES)) for v in range(vectors)]
        right = [builder.load(_at(builder, b, each, _VECTOR), align=4) for each in line]
        # Contracted, a product and its addition are one rounding where the target has it.
        products = [builder.fmul(left[r], right[v], flags=("contract",)) for r, v in cells]
        added = [
            builder.fadd(total, each, flags=("contract",)) for total, each in zip(sums, products, strict=True)
        ]
        following = builder.add(i, _I64(1))
        for phi, first, next_ in zip([i, *sums], [_I64(0), *start], [following, *added], strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(next_, loop)
        builder.cbranch(builder.icmp_signed("<", following, k), loop, after)

        builder.position_at_end(after)
        results = [builder.phi(_VECTOR) for _ in cells]
        for phi, first, last in zip(results, start, added, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(last, loop)
        for place, result in zip(places, results, strict=True):
            builder.store(result, place, align=4)
        return context.get_dummy_value()

    def typing(
        typing_context: Any, a: Any, a_row: Any, a_k: Any, b: Any, b_k: Any, c: Any, c_row: Any, k: Any
    ) -> tuple[Any, Callable[..., Any]]:
        return types.void(*[types.int64] * 8), emit

    return intrinsic(typing)


def _at(builder: ir.IRBuilder, address: ir.Value, floats: ir.Value, kind: ir.Type) -> ir.Value:
    """A pointer to what lies `floats` numbers after an address."""
    return builder.inttoptr(builder.add(address, builder.mul(floats, _I64(4))), kind.as_pointer())


def _splat(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """A vector of one number."""
    nothing, first = ir.Constant(_VECTOR, ir.Undefined), ir.IntType(32)(0)
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(builder.insert_element(nothing, value, first), nothing, zeros)


_tile_1_1, _tile_2_1, _tile_3_1, _tile_8_1 = _tile(1, 1), _tile(2, 1), _tile(3, 1), _tile(8, 1)
_tile_1_2, _tile_2_2, _tile_3_2, _tile_4_2 = _tile(1, 2), _tile(2, 2), _tile(3, 2), _tile(4, 2)


@kernel
def product(
    a: int, a_row: int, a_k: int, b: int, b_k: int, c: int, c_row: int, rows: int, columns: int, k: int
) -> None:
    """c[r, j] += sum over i < k of a[r * a_row + i * a_k] * b[i * b_k + j], float32, j < columns.

    a, b, c: addresses; strides in floats; columns a multiple of LANES. c must not overlap a or b.
    """
    left = columns
    while left > 0:
        wide = left >= 2 * LANES
        x, y, r = a, c, rows
        while r > 0:
            n = min(r, 4 if wide else 8)
            if wide:
                if n == 4:
                    _tile_4_2(x, a_row, a_k, b, b_k, y, c_row, k)
                elif n == 3:
                    _tile_3_2(x, a_row, a_k, b, b_k, y, c_row, k)
                elif n == 2:
                    _tile_2_2(x, a_row, a_k, b, b_k, y, c_row, k)
                else:
                    _tile_1_2(x, a_row, a_k, b, b_k, y, c_row, k)
            elif n == 8:
                _tile_8_1(x, a_row, a_k, b, b_k, y, c_row, k)
            elif n >= 3:
                n = 3
                _tile_3_1(x, a_row, a_k, b, b_k, y, c_row, k)
            elif n == 2:
                _tile_2_1(x, a_row, a_k, b, b_k, y, c_row, k)
            else:
                _tile_1_1(x, a_row, a_k, b, b_k, y, c_row, k)
            x += 4 * n * a_row
            y += 4 * n * c_row
            r -= n
        done = 2 * LANES if wide else LANES
        b += 4 * done
        c += 4 * done
        left -= done
