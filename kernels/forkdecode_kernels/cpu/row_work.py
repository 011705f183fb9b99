"""The compiled attention of decode rows as work, called by itself or noted down on a tape."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from numba.np.numpy_support import carray

from forkdecode_kernels.cpu.attend import attend
from forkdecode_kernels.cpu.decode_rows import RowsPlan
from forkdecode_kernels.cpu.operands import COMMON, Operands, operands_at
from forkdecode_kernels.cpu.selection.jit import inlined
from forkdecode_kernels.cpu.team import Call, Work, compile_work, run_call, take_number
from forkdecode_kernels.cpu.words import memory


def rows_call(plan: RowsPlan, operands: Operands, scratch: torch.Tensor) -> Call:
    """Writes the rows of operands.out that the plan has. scratch: operands.scratch(plan.query_rows)."""
    arguments = (
        *operands.words(plan.query_rows, scratch), plan.groups.ctypes.data, len(plan.groups),
        plan.blocks.ctypes.data, len(plan.blocks),
    )  # fmt: skip
    return _work(operands.half), arguments, operands.threads(plan.products)


def run_rows(plan: RowsPlan, operands: Operands) -> None:
    """The same at once."""
    # Named, to be there while the work runs.
    scratch = operands.scratch(plan.query_rows, operands.threads(plan.products))
    run_call(rows_call(plan, operands, scratch))


@inlined
def _attend(address: Any, kind: Any) -> None:
    """Operands.words, groups, how many, blocks, how many."""
    a = carray(address, COMMON + 4)
    query, kv, out, scale, softcap, sinks, scratch = operands_at(address, kind)
    groups = carray(memory(a[COMMON]), (a[COMMON + 1], 8), np.int64)
    blocks = carray(memory(a[COMMON + 2]), (a[COMMON + 3],), np.int32)
    items = a[COMMON + 1] * kv.shape[1]
    item = take_number(address)
    while item < items:
        attend(query, kv, out, groups, blocks, scale, softcap, sinks, scratch, item)
        item = take_number(address)


def _attend_full(address: Any) -> None:
    _attend(address, np.float32)


def _attend_half(address: Any) -> None:
    _attend(address, np.uint16)


@cache
def _work(half: bool) -> Work:
    """Compiled when first wanted."""
    return compile_work(_attend_half if half else _attend_full)
