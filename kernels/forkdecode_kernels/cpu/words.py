"""What work is handed: words of 64 bits that are counts, addresses or the bits of numbers."""

from __future__ import annotations

import struct
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

_WORD = types.int64


def bits(value: float) -> int:
    """A float32 as a word; `number` has it back."""
    return int(struct.unpack("<i", struct.pack("<f", value))[0])


def _number(typing_context: Any, word: Any) -> Any:
    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.bitcast(builder.trunc(args[0], ir.IntType(32)), ir.FloatType())

    return types.float32(_WORD), emit


def _memory(typing_context: Any, address: Any) -> Any:
    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(_WORD), emit


def _words_at(typing_context: Any, address: Any) -> Any:
    pointer: Any = types.CPointer(_WORD)  # type: ignore[no-untyped-call]

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.inttoptr(args[0], context.get_value_type(pointer))

    return pointer(_WORD), emit


def _address_of(typing_context: Any, pointer: Any) -> Any:
    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.ptrtoint(args[0], ir.IntType(64))

    return _WORD(pointer), emit


number: Any = intrinsic(_number)
"""In kernels: a word of `bits` -> float32."""
memory: Any = intrinsic(_memory)
"""In kernels: an address -> what carray takes."""
words_at: Any = intrinsic(_words_at)
"""In kernels: an address -> a pointer to words."""
address_of: Any = intrinsic(_address_of)
"""In kernels: a pointer -> its address."""
