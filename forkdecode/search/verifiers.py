"""Verifiers, which rate branches."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from forkdecode.calls.tree import AsyncTree, Node, Tree
from forkdecode.checks import shown
from forkdecode.errors import invalid
from forkdecode.search.branch import Branch

Scores: TypeAlias = Sequence[float]
BatchVerifier: TypeAlias = Callable[[Sequence[Branch]], Scores | Awaitable[Scores]]
"""Takes branches, returns a finite number for each: higher is better. It may be a coroutine function."""


@runtime_checkable
class TreeVerifier(Protocol):
    """A verifier that asks the tree itself. `nodes` are the branches' nodes."""

    def verify(self, tree: Tree, branches: Sequence[Branch], nodes: Sequence[Node]) -> Scores:
        """For run()."""

    async def verify_async(
        self, tree: AsyncTree, branches: Sequence[Branch], nodes: Sequence[Node]
    ) -> Scores:
        """For run_async()."""


Verifier: TypeAlias = BatchVerifier | TreeVerifier


def each(verifier: Callable[[Branch], Any]) -> BatchVerifier:
    """Makes a verifier from a function on one branch; a coroutine function is awaited for all branches at
    once."""
    if not callable(verifier):
        raise invalid("verifier", f"{shown(verifier)} is not callable", "a callable on a branch")
    if inspect.iscoroutinefunction(verifier) or inspect.iscoroutinefunction(
        getattr(verifier, "__call__", None)  # noqa: B004
    ):

        async def gathered(branches: Sequence[Branch]) -> Scores:
            scores: list[float] = await asyncio.gather(*(verifier(branch) for branch in branches))
            return scores

        return gathered
    return lambda branches: [verifier(branch) for branch in branches]


def check_verifier(verifier: object) -> None:
    """Raises InvalidRequestError for what is neither a verifier nor None."""
    if verifier is not None and not callable(verifier) and not isinstance(verifier, TreeVerifier):
        raise invalid("verifier", f"{shown(verifier)} is not callable", "a callable on a list of branches")


def check_scores(scores: object, count: int) -> list[float]:
    """Raises InvalidRequestError unless there is one finite number per branch."""
    allowed = f"one finite number for each of {count} branches"
    try:
        numbers = [float(score) for score in scores]  # type: ignore[attr-defined]
    except Exception:  # a caller's objects may raise anything
        raise invalid("verifier", f"returned {shown(scores)}", allowed) from None
    if len(numbers) != count or not all(map(math.isfinite, numbers)):
        raise invalid("verifier", f"returned {shown(scores)}", allowed)
    return numbers
