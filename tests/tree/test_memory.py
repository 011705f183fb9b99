"""max_blocks: what fits is carried out, and what is counted is never above it."""

from __future__ import annotations

import pytest

from forkdecode.tree_types import (
    Accepted,
    Command,
    Decode,
    Extend,
    Finish,
    Fork,
    Prune,
    ScoreNodes,
    TreeLimits,
)
from forkdecode.types import Greedy, Options
from tests.llm.models import ids
from tests.tree.driven import Driven

ONE = Options(max_tokens=1)


def test_a_path_that_several_nodes_share_is_counted_once_where_nothing_holds_it() -> None:
    """10 blocks of a prompt, 2 for each row."""
    tree = Driven([5] * 40, limits=TreeLimits(max_blocks=22))
    forks = tuple(info.node for info in tree.accepted(Fork(1, 0, 6)))
    assert len(tree.ran(Decode(2, forks, Greedy(), Options(max_tokens=4)))) == 6
    assert tree.session.blocks <= 22
    tree.close()


@pytest.mark.parametrize(
    ("gone", "least"), [(Finish(9, (0,)), 5), (Prune(9, (0,), subtree=False), 4)], ids=["released", "pruned"]
)
@pytest.mark.parametrize("most", range(3, 12))
def test_own_tokens_are_scored_within_the_limit(gone: Command, least: int, most: int) -> None:
    """The parent's KV is what their rows begin with, not the node's."""
    tree = Driven([5] * 10, limits=TreeLimits(max_blocks=most))
    [kid] = tree.accepted(Extend(1, 0, ids("ab")))
    tree.send(Decode(2, (kid.node,), Greedy(), ONE))
    tree.run()
    tree.accepted(gone)
    [first, *_] = tree.send(ScoreNodes(3, (kid.node,)))
    assert isinstance(first, Accepted) == (most >= least)
    assert tree.session.blocks <= most
    tree.run()
    tree.close()
