"""How the selection kernels are compiled: without the interpreter lock, cached on disk where possible.

None of them uses numba's own threads: its workqueue layer aborts when two callers meet. Work is
spread by `parallel.for_each_block` instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba

from forkdecode_kernels.cpu.selection.code_folder import code_folder

F = TypeVar("F", bound=Callable[..., Any])

# NaN and infinities keep their meaning. Reordered sums are still the same sums on every call: the
# order is fixed when the kernel is compiled, and depends on the row's length alone.
_REORDER = {"reassoc", "contract", "nsz"}
# Wrappers for calls from Python and C are a good part of the compile time.
_INNER: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def entry(function: F) -> F:
    """Compile what Python calls: strict IEEE arithmetic."""
    return _compile(function, {})


def kernel(function: F) -> F:
    """Compile what other kernels call, and Python cannot: strict IEEE arithmetic."""
    return _compile(function, _INNER)


def inlined(function: F) -> F:
    """As `kernel`, but pasted into its one caller: compiled once instead of once for each level above."""
    return _compile(function, _INNER | {"inline": "always"})


def fused(function: F) -> F:
    """As `kernel`, with a * b + c as one rounding, and nothing else relaxed."""
    return _compile(function, _INNER | {"fastmath": {"contract"}})


def reduction(function: F) -> F:
    """As `kernel`, with sums that may be vectorised."""
    return _compile(function, _INNER | {"fastmath": _REORDER})


def _compile(function: F, extra: dict[str, Any]) -> F:
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"} | extra
    try:
        with code_folder():
            compiled: F = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no folder to cache in, e.g. a read-only installation
        return _without_cache(function, options)
    return compiled if stamp(compiled) else _without_cache(function, options)


def stamp(compiled: Any) -> bool:
    """Binds what is cached of a function to all kernels' sources; whether this numba lets us.

    numba takes cached code as fresh while the function's own file is unchanged, and would miss
    changes in the helpers compiled into it, which live in other files beside and below `cpu`.
    """
    index: Any = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if not hasattr(index, "_source_stamp"):
        return False
    index._source_stamp = (index._source_stamp, _sources())
    return True


def _without_cache(function: F, options: dict[str, Any]) -> F:
    compiled: F = numba.njit(**options)(function)
    return compiled


@cache
def _sources() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
