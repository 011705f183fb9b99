"""What a command makes do is told from its nodes, not from its bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forkdecode.constraint_types import Regex
from forkdecode.tree.effort import Effort
from forkdecode.tree_types import (
    Command,
    Decode,
    Export,
    Exported,
    Extend,
    Fork,
    Import,
    Pin,
    Prune,
    ScoreNodes,
    Stop,
    Truncate,
)
from forkdecode.types import Greedy, Options, Sample
from tests.tree.driven import Driven

ALL = 2**30
LONG = [5] * 150


@pytest.fixture(scope="module")
def tree() -> Driven:
    """A root of 150 tokens with 100 forks, the last of which has one more below it."""
    tree = Driven(LONG)
    tree.accepted(Fork(1, 0, 100))
    tree.accepted(Fork(2, 100, 1))
    return tree


def effort(tree: Driven, command: Command, size: int = 0, enough: int = ALL) -> Effort:
    return tree.session.effort(command, size, enough)


NODES = tuple(range(1, 101))


@pytest.mark.parametrize(
    ("command", "size"),
    [
        (Decode(3, NODES, Greedy()), 100 * (512 + 150)),
        (Decode(3, NODES, Sample(n=3)), 100 * (3 * 512 + 150)),
        (ScoreNodes(3, NODES, ("a",)), 100 * (512 + 150)),
        (Export(3, NODES), 100 * (512 + 150)),
        (Fork(3, 0, 40), 40 * 512),
        (Extend(3, 0, "a"), 512 + 150),
        (Truncate(3, 0, 150), 512 + 150),
        (Prune(3, (0,)), 102 * 64),
        (Prune(3, (100,)), 2 * 64),
        (Prune(3, (0,), subtree=False), 64),
        (Stop(3, NODES), 100 * 64),
        (Pin(3, (5, 6)), 2 * 64),
        (Decode(3, (7777,), Greedy()), 0),
        (Prune(3, (7777,)), 0),
        (Extend(3, 7777, "a"), 0),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else "",
)
def test_what_a_command_makes_do(tree: Driven, command: Any, size: int) -> None:
    assert effort(tree, command) == Effort(size)
    assert effort(tree, command, size=1000) == Effort(1000 + size)


def test_no_more_is_counted_than_is_enough(tree: Driven) -> None:
    assert effort(tree, Decode(3, NODES, Greedy()), enough=2000) == Effort(4 * (512 + 150))
    assert effort(tree, Prune(3, (0,)), enough=100) == Effort(2 * 64)
    assert effort(tree, Export(3, NODES), size=70_000, enough=65_536).size < 71_000


def test_to_tell_all_that_there_is_takes_its_tokens(tree: Driven) -> None:
    assert tree.session.snapshot_effort() == Effort(102 * 64 + 150)


def test_what_may_wait_for_a_constraint() -> None:
    tree = Driven()
    decode = Decode(1, (0,), Greedy(), Options(max_tokens=2, constraint=Regex("[ab]{9}")))
    assert effort(tree, decode).waits
    assert not effort(tree, Extend(2, 0, "a")).waits
    tree.accepted(Export(3, (0,)))
    [exported] = tree.said(Exported)[0].paths
    whole = len(exported.token_ids)
    under = replace(exported, constraint=Regex(".*"), constraint_start=1, constraint_end=whole)
    [node] = tree.accepted(Import(4, (under,)))
    assert effort(tree, Extend(5, node.node, "a")).waits  # whether it goes on behind that
    for command in (Fork(5, node.node), Export(5, (node.node,)), Decode(5, (node.node,), Greedy())):
        assert not effort(tree, command).waits
    tree.close()
