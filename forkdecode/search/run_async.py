"""Runs a policy on a tree for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import Any

from forkdecode.calls.tree import AsyncTree, Node
from forkdecode.checks import shown
from forkdecode.errors import ForkdecodeError, InvalidRequestError, invalid
from forkdecode.search.batches import batches, check_decoded, share
from forkdecode.search.budget import Budget
from forkdecode.search.core import Search
from forkdecode.search.decoding import Decoding
from forkdecode.search.operations import Decode, Drop, Give, Measure, Operation
from forkdecode.search.result import SearchResult
from forkdecode.search.verifiers import TreeVerifier, Verifier, check_scores
from forkdecode.search.waiting import wait_async
from forkdecode.search.work import Policy


async def run_async(
    tree: AsyncTree,
    policy: Policy,
    verifier: Verifier | None = None,
    *,
    budget: Budget | None = None,
    decoding: Decoding | None = None,
    root: Node | None = None,
    prune: bool = True,
) -> SearchResult:
    """run() for asyncio, with the same result. A verifier that is not a coroutine function runs in the loop's
    thread. Cancelling it prunes the branches that are being decoded."""
    if not isinstance(tree, AsyncTree):
        raise invalid("tree", f"{shown(tree)} is no AsyncTree", "that of an AsyncLLM or an AsyncClient")
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
        while True:
            try:
                operation = steps.send(answer)
            except StopIteration as end:
                result: SearchResult = end.value
                return result
            answer = await _do(tree, operation, verifier)
    finally:
        if search.given:
            with contextlib.suppress(ForkdecodeError):  # nothing is left in a tree that has ended
                await asyncio.shield(tree.prune(search.given, subtree=False))


async def _do(tree: AsyncTree, operation: Operation, verifier: Verifier | None) -> Any:
    if isinstance(operation, Decode):
        return await _decode(tree, operation)
    if isinstance(operation, Drop):
        return await tree.prune(operation.nodes, subtree=operation.subtree)
    if isinstance(operation, Give):
        return await tree.extend(operation.node, operation.text)
    if isinstance(operation, Measure):
        return await _measure(tree, operation)
    scores: Any
    if isinstance(verifier, TreeVerifier):
        scores = await verifier.verify_async(tree, operation.branches, operation.nodes)
    else:
        assert verifier is not None, "nothing is to be verified without one"
        scores = verifier(operation.branches)
        if inspect.isawaitable(scores):
            scores = await scores
    return check_scores(scores, len(operation.branches))


async def _measure(tree: AsyncTree, operation: Measure) -> int | None:
    try:
        node = await tree.extend(operation.node, operation.text)
    except InvalidRequestError as error:
        if error.field != "continuation":
            raise
        return None
    await tree.prune(node)
    return len(node.token_ids)


async def _decode(tree: AsyncTree, operation: Decode) -> list[list[Node]]:
    made: list[list[Node]] = [[] for _ in operation.starts]
    running: list[Node] = []
    try:
        for batch in batches(operation.starts):
            nodes, first = [operation.starts[place].node for place in batch.places], batch.first
            children = await tree.start(nodes, first.sample, step=first.step, options=first.options)
            running += children
            share(batch, children, made)
        await wait_async(tree, running, operation.timeout)
        check_decoded(running)
    except BaseException:
        if running:
            await asyncio.shield(tree.prune(running))
        raise
    return made
