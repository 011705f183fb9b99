"""What trees of an LLM refuse, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import forkdecode
from forkdecode import LLM, CapacityError, InvalidRequestError, Options, Sample, Tree, TreeLimits
from forkdecode.calls.tree import Node
from tests.llm.models import PROMPT


@pytest.mark.parametrize(
    "verb",
    [
        lambda tree, node: tree.decode(node, Sample(n=2), max_tokens=2),
        lambda tree, node: tree.start([tree.root, node], max_tokens=2),
        lambda tree, node: tree.stream(node, max_tokens=2),
        lambda tree, node: tree.fork(node, 2),
        lambda tree, node: tree.extend(node, " d"),
        lambda tree, node: tree.truncate(node, 3),
        lambda tree, node: tree.score(node, [" a"]),
        lambda tree, node: tree.prune(node),
        lambda tree, node: tree.pin(node),
        lambda tree, node: tree.unpin(node),
        lambda tree, node: tree.stop(node),
        lambda tree, node: tree.finish(node),
        lambda tree, node: tree.export(node),
        lambda tree, node: tree.wait(node),
    ],
    ids=[
        "decode",
        "start",
        "stream",
        "fork",
        "extend",
        "truncate",
        "score",
        "prune",
        "pin",
        "unpin",
        "stop",
        "finish",
        "export",
        "wait",
    ],
)
def test_a_node_of_another_tree_is_refused(llm: LLM, verb: Callable[[Tree, Node], Any]) -> None:
    """Its number is that of a node here, too."""
    with llm.tree(PROMPT, seed=1) as tree, llm.tree(PROMPT, seed=2) as other:
        before = other.root._next_seed, tree.root._next_seed
        with pytest.raises(InvalidRequestError, match="is of another tree") as caught:
            verb(tree, other.root)
        assert (caught.value.field, caught.value.limit) == ("nodes", "Nodes of this tree")
        assert (other.root._next_seed, tree.root._next_seed) == before
        assert (tree.nodes, other.nodes) == ((tree.root,), (other.root,))


WRONG: dict[str, tuple[Callable[[Tree], object], str]] = {
    "no node": (lambda tree: tree.decode(0), "nodes"),  # type: ignore[arg-type]
    "nodes": (lambda tree: tree.prune("all"), "nodes"),  # type: ignore[arg-type]
    "node": (lambda tree: tree.fork(0), "node"),  # type: ignore[arg-type]
    "option": (lambda tree: tree.decode(tree.root, colour=1), "colour"),
    "both": (lambda tree: tree.decode(tree.root, options=Options(), stop="a"), "stop"),
    "beam": (lambda tree: tree.decode(tree.root, forkdecode.Beam()), "strategy"),  # type: ignore[arg-type]
    "number": (lambda tree: tree.node(99), "node"),
    "long": (lambda tree: tree.decode(tree.root, max_tokens=10_000), "max_tokens"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named(llm: LLM, case: str) -> None:
    call, field = WRONG[case]
    with llm.tree(PROMPT) as tree:
        with pytest.raises(InvalidRequestError) as caught:
            call(tree)
        assert caught.value.field == field
        assert tree.decode(tree.root, max_tokens=1)


def test_wrong_prompts_and_limits(llm: LLM) -> None:
    for prompt in ("", [], [99999], 5):
        with pytest.raises(InvalidRequestError, match="prompt"):
            llm.tree(prompt)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="seed"):
        llm.tree(PROMPT, seed=-1)
    with llm.tree(PROMPT, limits=TreeLimits(max_nodes=2)) as tree, pytest.raises(CapacityError):
        tree.fork(tree.root, 2)
