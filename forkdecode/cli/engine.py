"""Opening the engine for a command: messages while a model is fetched, the capacity once it is there."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

import typer

from forkdecode.llm import LLM, AsyncLLM


def open_llm(settings: Mapping[str, Any], *, debug: bool) -> LLM:
    """An LLM as the flags say. Prints what takes long, and the capacity, to stderr."""
    _show_messages(debug)
    llm = LLM(**settings)
    show_capacity(llm)
    return llm


def open_async_llm(settings: Mapping[str, Any], *, debug: bool) -> AsyncLLM:
    """The async twin of open_llm; the capacity is the caller's to show."""
    _show_messages(debug)
    return AsyncLLM(**settings)


def show_capacity(llm: LLM | AsyncLLM) -> None:
    """A line on stderr: the model and its block pool."""
    with contextlib.suppress(OSError):  # stderr may be full or gone, and the result is what was asked for
        typer.echo(f"{llm.info.name} ({llm.info.dtype}): {llm.capacity}", err=True)


def _show_messages(debug: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.getLogger("forkdecode")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(logging.DEBUG if debug else logging.INFO)
