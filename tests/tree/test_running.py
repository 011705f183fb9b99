"""What the end of a request means for its nodes, in process and behind an engine process."""

from __future__ import annotations

import pytest

from forkdecode.errors import CapacityError
from forkdecode.tree_types import Decode, Done, Fork, Prune, Stop
from forkdecode.types import Options, Sample
from tests.llm.models import ids
from tests.tree.driven import CrossedPort, Driven, InlinePort

ENDS_APART = Options(max_tokens=40, allowed_token_ids=ids("abcd"), stop=("a",), min_tokens=6)
"""Of several samples: the first does long before the last."""


@pytest.mark.parametrize("port", [InlinePort, CrossedPort])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_child_that_ended_stays_counted_when_its_last_sibling_is_stopped(
    seed: int, port: type[InlinePort]
) -> None:
    tree = Driven(port=port(), seed=seed)
    children, running = until_one_ends(tree)
    tree.accepted(Stop(2, running))
    tree.run()
    assert tree.session.held_nodes == 1 + len(children) - len(running)
    assert_counted(tree)
    ended = min(set(children) - set(running))
    tree.accepted(Fork(3, ended))
    assert_counted(tree)
    assert tree.session.held_nodes == 2 + len(children) - len(running)
    tree.close()


@pytest.mark.parametrize("port", [InlinePort, CrossedPort])
def test_what_a_group_leaves_that_outgrows_the_pool_is_counted(port: type[InlinePort]) -> None:
    tree = Driven(port=port(num_blocks=16, overcommit=True))
    options = Options(max_tokens=60, ignore_eos=True)
    tree.accepted(Decode(1, (0,), Sample(n=3), options))
    tree.run()
    assert isinstance(tree.said(Done)[-1].error, CapacityError)
    assert tree.session.held_nodes == 4
    assert_counted(tree)
    tree.accepted(Prune(2, (1, 2, 3)))
    tree.close()


def test_the_engine_keeps_nothing_of_a_group_whose_last_word_was_lost() -> None:
    port = CrossedPort()
    tree = Driven(port=port)
    until_one_ends(tree)
    port.limit = 300  # less than the next tokens take, more than an error does
    tree.run()
    assert isinstance(tree.said(Done)[-1].error, CapacityError)
    assert tree.session.held_nodes == 1
    assert_counted(tree)
    tree.close()


def until_one_ends(tree: Driven) -> tuple[list[int], tuple[int, ...]]:
    """The children of a decode, and those of them that are generated still."""
    children = [info.node for info in tree.accepted(Decode(1, (0,), Sample(n=4), ENDS_APART))]
    while all(tree.node(n).state == "generating" for n in children):
        assert tree.step()
    running = tuple(n for n in children if tree.node(n).state == "generating")
    assert running
    return children, running


def assert_counted(tree: Driven) -> None:
    """The session knows of all that the engine holds, and of nothing else."""
    stats = tree.port.stats()
    assert stats.held_nodes == tree.session.held_nodes
    assert stats.used_blocks <= tree.session.blocks
