"""The steps between a layer's matrix products inside compiled work, rows first .. last each; rows never see
each other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.cpu.half import Stored, narrow, widen
from forkdecode_kernels.cpu.selection.jit import fused, inlined, reduction
from forkdecode_kernels.cpu.selection.rows import exponential

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


@reduction
def _scale_of(row: F32, eps: np.float32) -> np.float32:
    """1 / rms of one row."""
    total = np.float32(0.0)
    for i in range(row.shape[0]):
        total += row[i] * row[i]
    return np.float32(np.float32(1.0) / np.sqrt(total / np.float32(row.shape[0]) + eps))


@inlined
def add_norm_rows(
    hidden: Stored,
    delta: Stored,
    weight: F32,
    delta_weight: F32,
    eps: np.float32,
    out: Stored,
    first: int,
    last: int,
) -> None:
    width = hidden.shape[1]
    row, change = np.empty(width, np.float32), np.empty(width, np.float32)
    for t in range(first, last):
        if delta.shape[0] > 0:
            for i in range(width):
                change[i] = widen(delta[t, i])
            if delta_weight.shape[0] > 0:
                scale = _scale_of(change, eps)
                for i in range(width):
                    change[i] = change[i] * scale * delta_weight[i]
            for i in range(width):
                hidden[t, i] = narrow(widen(hidden[t, i]) + change[i], hidden[t, i])
        for i in range(width):
            row[i] = widen(hidden[t, i])
        scale = _scale_of(row, eps)
        for i in range(width):
            out[t, i] = narrow(row[i] * scale * weight[i], out[t, i])


@fused
def _silu(x: np.float32) -> np.float32:
    """x * sigmoid(x); of the exponential only its falling half is taken."""
    e = exponential(-abs(x))
    top = np.float32(1.0) if x >= np.float32(0.0) else e
    return np.float32(x * top / (np.float32(1.0) + e))


@fused
def _gelu(x: np.float32) -> np.float32:
    """0.5 x (1 + tanh(y)), y = sqrt(2 / pi) (x + 0.044715 x^3): the same as x * sigmoid(2 y)."""
    y = np.float32(1.5957691216057308) * (x + np.float32(0.044715) * x * x * x)
    e = exponential(-abs(y))
    top = np.float32(1.0) if y >= np.float32(0.0) else e
    return np.float32(x * top / (np.float32(1.0) + e))


@inlined
def silu_rows(gate_up: Stored, out: Stored, first: int, last: int) -> None:
    width = out.shape[1]
    for t in range(first, last):
        for i in range(width):
            up = widen(gate_up[t, width + i])
            out[t, i] = narrow(_silu(widen(gate_up[t, i])) * up, out[t, i])


@inlined
def gelu_rows(gate_up: Stored, out: Stored, first: int, last: int) -> None:
    width = out.shape[1]
    for t in range(first, last):
        for i in range(width):
            up = widen(gate_up[t, width + i])
            out[t, i] = narrow(_gelu(widen(gate_up[t, i])) * up, out[t, i])


@inlined
def _turn(row: Stored, weight: F32, eps: np.float32, cos: F32, sin: F32, head: F32, turned: F32) -> None:
    """head [D]: one head of a token, `row` [D], normalised where it has a weight; turned [D]: it, turned."""
    dim, half = row.shape[0], cos.shape[0]
    for i in range(dim):
        head[i] = widen(row[i])
    if weight.shape[0] > 0:
        scale = _scale_of(head, eps)
        for i in range(dim):
            head[i] = head[i] * scale * weight[i]
    low, high = head[:half], head[half : 2 * half]
    for i in range(half):
        turned[i] = low[i] * cos[i] - high[i] * sin[i]
    upper = turned[half : 2 * half]
    for i in range(half):
        upper[i] = high[i] * cos[i] + low[i] * sin[i]
    for i in range(2 * half, dim):
        turned[i] = head[i]


@inlined
def _put(turned: F32, out: Stored) -> None:
    for i in range(turned.shape[0]):
        out[i] = narrow(turned[i], out[i])


@inlined
def split_rows(
    qkv: Stored,
    kv: Stored,
    cos: F32,
    sin: F32,
    slots: I64,
    query_weight: F32,
    key_weight: F32,
    eps: np.float32,
    query: Stored,
    first: int,
    last: int,
) -> None:
    heads, kv_heads, dim = query.shape[0], kv.shape[1], kv.shape[3]
    head, turned = np.empty(dim, np.float32), np.empty(dim, np.float32)
    for t in range(first, last):
        row, c, s = qkv[t], cos[t], sin[t]
        for h in range(heads):
            _turn(row[h * dim : (h + 1) * dim], query_weight, eps, c, s, head, turned)
            _put(turned, query[h, t])
        for k in range(kv_heads if t < slots.shape[0] else 0):
            slot, at = slots[t], (heads + k) * dim
            _turn(row[at : at + dim], key_weight, eps, c, s, head, turned)
            _put(turned, kv[0, k, slot])
            kv[1, k, slot, :] = row[at + kv_heads * dim : at + (kv_heads + 1) * dim]
