"""Explicit vectors inside compiled kernels: sums of products along memory, maxima, exponentials.

A compiler left to itself takes half a register's width, and what is left over from an unrolled loop
one by one. Each is compiled to a function of addresses, strides and counts, in floats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 16
"""Floats in one vector; targets with shorter registers split it."""
FLOAT, I32, I64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
VECTOR, INTS = ir.VectorType(FLOAT, LANES), ir.VectorType(I32, LANES)
Typed = tuple[Any, Callable[..., Any]]


def at(builder: ir.IRBuilder, address: ir.Value, floats: ir.Value, kind: ir.Type) -> ir.Value:
    """A pointer to what lies `floats` numbers after an address."""
    return builder.inttoptr(builder.add(address, builder.mul(floats, I64(4))), kind.as_pointer())


def splat(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """A vector of one number."""
    nothing = ir.Constant(VECTOR, ir.Undefined)
    return builder.shuffle_vector(
        builder.insert_element(nothing, value, I32(0)), nothing, _lanes([0] * LANES)
    )


def many(value: float) -> ir.Constant:
    """A constant vector."""
    return ir.Constant(VECTOR, [value] * LANES)


def fused(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """a * b + c, as one rounding where the target has it."""
    return builder.fadd(builder.fmul(a, b, flags=("contract",)), c, flags=("contract",))


def repeat(
    builder: ir.IRBuilder,
    count: ir.Value,
    start: Sequence[ir.Value],
    body: Callable[[ir.Value, list[ir.Value]], Sequence[ir.Value]],
) -> list[ir.Value]:
    """for i in range(count): values = body(i, values), in registers; -> the last values."""
    before = builder.block
    loop, after = builder.append_basic_block("loop"), builder.append_basic_block("after")
    builder.cbranch(builder.icmp_signed(">", count, I64(0)), loop, after)
    builder.position_at_end(loop)
    i, values = builder.phi(I64), [builder.phi(each.type) for each in start]
    nexts = body(i, values)
    following, end = builder.add(i, I64(1)), builder.block
    for phi, first, last in zip([i, *values], [I64(0), *start], [following, *nexts], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(last, end)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, after)
    builder.position_at_end(after)
    results = [builder.phi(each.type) for each in start]
    for phi, first, last in zip(results, start, nexts, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(last, end)
    return results


def _dots(tokens: int) -> Any:
    """out[t] = sum over d < LANES * vectors of row[d] * keys[t * stride + d], for t < `tokens` <= LANES.

    Arguments row, keys, stride, vectors, out. A sum's order is that of its lanes, whatever `tokens` is.
    """

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Constant:
        row, keys, stride, vectors, out = args
        lines = [builder.add(keys, builder.mul(stride, I64(4 * t))) for t in range(tokens)]

        def body(i: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            here = builder.mul(i, I64(LANES))
            own = builder.load(at(builder, row, here, VECTOR), align=4)
            loads = [builder.load(at(builder, line, here, VECTOR), align=4) for line in lines]
            return [fused(builder, own, load, total) for load, total in zip(loads, sums, strict=True)]

        sums = repeat(builder, vectors, [many(0.0)] * tokens, body)
        total = _lane_sums(builder, sums + [many(0.0)] * (LANES - tokens))
        if tokens == LANES:
            builder.store(total, at(builder, out, I64(0), VECTOR), align=4)
        else:
            for t in range(tokens):
                builder.store(builder.extract_element(total, I32(t)), at(builder, out, I64(t), FLOAT))
        return context.get_dummy_value()

    def typing(typing_context: Any, row: Any, keys: Any, stride: Any, vectors: Any, out: Any) -> Typed:
        return types.void(*[types.int64] * 5), emit

    return intrinsic(typing)


def _lane_sums(builder: ir.IRBuilder, vectors: list[ir.Value]) -> ir.Value:
    """LANES vectors -> the sum of each one's lanes: two become one, halves onto halves, until one is left."""
    width = LANES // 2
    while len(vectors) > 1:
        # Of runs of 2 * width lanes: the first halves of both vectors, and the second ones.
        runs = range(0, LANES, 2 * width)
        first = _lanes([x + side for r in runs for side in (0, LANES) for x in range(r, r + width)])
        second = _lanes([x + side + width for r in runs for side in (0, LANES) for x in range(r, r + width)])
        half = len(vectors) // 2
        vectors = [
            builder.fadd(builder.shuffle_vector(a, b, first), builder.shuffle_vector(a, b, second))
            for a, b in zip(vectors[:half], vectors[half:], strict=True)
        ]
        width //= 2
    return vectors[0]


def _lanes(indices: Sequence[int]) -> ir.Constant:
    return ir.Constant(INTS, list(indices))


dots_16, dots_4, dots_1 = _dots(16), _dots(4), _dots(1)


def _weigh_columns(
    typing_context: Any, scores: Any, stride: Any, count: Any, state: Any, width: Any
) -> Typed:
    """A running softmax over the rows of scores [count, stride], for LANES columns side by side.

    state: largest score, sum of exponentials, and what the last call's largest did to what came before,
    each LANES floats, `width` apart. Scores become exponentials; they are added up in the order of rows.
    """

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Constant:
        scores, stride, count, state, width = args
        places = [at(builder, state, builder.mul(width, I64(i)), VECTOR) for i in range(3)]
        old, total = (builder.load(place, align=4) for place in places[:2])
        top = _largest(builder, scores, stride, count, old)
        factor = _exponential(builder, builder.fsub(old, top))
        total = _exponentials(builder, scores, stride, count, top, builder.fmul(total, factor))
        for value, place in zip((top, total, factor), places, strict=True):
            builder.store(value, place, align=4)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), emit


def _weigh_row(typing_context: Any, scores: Any, vectors: Any, state: Any, width: Any) -> Typed:
    """The same for one row of `vectors` * LANES scores; each part of the state is one float."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Constant:
        scores, vectors, state, width = args
        places = [at(builder, state, builder.mul(width, I64(i)), FLOAT) for i in range(3)]
        old, total = (builder.load(place) for place in places[:2])
        before = splat(builder, old)
        top = _fold(builder, _largest(builder, scores, I64(LANES), vectors, before), _larger)
        factor = builder.extract_element(_exponential(builder, builder.fsub(before, top)), I32(0))
        sums = _fold(
            builder, _exponentials(builder, scores, I64(LANES), vectors, top, many(0.0)), ir.IRBuilder.fadd
        )
        total = builder.fadd(builder.fmul(total, factor), builder.extract_element(sums, I32(0)))
        for value, place in zip((builder.extract_element(top, I32(0)), total, factor), places, strict=True):
            builder.store(value, place)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), emit


def _rescale(typing_context: Any, out: Any, vectors: Any, factors: Any, rows: Any) -> Typed:
    """out [rows, vectors * LANES] *= factors [rows], each row's own."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Constant:
        out, vectors, factors, rows = args

        def row(r: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            factor = splat(builder, builder.load(at(builder, factors, r, FLOAT)))

            def vector(i: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
                index = builder.mul(builder.add(builder.mul(r, vectors), i), I64(LANES))
                place = at(builder, out, index, VECTOR)
                builder.store(builder.fmul(builder.load(place, align=4), factor), place, align=4)
                return []

            return repeat(builder, vectors, [], vector)

        repeat(builder, rows, [], row)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), emit


def _larger(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """The larger of each two numbers; b where one is NaN."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


def _fold(
    builder: ir.IRBuilder, vector: ir.Value, join: Callable[[ir.IRBuilder, ir.Value, ir.Value], ir.Value]
) -> ir.Value:
    """All lanes joined, halves onto halves, in every lane."""
    half = LANES // 2
    while half > 0:
        turned = builder.shuffle_vector(vector, vector, _lanes([i ^ half for i in range(LANES)]))
        vector = join(builder, vector, turned)
        half //= 2
    return vector


def _largest(
    builder: ir.IRBuilder, lines: ir.Value, stride: ir.Value, count: ir.Value, start: ir.Value
) -> ir.Value:
    """The largest of `start` and `count` vectors, lane by lane; NaN is passed over."""

    def body(i: ir.Value, best: list[ir.Value]) -> list[ir.Value]:
        line = builder.load(at(builder, lines, builder.mul(i, stride), VECTOR), align=4)
        return [_larger(builder, line, best[0])]

    return repeat(builder, count, [start], body)[0]


def _exponentials(
    builder: ir.IRBuilder, lines: ir.Value, stride: ir.Value, count: ir.Value, top: ir.Value, start: ir.Value
) -> ir.Value:
    """`count` vectors become exp(them - top); -> start + their sum."""

    def body(i: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
        line = at(builder, lines, builder.mul(i, stride), VECTOR)
        value = _exponential(builder, builder.fsub(builder.load(line, align=4), top))
        builder.store(value, line, align=4)
        return [builder.fadd(sums[0], value)]

    return repeat(builder, count, [start], body)[0]


def _exponential(builder: ir.IRBuilder, z: ir.Value) -> ir.Value:
    """forkdecode_kernels.cpu.selection.rows.exponential, operation by operation."""
    clipped = builder.select(builder.fcmp_ordered("<", z, many(-88.0)), many(-88.0), z)
    shifted = fused(builder, clipped, many(1.4426950408889634), many(12582912.0))
    k = builder.fsub(shifted, many(12582912.0))
    r = fused(builder, k, many(-0.693359375), clipped)
    r = fused(builder, k, many(2.12194440e-4), r)
    p = many(0.001381459878757596)
    for factor in (
        0.008368716575205326,
        0.04166838899254799,
        0.1666652113199234,
        0.4999999403953552,
        1.0,
        1.0,
    ):
        p = fused(builder, p, r, many(factor))
    bits = builder.add(builder.bitcast(shifted, INTS), ir.Constant(INTS, [127] * LANES))
    return builder.fmul(p, builder.bitcast(builder.shl(bits, ir.Constant(INTS, [23] * LANES)), VECTOR))


weigh_columns: Any = intrinsic(_weigh_columns)
weigh_row: Any = intrinsic(_weigh_row)
rescale: Any = intrinsic(_rescale)
