"""How the kernel tests run: new memory holds poison, and Triton's interpreter does nothing twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """torch.empty and empty_like give NaN, or -1 in integers: so it is seen where a kernel leaves out what it
    should write, or reads what nobody has written."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("empty", "empty_like"):
            patch.setattr(torch, name, _poisoned(getattr(torch, name)))
        yield


def _poisoned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @wraps(make)
    def made(*args: Any, **kwargs: Any) -> torch.Tensor:
        found = make(*args, **kwargs)
        return found.fill_(torch.nan if found.is_floating_point() else -1)

    return made


@contextmanager
def patched_once() -> Iterator[None]:
    """The interpreter replaces the functions of triton.language at each launch, and again at each call of a
    device function within it, tl.sum's among them, which takes most of its time. Here the second is left
    out, where they are replaced already."""
    whole = interpreter._patch_lang

    def patch_lang(function: Any) -> Any:
        languages = [v for v in function.__globals__.values() if v is tl or v is tl.core]
        if any(tl.core.is_builtin(language.load) for language in languages):
            return whole(function)
        return interpreter._LangPatchScope()  # of no changes, so that nothing is restored

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", patch_lang)
        yield
