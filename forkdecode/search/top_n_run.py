"""Runs an exhaustive top-N on a tree session: in threads or in an event loop, in process or on a server."""

from __future__ import annotations

import asyncio
from typing import Any

from forkdecode.calls.tree import AsyncTree, Node, Tree
from forkdecode.checks import shown
from forkdecode.errors import invalid
from forkdecode.search.budget import Budget
from forkdecode.search.top_n import AskAll, Keep, Operation, TopNResult, TopNSearch
from forkdecode.search.waiting import wait, wait_async
from forkdecode.types import Greedy, Options


def top_n(
    tree: Tree,
    n: int,
    *,
    options: Options | None = None,
    root: Node | None = None,
    batch: int = 16,
    children: int = 64,
    budget: Budget | None = None,
) -> TopNResult:
    """The n most likely complete sequences below `root` (the tree's by default), with a certificate.

    A sequence is complete if EOS, a stop token or the constraint ends it within options.max_tokens tokens and
    the model's positions. Options that mask tokens apply: constraint, allowed_token_ids, bad_words,
    no_repeat_ngram_size and min_tokens; any other option that would change what is decoded is refused by
    name. batch: prefixes that are expanded together. children: how many continuations of a prefix are
    requested at once, 1 to 1024; more are requested where they may matter. budget: what the search may use;
    if it does not suffice, the result is not `exact`.

    Raises InvalidRequestError naming the field at fault, and the errors of the tree's methods.
    """
    if not isinstance(tree, Tree):
        raise invalid("tree", f"{shown(tree)} is no Tree", "that of an LLM or a Client; else top_n_async")
    root = tree.root if root is None else root
    search = TopNSearch(n, root, options, batch, children, budget, tree.max_positions)
    steps, answer = search.steps(), None
    try:
        while True:
            answer = _do(tree, steps.send(answer))
    except StopIteration as end:
        result: TopNResult = end.value
        return result
    finally:
        if search.held:
            tree.prune(search.held)


def _do(tree: Tree, operation: Operation) -> Any:
    if isinstance(operation, AskAll):
        return _decode(tree, operation)
    if isinstance(operation, Keep):
        return tree.truncate(operation.node, operation.length)
    return tree.prune(operation.nodes, subtree=False)


def _decode(tree: Tree, operation: AskAll) -> list[Node]:
    running: list[Node] = []
    try:
        for ask in operation.asks:
            running += tree.start(ask.node, Greedy(), options=ask.options)
        wait(tree, running, operation.timeout)
    except BaseException:
        if running:
            tree.prune(running)
        raise
    return running


async def top_n_async(
    tree: AsyncTree,
    n: int,
    *,
    options: Options | None = None,
    root: Node | None = None,
    batch: int = 16,
    children: int = 64,
    budget: Budget | None = None,
) -> TopNResult:
    """top_n() for asyncio, with the same result."""
    if not isinstance(tree, AsyncTree):
        raise invalid("tree", f"{shown(tree)} is no AsyncTree", "that of an AsyncLLM or an AsyncClient")
    root = tree.root if root is None else root
    search = TopNSearch(n, root, options, batch, children, budget, tree.max_positions)
    steps, answer = search.steps(), None
    try:
        while True:
            try:
                operation = steps.send(answer)
            except StopIteration as end:
                result: TopNResult = end.value
                return result
            answer = await _do_async(tree, operation)
    finally:
        if search.held:
            await asyncio.shield(tree.prune(search.held))


async def _do_async(tree: AsyncTree, operation: Operation) -> Any:
    if isinstance(operation, AskAll):
        return await _decode_async(tree, operation)
    if isinstance(operation, Keep):
        return await tree.truncate(operation.node, operation.length)
    return await tree.prune(operation.nodes, subtree=False)


async def _decode_async(tree: AsyncTree, operation: AskAll) -> list[Node]:
    running: list[Node] = []
    try:
        for ask in operation.asks:
            running += await tree.start(ask.node, Greedy(), options=ask.options)
        await wait_async(tree, running, operation.timeout)
    except BaseException:
        if running:
            await asyncio.shield(tree.prune(running))
        raise
    return running
