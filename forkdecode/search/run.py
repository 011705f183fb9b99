"""Runs a policy on a tree, in this process or on a server."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import Any

from forkdecode.calls.tree import Node, Tree
from forkdecode.checks import shown
from forkdecode.errors import ForkdecodeError, InvalidRequestError, invalid
from forkdecode.search.batches import batches, check_decoded, share
from forkdecode.search.budget import Budget
from forkdecode.search.core import Search
from forkdecode.search.decoding import Decoding
from forkdecode.search.operations import Decode, Drop, Give, Measure, Operation
from forkdecode.search.result import SearchResult
from forkdecode.search.verifiers import TreeVerifier, Verifier, check_scores
from forkdecode.search.waiting import wait
from forkdecode.search.work import Policy


def run(
    tree: Tree,
    policy: Policy,
    verifier: Verifier | None = None,
    *,
    budget: Budget | None = None,
    decoding: Decoding | None = None,
    root: Node | None = None,
    prune: bool = True,
) -> SearchResult:
    """Searches below `root` (the tree's by default) until the policy asks for nothing more or the budget is
    spent. All branches of one ask are decoded in one batch.

    verifier: see Verifier; if it raises, the error is raised here, and what was found until then is in
    `policy.ranked()`. prune: whether branches that the policy gives up are pruned from the tree; the others
    stay in it. With the same prompt, seed and arguments the result is the same, unless the time is limited.

    Raises InvalidRequestError naming the field at fault, and the errors of the tree's methods.
    """
    if not isinstance(tree, Tree):
        raise invalid("tree", f"{shown(tree)} is no Tree", "that of an LLM or a Client; else run_async")
    root = tree.root if root is None else root
    search = Search(
        policy,
        root,
        verifier,
        budget=budget,
        decoding=decoding,
        prune=prune,
        max_positions=tree.max_positions,
    )
    steps = search.steps()
    answer: Any = None
    try:
        with _Waiter() as waiter:
            while True:
                try:
                    operation = steps.send(answer)
                except StopIteration as end:
                    result: SearchResult = end.value
                    return result
                answer = _do(tree, operation, verifier, waiter)
    finally:
        if search.given:
            with contextlib.suppress(ForkdecodeError):  # nothing is left in a tree that has ended
                tree.prune(search.given, subtree=False)


def _do(tree: Tree, operation: Operation, verifier: Verifier | None, waiter: _Waiter) -> Any:
    if isinstance(operation, Decode):
        return _decode(tree, operation)
    if isinstance(operation, Drop):
        return tree.prune(operation.nodes, subtree=operation.subtree)
    if isinstance(operation, Give):
        return tree.extend(operation.node, operation.text)
    if isinstance(operation, Measure):
        return _measure(tree, operation)
    if isinstance(verifier, TreeVerifier):
        scores: Any = verifier.verify(tree, operation.branches, operation.nodes)
    else:
        assert verifier is not None, "nothing is to be verified without one"
        scores = waiter.result(verifier(operation.branches))
    return check_scores(scores, len(operation.branches))


def _measure(tree: Tree, operation: Measure) -> int | None:
    try:
        node = tree.extend(operation.node, operation.text)
    except InvalidRequestError as error:
        if error.field != "continuation":
            raise
        return None
    tree.prune(node)
    return len(node.token_ids)


def _decode(tree: Tree, operation: Decode) -> list[list[Node]]:
    made: list[list[Node]] = [[] for _ in operation.starts]
    running: list[Node] = []
    try:
        for batch in batches(operation.starts):
            nodes, first = [operation.starts[place].node for place in batch.places], batch.first
            children = tree.start(nodes, first.sample, step=first.step, options=first.options)
            running += children
            share(batch, children, made)
        wait(tree, running, operation.timeout)
        check_decoded(running)
    except BaseException:
        if running:
            tree.prune(running)
        raise
    return made


class _Waiter:
    """Waits for what a coroutine function returns: in one event loop of its own, made when first needed."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def __enter__(self) -> _Waiter:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._runner is not None:
            self._runner.close()

    def result(self, value: Any) -> Any:
        """`value`, or what it comes to."""
        if not inspect.isawaitable(value):
            return value
        if self._runner is None:
            self._runner = asyncio.Runner()

        async def awaited() -> Any:
            return await value

        return self._runner.run(awaited())
