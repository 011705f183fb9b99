"""Compiled work on the threads that torch's own operations run on.

Waking OpenMP's team takes microseconds where Python's threads take tens of them, and a step has over a
hundred products; and there is one pool of threads instead of two.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core.ccallback import CFunc
from numba.extending import intrinsic

from forkdecode_kernels.cpu.selection.code_folder import code_folder
from forkdecode_kernels.cpu.selection.jit import stamp
from forkdecode_kernels.cpu.selection.parallel import for_each_block

_ADDRESS: Any = types.CPointer(types.int64)  # type: ignore[no-untyped-call]


class Work(NamedTuple):
    """A compiled function of the address of its arguments."""

    call: Callable[[Any], None]
    address: int


Call = tuple[Work, tuple[int, ...], int]
"""Work, its arguments, and on how many threads."""


def _callback(function: Callable[[Any], None]) -> Any:
    signature = ((_ADDRESS,), types.void)
    return CFunc(function, signature, locals={}, options={"error_model": "numpy"})


def compile_work(function: Callable[[Any], None]) -> Work:
    """`function` takes the address of an array of int64, and no exception may leave it. Cached on disk
    as forkdecode_kernels.cpu.selection.jit does."""
    made = _callback(function)
    try:
        with code_folder():
            made.enable_caching()
    except RuntimeError:  # no folder to cache in
        made = _callback(function)
    else:
        made = made if stamp(made) else _callback(function)
    made.compile()
    address: Any = made.address
    return Work(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address), address)


@cache
def _start_team() -> Any:
    """GNU OpenMP's entry for a parallel region, which LLVM's runtime has as well, or None."""
    try:
        start = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        return None
    start.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    start.restype = None
    return start


def available() -> bool:
    """Whether there is such a team; else `run` takes Python's threads."""
    return _start_team() is not None


def team_address() -> int:
    """Where that entry is, for compiled code; 0 is nowhere."""
    start = _start_team()
    return 0 if start is None else int(ctypes.cast(start, ctypes.c_void_p).value or 0)


def run(work: Work, *arguments: int, threads: int) -> None:
    """Calls work on the address of the arguments, on so many threads at once; returns when all have.

    Let `threads` be torch's thread count or 1: another number changes the team, which costs more than
    a product. What each thread does it takes with `take_number`.
    """
    given = (ctypes.c_int64 * len(arguments))(*arguments)
    start = _start_team() if threads > 1 else None
    if start is not None:
        start(work.address, given, threads, 0)
    elif threads > 1:
        for_each_block(threads, 1, threads, lambda: lambda _, __: work.call(given))
    else:
        work.call(given)


def run_call(call: Call) -> None:
    """See run."""
    work, arguments, threads = call
    run(work, *arguments, threads=threads)


def _take_number(typing_context: Any, counter: Any) -> Any:

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Value:
        return builder.atomic_rmw("add", args[0], ir.IntType(64)(1), "monotonic")

    return types.int64(_ADDRESS), emit


take_number: Any = intrinsic(_take_number)
"""In kernels: the int64 at an address, which is one more after, whatever threads meet there."""
