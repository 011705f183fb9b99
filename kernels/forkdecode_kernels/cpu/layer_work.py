"""A decoder layer's compiled passes as work for a tape: the functions of cpu/layers.py and cpu/attend.py, on
memory that is given by its address."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba.np.numpy_support import carray

from forkdecode_kernels.cpu.half import widen
from forkdecode_kernels.cpu.layers import add_norm_rows, gelu_rows, silu_rows, split_rows
from forkdecode_kernels.cpu.selection.jit import inlined
from forkdecode_kernels.cpu.team import Work, compile_work, take_number
from forkdecode_kernels.cpu.words import memory, number

ROWS = 32
"""Rows that a thread takes at a time."""
NUMBERS = 1 << 14
"""Numbers that it takes where rows don't matter."""


@inlined
def _norm(address: Any, kind: Any) -> None:
    """counter, rows, width, hidden, delta, rows of it (or 0), weight, delta's weight, width of that (or 0),
    eps, out."""
    a = carray(address, 11)
    rows, width = a[1], a[2]
    hidden, out = carray(memory(a[3]), (rows, width), kind), carray(memory(a[10]), (rows, width), kind)
    delta = carray(memory(a[4]), (a[5], width), kind)
    weight, own = carray(memory(a[6]), (width,), np.float32), carray(memory(a[7]), (a[8],), np.float32)
    first = take_number(address) * ROWS
    while first < rows:
        add_norm_rows(hidden, delta, weight, own, number(a[9]), out, first, min(rows, first + ROWS))
        first = take_number(address) * ROWS


@inlined
def _gate(address: Any, kind: Any, gelu: bool) -> None:
    """counter, rows, width, gate and up, out."""
    a = carray(address, 5)
    rows, width = a[1], a[2]
    both, out = carray(memory(a[3]), (rows, 2 * width), kind), carray(memory(a[4]), (rows, width), kind)
    first = take_number(address) * ROWS
    while first < rows:
        if gelu:
            gelu_rows(both, out, first, min(rows, first + ROWS))
        else:
            silu_rows(both, out, first, min(rows, first + ROWS))
        first = take_number(address) * ROWS


@inlined
def _rotate(address: Any, kind: Any) -> None:
    """counter, tokens T, H, K, places, D, half, qkv, kv, cos, sin, slots, n of them, query weight, key
    weight, width of both (or 0), eps, query."""
    a = carray(address, 18)
    rows, heads, kv_heads, places, dim, half = a[1], a[2], a[3], a[4], a[5], a[6]
    qkv = carray(memory(a[7]), (rows, (heads + 2 * kv_heads) * dim), kind)
    kv = carray(memory(a[8]), (2, kv_heads, places, dim), kind)
    cos = carray(memory(a[9]), (rows, half), np.float32)
    sin = carray(memory(a[10]), (rows, half), np.float32)
    slots = carray(memory(a[11]), (a[12],), np.int64)
    own = carray(memory(a[13]), (a[15],), np.float32)
    key = carray(memory(a[14]), (a[15],), np.float32)
    query = carray(memory(a[17]), (heads, rows, dim), kind)
    first = take_number(address) * ROWS
    while first < rows:
        last = min(rows, first + ROWS)
        split_rows(qkv, kv, cos, sin, slots, own, key, number(a[16]), query, first, last)
        first = take_number(address) * ROWS


@inlined
def _widen(address: Any) -> None:
    """counter, numbers, bfloat16 ones, out."""
    a = carray(address, 4)
    count = a[1]
    narrow, out = carray(memory(a[2]), (count,), np.uint16), carray(memory(a[3]), (count,), np.float32)
    first = take_number(address) * NUMBERS
    while first < count:
        some, wide = narrow[first : first + NUMBERS], out[first : first + NUMBERS]
        for i in range(some.shape[0]):
            wide[i] = widen(some[i])
        first = take_number(address) * NUMBERS


def _norm_full(address: Any) -> None:
    _norm(address, np.float32)


def _norm_half(address: Any) -> None:
    _norm(address, np.uint16)


def _silu_full(address: Any) -> None:
    _gate(address, np.float32, False)


def _silu_half(address: Any) -> None:
    _gate(address, np.uint16, False)


def _gelu_full(address: Any) -> None:
    _gate(address, np.float32, True)


def _gelu_half(address: Any) -> None:
    _gate(address, np.uint16, True)


def _rotate_full(address: Any) -> None:
    _rotate(address, np.float32)


def _rotate_half(address: Any) -> None:
    _rotate(address, np.uint16)


def _widen_half(address: Any) -> None:
    _widen(address)


@cache
def norm_work(half: bool) -> Work:
    """add_norm_rows; each is compiled when first wanted. half: of bfloat16 numbers."""
    return compile_work(_norm_half if half else _norm_full)


@cache
def gate_work(activation: str, half: bool) -> Work:
    """silu_rows or gelu_rows."""
    if activation == "silu":
        return compile_work(_silu_half if half else _silu_full)
    return compile_work(_gelu_half if half else _gelu_full)


@cache
def rotate_work(half: bool) -> Work:
    """split_rows."""
    return compile_work(_rotate_half if half else _rotate_full)


@cache
def widen_work() -> Work:
    """bfloat16 numbers as float32 ones."""
    return compile_work(_widen_half)
