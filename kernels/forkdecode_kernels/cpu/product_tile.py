"""The inner loop of x @ weight.T: a tile of sums in vector registers, over a panel of the weight.

Written out with explicit vectors, as cpu/tile.py is, after the register blocking of Goto and van de
Geijn ("Anatomy of High-Performance Matrix Multiplication", 2008, section 6).

A panel holds the weights of a few outputs, input after input: a loop over inputs reads it from begin
to end. As float32 it is [K, outputs]. As bfloat16 two numbers share 32 bits, the upper half for the
output one vector further on, so that a shift or a mask widens a whole vector: [K, outputs / 2]. Both
give the same bits for the same weights: the inputs are taken in order, and each run of them is added to the
bias and the runs before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_FLOAT, _I64, _I32, _I16 = ir.FloatType(), ir.IntType(64), ir.IntType(32), ir.IntType(16)
_BYTE_POINTER = ir.IntType(8).as_pointer()
_NEVER = 1 << 32
RUN = 256
"""Inputs that are added up by themselves: a single sum over thousands would lose digits."""


@dataclass(frozen=True, slots=True)
class Shape:
    """lanes: numbers of a vector; vectors: of a panel's width; rows: tiles there are, the largest first.

    ahead: how many bytes before their use weights are asked for. far: tiles of so many rows have the time
    to ask for those of another panel; widening bfloat16 leaves none.
    """

    lanes: int
    vectors: int
    rows: tuple[int, ...]
    ahead: int
    far: int = _NEVER

    @property
    def width(self) -> int:
        """Outputs of a panel."""
        return self.lanes * self.vectors


def _shape(half: bool) -> Shape:
    """As many sums as the registers hold: 32 of 16 numbers with AVX-512, else 16 of 8 (AVX2), for which
    NEON's 32 of 4 do as well."""
    ahead = 2048 if half else 4096
    if llvmlite.binding.get_host_cpu_features().get("avx512f"):
        return Shape(16, 2, (12, 8, 4, 2, 1), ahead) if half else Shape(16, 3, (8, 4, 2, 1), ahead, 8)
    return Shape(8, 2, (6, 4, 2, 1), ahead, _NEVER if half else 6)


FULL, HALF = _shape(half=False), _shape(half=True)


@dataclass(frozen=True, slots=True)
class _Tile:
    """What is in registers, and where its parts lie: addresses, and strides in bytes."""

    shape: Shape
    half: bool
    narrow: bool
    builder: ir.IRBuilder
    ask: ir.Value
    ask_step: ir.Value

    @property
    def vector(self) -> ir.Type:
        return ir.VectorType(_FLOAT, self.shape.lanes)

    @property
    def bits(self) -> ir.Type:
        return ir.VectorType(_I32, self.shape.lanes)

    def pointer(self, address: ir.Value, offset: ir.Value | int, kind: ir.Type) -> ir.Value:
        offset = _I64(offset) if isinstance(offset, int) else offset
        return self.builder.inttoptr(self.builder.add(address, offset), kind.as_pointer())

    def all(self, number: int) -> ir.Constant:
        return ir.Constant(self.bits, [number] * self.shape.lanes)

    def splat(self, value: ir.Value, kind: ir.Type) -> ir.Value:
        nothing, lanes = ir.Constant(kind, ir.Undefined), ir.VectorType(_I32, self.shape.lanes)
        zeros = ir.Constant(lanes, [0] * self.shape.lanes)
        return self.builder.shuffle_vector(
            self.builder.insert_element(nothing, value, _I32(0)), nothing, zeros
        )

    def weights(self, line: ir.Value) -> list[ir.Value]:
        """The panel's numbers for one input, widened."""
        b, step = self.builder, 4 * self.shape.lanes
        if not self.half:
            return [
                b.load(self.pointer(line, v * step, self.vector), align=4) for v in range(self.shape.vectors)
            ]
        found = []
        for v in range(self.shape.vectors // 2):
            pair = b.load(self.pointer(line, v * step, self.bits), align=4)
            found.append(b.bitcast(b.shl(pair, self.all(16)), self.vector))
            found.append(b.bitcast(b.and_(pair, self.all(0xFFFF0000)), self.vector))
        return found

    def ask_ahead(self, i: ir.Value, rows: int) -> None:
        """Asks for this input's share of what is wanted next. Another panel is too large for the first cache
        level."""
        b, module = self.builder, self.builder.module
        kind = ir.FunctionType(ir.VoidType(), [_BYTE_POINTER, _I32, _I32, _I32])
        name = "llvm.prefetch.p0"
        prefetch = module.globals.get(name) or ir.Function(module, kind, name)
        share, lines = b.add(self.ask, b.mul(i, self.ask_step)), max(1, self.line_bytes // 64)
        level = 2 if rows >= self.shape.far else 3
        for n in range(lines):
            offset = b.udiv(b.mul(self.ask_step, _I64(n)), _I64(lines))
            b.call(prefetch, [self.pointer(share, offset, ir.IntType(8)), _I32(0), _I32(level), _I32(1)])

    @property
    def line_bytes(self) -> int:
        return self.shape.width * (2 if self.half else 4)

    def sums(self, rows: int, x: ir.Value, x_row: ir.Value, w: ir.Value, bias: ir.Value, k: ir.Value) -> Any:
        """bias + x[r] . panel for rows r, [rows][vectors]; leaves the builder after the loops."""
        b, cells = self.builder, [(r, v) for r in range(rows) for v in range(self.shape.vectors)]
        lines = [b.add(x, b.mul(x_row, _I64(r))) for r in range(rows)]
        first = [b.load(self.pointer(bias, 4 * self.shape.lanes * v, self.vector), align=4) for _, v in cells]
        before, runs, loop = b.block, b.append_basic_block("runs"), b.append_basic_block("inputs")
        added, done = b.append_basic_block("added"), b.append_basic_block("done")
        b.branch(runs)
        b.position_at_end(runs)
        start, totals = b.phi(_I64), [b.phi(self.vector) for _ in cells]
        end = b.add(start, _I64(RUN))
        end = b.select(b.icmp_signed("<", end, k), end, k)
        b.branch(loop)

        b.position_at_end(loop)
        i, sums = b.phi(_I64), [b.phi(self.vector) for _ in cells]
        line = b.add(w, b.mul(i, _I64(self.line_bytes)))
        self.ask_ahead(i, rows)
        right = self.weights(line)
        left = [
            self.splat(b.load(self.pointer(each, b.mul(i, _I64(4)), _FLOAT), align=4), self.vector)
            for each in lines
        ]
        # Contracted, a product and its addition are one rounding where the target has it.
        products = [b.fmul(left[r], right[v], flags=("contract",)) for r, v in cells]
        sums_on = [b.fadd(s, p, flags=("contract",)) for s, p in zip(sums, products, strict=True)]
        following = b.add(i, _I64(1))
        b.cbranch(b.icmp_signed("<", following, end), loop, added)

        b.position_at_end(added)
        totals_on = [b.fadd(t, s) for t, s in zip(totals, sums_on, strict=True)]
        b.cbranch(b.icmp_signed("<", end, k), runs, done)
        zero = ir.Constant(self.vector, [0.0] * self.shape.lanes)
        for phi, entering, going_on in zip(
            [start, *totals], [_I64(0), *first], [end, *totals_on], strict=True
        ):
            phi.add_incoming(entering, before)
            phi.add_incoming(going_on, added)
        for phi, entering, going_on in zip(
            [i, *sums], [start, *[zero] * len(cells)], [following, *sums_on], strict=True
        ):
            phi.add_incoming(entering, runs)
            phi.add_incoming(going_on, loop)
        b.position_at_end(done)
        vectors = self.shape.vectors
        return [totals_on[r * vectors : (r + 1) * vectors] for r in range(rows)]

    def put(self, added: Any, out: ir.Value, out_row: ir.Value, left: ir.Value) -> None:
        """Stores the sums, of the last panel only as many outputs as are left."""
        b, lanes = self.builder, self.shape.lanes
        kind = ir.VectorType(_I16, lanes) if self.narrow else self.vector
        size = 2 if self.narrow else 4
        places = [
            [
                self.pointer(out, b.add(b.mul(out_row, _I64(r)), _I64(size * lanes * v)), kind)
                for v in range(len(row))
            ]
            for r, row in enumerate(added)
        ]
        found = [[self.narrowed(s) if self.narrow else s for s in row] for row in added]
        with b.if_else(b.icmp_signed(">=", left, _I64(self.shape.width))) as (whole, part):
            with whole:
                for r, row in enumerate(found):
                    for v, value in enumerate(row):
                        b.store(value, places[r][v], align=size)
            with part:
                count = self.splat(b.trunc(left, _I32), self.bits)
                mask_type = ir.VectorType(ir.IntType(1), lanes)
                name = f"llvm.masked.store.v{lanes}{'i16' if self.narrow else 'f32'}.p0"
                signature = ir.FunctionType(ir.VoidType(), [kind, kind.as_pointer(), _I32, mask_type])
                store = b.module.globals.get(name) or ir.Function(b.module, signature, name)
                for v in range(self.shape.vectors):
                    at = ir.Constant(self.bits, [v * lanes + n for n in range(lanes)])
                    mask = b.icmp_signed("<", at, count)
                    for r, row in enumerate(found):
                        b.call(store, [row[v], places[r][v], _I32(size), mask])

    def narrowed(self, value: ir.Value) -> ir.Value:
        """float32 -> the bits of the nearest bfloat16, ties to even; NaN stays NaN."""
        b = self.builder
        bits = b.bitcast(value, self.bits)
        upper = b.lshr(bits, self.all(16))
        odd = b.and_(upper, self.all(1))
        rounded = b.lshr(b.add(b.add(bits, self.all(0x7FFF)), odd), self.all(16))
        kept = b.select(b.fcmp_unordered("uno", value, value), b.or_(upper, self.all(0x40)), rounded)
        return b.trunc(kept, ir.VectorType(_I16, self.shape.lanes))


def _emit(half: bool, narrow: bool) -> Callable[..., ir.Value]:
    """All tiles of a storage, the largest that has its rows chosen as it runs."""
    shape = HALF if half else FULL

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        given, x, x_row, w, bias, out, out_row, k, left, ask, ask_step = args[2:]
        tile = _Tile(shape, half, narrow, builder, ask, ask_step)
        end = builder.append_basic_block("end")
        came = []
        for rows in shape.rows:
            fits, smaller = builder.append_basic_block("tile"), builder.append_basic_block("smaller")
            builder.cbranch(builder.icmp_signed(">=", given, _I64(rows)), fits, smaller)
            builder.position_at_end(fits)
            tile.put(tile.sums(rows, x, x_row, w, bias, k), out, out_row, left)
            came.append((rows, builder.block))
            builder.branch(end)
            builder.position_at_end(smaller)
        came.append((0, builder.block))
        builder.branch(end)
        builder.position_at_end(end)
        done = builder.phi(_I64)
        for rows, block in came:
            done.add_incoming(_I64(rows), block)
        return done

    return emit


def _tile(
    typing_context: Any, half: Any, narrow: Any, rows: Any, x: Any, x_row: Any, w: Any, bias: Any, out: Any,
    out_row: Any, k: Any, left: Any, ask: Any, ask_step: Any,
) -> Any:  # fmt: skip
    if not (isinstance(half, types.Literal) and isinstance(narrow, types.Literal)):
        return None
    emit = _emit(bool(half.literal_value), bool(narrow.literal_value))
    return types.int64(half, narrow, *[types.int64] * 11), emit


tile: Any = intrinsic(prefer_literal=True)(_tile)
"""In kernels: the first of `rows` rows of x @ panel.T + bias; how many, the most that have a tile.

half, narrow: literal 0 or 1. x float32; w a panel, bfloat16 if `half`; bias float32, one a column;
out float32, or bfloat16 if `narrow`: addresses, and strides in bytes. k: inputs, at least one; left:
outputs from the panel's first on, the others are not written. ask: where weights lie that are wanted
next, ask_step: bytes of them for each input, which are asked for on the way.
"""
