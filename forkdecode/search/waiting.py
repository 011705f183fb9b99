"""Waiting for nodes no longer than a search may take."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from forkdecode.calls.tree import AsyncTree, Node, Tree
from forkdecode.errors import ForkdecodeError


def wait(tree: Tree, running: Sequence[Node], timeout: float | None) -> None:
    """Stops them after `timeout` seconds. Raises what ends the tree."""
    try:
        tree.wait(running, timeout)
    except TimeoutError as error:
        if isinstance(error, ForkdecodeError):
            raise
        tree.stop(running)
        tree.wait(running)


async def wait_async(tree: AsyncTree, running: Sequence[Node], timeout: float | None) -> None:
    """wait() for asyncio."""
    try:
        async with asyncio.timeout(timeout):
            await tree.wait(running)
    except TimeoutError as error:
        if isinstance(error, ForkdecodeError):
            raise
        await tree.stop(running)
        await tree.wait(running)
