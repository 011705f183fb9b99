"""numpy arrays as bytes: little-endian, rows first, with nothing beside but dtype and shape."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DTYPES = ("<i4", "<i8", "<u8", "<f4", "<f8", "|u1", "|b1")
"""Their places are part of the format: new ones go to the end."""
NUM_CODES = 32
"""Ext codes that arrays take: a dtype's place for one dimension, 16 more for any number of them."""
_BY_CODE = tuple(np.dtype(name) for name in _DTYPES)
_CODES = {dtype: code for code, dtype in enumerate(_BY_CODE)}
_ANY_SHAPE = NUM_CODES // 2
_BOOL = _CODES[np.dtype(np.bool_)]
_MAX_DIMS = 8


def pack_array(array: NDArray[Any]) -> tuple[int, bytes]:
    """(ext code, bytes). Raises TypeError for a dtype that no record has."""
    code = _CODES.get(array.dtype)
    if code is None:
        raise TypeError(f"arrays of {array.dtype} don't cross; only {', '.join(_DTYPES)}")
    if array.ndim == 1:
        return code, array.tobytes()
    shape = struct.pack(f"<B{array.ndim}Q", array.ndim, *array.shape)
    return _ANY_SHAPE + code, shape + array.tobytes()


def unpack_array(code: int, data: bytes) -> NDArray[Any]:
    """A writable array of its own. Raises ValueError for bytes that are none."""
    one_dimension = code < _ANY_SHAPE
    place = code if one_dimension else code - _ANY_SHAPE
    if place >= len(_BY_CODE):
        raise ValueError(f"{code} is no kind of array")
    dtype = _BY_CODE[place]
    if place == _BOOL:
        _check_bools(data if one_dimension else data[_shape(data)[1] :])
    if one_dimension:
        return np.frombuffer(data, dtype).copy()
    shape, start = _shape(data)
    if math.prod(shape) * dtype.itemsize != len(data) - start:
        raise ValueError(f"an array of shape {shape} and {len(data) - start} bytes")
    return np.frombuffer(data, dtype, offset=start).reshape(shape).copy()


def _shape(data: bytes) -> tuple[tuple[int, ...], int]:
    """The shape, and where the numbers begin."""
    if not data or data[0] > _MAX_DIMS or len(data) < 1 + 8 * data[0]:
        raise ValueError("an array without a shape")
    return struct.unpack_from(f"<{data[0]}Q", data, 1), 1 + 8 * data[0]


def _check_bools(data: bytes) -> None:
    if len(data) and int(np.frombuffer(data, np.uint8).max()) > 1:
        raise ValueError("a boolean that is neither 0 nor 1")
