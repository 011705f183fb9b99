"""One pass each over a row of logits: conversion, tile maxima, exponentials and their sums.

Floats are compared as integers that order the same way (the sign
bit's complement trick, Knuth TAOCP 4.2.1's ordered representation): integer maxima vectorise
without giving up NaN, which shows up beyond the infinities.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.jit import entry, fused, kernel

TILE = 64
"""Tokens that share a maximum."""
CHUNK = 512
"""Tokens whose exponentials are summed in float32; chunks are added in float64."""
POSITIVE_INFINITY = 0x7F800000
NEGATIVE_INFINITY_KEY = -0x7F800001
"""Ordered integer of -inf."""

F32 = NDArray[np.float32]


def as_numpy(logits: torch.Tensor) -> NDArray[np.generic]:
    """The tensor's memory as numpy: bfloat16, which numpy lacks, as its bits in uint16."""
    logits = logits.detach()
    if logits.dtype == torch.bfloat16:
        return logits.view(torch.uint16).numpy()
    return logits.numpy()


def is_ready(source: NDArray[np.generic]) -> bool:
    """Whether the kernels can read it as it is: float32, rows one after the other."""
    return source.dtype == np.float32 and source.flags.c_contiguous


def to_float32(rows: NDArray[np.generic], out: F32 | None = None) -> F32:
    """[n, V] as `as_numpy` gives it -> float32 in C order: into `out`, or copied only if need be."""
    if rows.dtype == np.uint16:
        out = np.empty(rows.shape, np.float32) if out is None else out
        _widen(np.ascontiguousarray(rows), out.view(np.uint32))
        return out
    if out is None:
        return np.ascontiguousarray(rows, np.float32)
    out[...] = rows
    return out


@entry
def _widen(bits: NDArray[np.generic], out: NDArray[np.uint32]) -> None:
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = np.uint32(bits[i, j]) << np.uint32(16)


@kernel
def ordered(value: np.float32) -> np.int32:
    """float32 -> int32 that orders the same way."""
    bits = np.float32(value).view(np.int32)
    return np.int32(bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@kernel
def unordered(key: np.int32) -> np.float32:
    """The float32 that `ordered` came from."""
    bits = np.int32(key ^ ((key >> np.int32(31)) & np.int32(0x7FFFFFFF)))
    return np.int32(bits).view(np.float32)


@kernel
def tile_maxima(row: F32, tiles: NDArray[np.int32]) -> tuple[np.int32, bool]:
    """Ordered maximum of each tile -> tiles; returns that of the row, and whether NaN or +inf is in it."""
    bits = row.view(np.int32)
    best = np.int32(-0x80000000)
    magnitude = np.int32(0)
    for t in range(tiles.shape[0]):
        top, largest = _extremes(bits[t * TILE : (t + 1) * TILE])
        tiles[t] = top
        best = max(best, top)
        magnitude = max(magnitude, largest)
    return best, bool((magnitude > POSITIVE_INFINITY) or (best >= POSITIVE_INFINITY))


@kernel
def _extremes(bits: NDArray[np.int32]) -> tuple[np.int32, np.int32]:
    top = np.int32(-0x80000000)
    largest = np.int32(0)
    for i in range(bits.shape[0]):
        b = bits[i]
        top = max(top, np.int32(b ^ ((b >> np.int32(31)) & np.int32(0x7FFFFFFF))))
        largest = max(largest, np.int32(b & np.int32(0x7FFFFFFF)))
    return top, largest


@fused
def exponential(z: np.float32) -> np.float32:
    """exp(z) for z <= 0, relative error about 1e-7; 0 below -87.7.

    Two-constant range reduction (Cody and Waite 1980) to |r| <= ln(2) / 2, there a minimax
    polynomial of degree 6 (error 3e-9), then 2^k put together from its bits.
    """
    # At -88 the exponent field below becomes 0, and with it the result.
    clipped = max(z, np.float32(-88.0))
    # Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
    shifted = clipped * np.float32(1.4426950408889634) + np.float32(12582912.0)
    k = shifted - np.float32(12582912.0)
    r = clipped - k * np.float32(0.693359375)
    r = r + k * np.float32(2.12194440e-4)
    p = np.float32(0.001381459878757596) * r + np.float32(0.008368716575205326)
    p = p * r + np.float32(0.04166838899254799)
    p = p * r + np.float32(0.1666652113199234)
    p = p * r + np.float32(0.4999999403953552)
    p = p * r + np.float32(1.0)
    p = p * r + np.float32(1.0)
    power = np.int32((np.float32(shifted).view(np.int32) + np.int32(127)) << np.int32(23)).view(np.float32)
    return np.float32(p * power)


@kernel
def fold(buffer: F32) -> np.float32:
    """The sum of CHUNK values, which are overwritten: the upper half onto the lower, again and again.

    Additions side by side vectorise in strict arithmetic, and always in this order. A loop that the
    compiler may reorder adds up differently where it is inlined differently.
    """
    half = CHUNK // 2
    while half > 0:
        for i in range(half):
            buffer[i] += buffer[half + i]
        half //= 2
    return np.float32(buffer[0])


@kernel
def sum_exponentials(row: F32, maximum: np.float32) -> np.float64:
    """sum(exp(row - maximum)): float32 inside a chunk, float64 across."""
    buffer = np.empty(CHUNK, np.float32)
    total = np.float64(0.0)
    for start in range(0, row.shape[0], CHUNK):
        values = row[start : start + CHUNK]
        for i in range(values.shape[0]):
            buffer[i] = exponential(values[i] - maximum)
        buffer[values.shape[0] :] = np.float32(0.0)
        total += np.float64(fold(buffer))
    return total


@kernel
def exponentials(
    row: F32, maximum: np.float32, scale: np.float32, out: F32, sums: NDArray[np.float64]
) -> np.float64:
    """exp((row - maximum) * scale) -> out [V], its sum over each chunk -> sums; returns the whole sum."""
    buffer = np.empty(CHUNK, np.float32)
    total = np.float64(0.0)
    for c in range(sums.shape[0]):
        values, exps = row[c * CHUNK : (c + 1) * CHUNK], out[c * CHUNK : (c + 1) * CHUNK]
        for i in range(values.shape[0]):
            e = exponential((values[i] - maximum) * scale)
            exps[i] = e
            buffer[i] = e
        buffer[values.shape[0] :] = np.float32(0.0)
        sums[c] = np.float64(fold(buffer))
        total += sums[c]
    return total


@kernel
def sum_below(weights: F32, bound: np.float32) -> np.float64:
    """The sum of the weights [V] below a bound."""
    buffer = np.empty(CHUNK, np.float32)
    total = np.float64(0.0)
    for start in range(0, weights.shape[0], CHUNK):
        values = weights[start : start + CHUNK]
        for i in range(values.shape[0]):
            buffer[i] = values[i] if values[i] < bound else np.float32(0.0)
        buffer[values.shape[0] :] = np.float32(0.0)
        total += np.float64(fold(buffer))
    return total


@entry
def row_sums(
    logits: F32,
    rows: NDArray[np.int64],
    tiles: NDArray[np.int32],
    logsumexp: NDArray[np.float64],
    valid: NDArray[np.bool_],
    normalized: bool,
) -> None:
    """Tile maxima [n, tiles], logsumexp [n] (0 when `normalized`) and validity [n] of logits[rows]."""
    for i in range(rows.shape[0]):
        row = logits[rows[i]]
        best, bad = tile_maxima(row, tiles[i])
        valid[i] = not bad
        if bad:
            logsumexp[i] = np.nan
        elif normalized:
            logsumexp[i] = 0.0
        elif best <= NEGATIVE_INFINITY_KEY:
            logsumexp[i] = -np.inf
        else:
            maximum = unordered(best)
            logsumexp[i] = np.float64(maximum) + math.log(sum_exponentials(row, maximum))


@entry
def subtract(logits: F32, shift: NDArray[np.float64]) -> None:
    """logits = float32(logits - shift) of each row, in place, subtracted in float64."""
    for r in range(logits.shape[0]):
        for j in range(logits.shape[1]):
            logits[r, j] = np.float32(np.float64(logits[r, j]) - shift[r])
