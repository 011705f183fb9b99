"""Waiting for nodes no longer than a search may take."""

from __future__ import annotations

from collections.abc import Sequence

from forkdecode.calls.tree import AsyncTree, Node, Tree
from forkdecode.errors import DeadlineError


def wait(tree: Tree, running: Sequence[Node], timeout: float | None) -> None:
    """Stops them after `timeout` seconds. Raises what ends the tree, and DeadlineError after the tree's own
    timeout where there is no other."""
    try:
        tree.wait(running, timeout)
    except DeadlineError as error:
        if not _is_over(error, timeout):
            raise
        tree.stop(running)
        tree.wait(running)


async def wait_async(tree: AsyncTree, running: Sequence[Node], timeout: float | None) -> None:
    """wait() for asyncio."""
    try:
        await tree.wait(running, timeout)
    except DeadlineError as error:
        if not _is_over(error, timeout):
            raise
        await tree.stop(running)
        await tree.wait(running)


def _is_over(error: DeadlineError, timeout: float | None) -> bool:
    """Whether it is our own time that is over, not the tree's."""
    return timeout is not None and error.field == "timeout"
