"""What nodes may take of a session, and which of them give up their blocks."""

from __future__ import annotations

import pytest

from forkdecode.errors import CapacityError
from forkdecode.scheduler.request import Release
from forkdecode.tree import plans, session
from forkdecode.tree_types import Decode, Export, Extend, Fork, Pin, Prune, ScoreNodes, TreeLimits, Unpin
from forkdecode.types import Greedy, Options, Sample
from tests.llm.models import EOS_ID, ids
from tests.tree.driven import Driven, InlinePort
from tests.tree.session_options import SHORT


def test_limits_refuse_by_name_and_pruning_makes_room() -> None:
    tree = Driven(limits=TreeLimits(max_nodes=4, max_depth=2, max_tokens=30))
    assert tree.refused(Fork(1, 0, 4)).field == "max_nodes"
    tree.accepted(Fork(2, 0, 3))
    error = tree.refused(Decode(3, (0,)))
    assert isinstance(error, CapacityError)
    assert error.field == "max_nodes"
    tree.accepted(Prune(4, (1, 2)))
    assert tree.refused(Decode(5, (0,), Greedy(), Options(max_tokens=40))).field == "max_tokens"
    [child] = tree.ran(Decode(6, (3,), Greedy(), SHORT))
    assert tree.refused(Extend(7, child.node, "x")).field == "max_depth"
    assert tree.refused(Decode(8, (child.node,), Greedy(), SHORT)).field == "max_depth"
    # Tokens that were reserved and not generated are free again.
    tree.accepted(Prune(9, (child.node,)))
    assert tree.ran(Decode(10, (3,), Greedy(), Options(max_tokens=15, allowed_token_ids=(EOS_ID,))))
    for i in range(11, 15):
        [made] = tree.ran(Decode(i, (0,), Greedy(), Options(max_tokens=15, ignore_eos=True)))
        tree.accepted(Prune(i, (made.node,)))
    tree.close()


def test_idle_nodes_give_up_their_blocks_to_new_ones_unless_pinned() -> None:
    tree = Driven(limits=TreeLimits(max_blocks=12))
    options = Options(max_tokens=8, ignore_eos=True)
    first = tree.ran(Decode(1, (0,), Greedy(), options))[0]
    assert tree.session.held_nodes == 2
    for i in range(2, 6):
        tree.ran(Decode(i, (0,), Sample(seed=i), options))
        assert tree.session.blocks <= 12
    released = [op for op in tree.port.ops if isinstance(op, Release)]
    assert released[0].nodes is not None
    assert first.node in released[0].nodes
    assert tree.ran(Decode(6, (first.node,), Greedy(), options))[0].token_ids
    everything = tuple(info.node for info in tree.session.snapshot().nodes)
    tree.accepted(Pin(7, everything, ttl=10.0))
    error = tree.refused(Decode(8, (0,), Sample(n=3, seed=9), options))
    assert (type(error), error.field) == (CapacityError, "max_blocks")
    tree.accepted(Unpin(9, everything))
    assert tree.ran(Decode(10, (0,), Sample(n=2, seed=9), options))
    tree.accepted(Pin(11, everything, ttl=10.0))
    tree.now += 11.0
    assert tree.ran(Decode(12, (0,), Sample(n=2, seed=8), options))
    tree.close()


def test_what_is_reserved_for_a_decode_shrinks_as_its_nodes_end() -> None:
    tree = Driven(limits=TreeLimits(max_blocks=40))
    allowed = Options(max_tokens=16, allowed_token_ids=ids("abcd"), stop=("a",))
    tree.accepted(Decode(1, (0,), Sample(n=6), allowed))
    reserved = [tree.session.blocks]
    while tree.step():
        reserved.append(tree.session.blocks)
        assert tree.port.stats().used_blocks <= tree.session.blocks
    assert reserved == sorted(reserved, reverse=True)
    assert len(set(reserved)) > 3
    assert reserved[-1] < reserved[0] / 2
    tree.close()


def test_a_node_is_not_idle_while_something_runs_on_it() -> None:
    tree = Driven(limits=TreeLimits(idle_ttl=10.0))
    tree.accepted(Decode(1, (0,), Sample(), Options(max_tokens=30, ignore_eos=True)))
    tree.step()
    tree.now = 20.0
    tree.session.expire()
    assert tree.session.held_nodes == 1
    tree.run()
    tree.session.expire()
    assert tree.session.held_nodes == 1
    tree.now = 40.0
    tree.session.expire()
    assert tree.session.held_nodes == tree.port.stats().held_nodes == 0
    tree.close()


def test_idle_nodes_give_up_their_blocks_in_time_and_are_computed_again() -> None:
    tree = Driven(limits=TreeLimits(idle_ttl=10.0), port=InlinePort(prefix_cache=False))
    one, two = tree.ran(Decode(1, (0,), Sample(n=2), SHORT))
    tree.accepted(Pin(2, (one.node,)))
    tree.now = 9.0
    tree.accepted(Fork(3, 0))
    assert tree.session.held_nodes == 4
    tree.now = 12.0
    tree.session.expire()
    # The root and its fork were used at 9, the pinned one stays.
    assert tree.session.held_nodes == 3
    again = tree.ran(Decode(4, (two.node,), Greedy(), SHORT))[0]
    fresh = Driven()
    fresh.ran(Decode(1, (0,), Sample(n=2), SHORT))
    assert fresh.ran(Decode(4, (two.node,), Greedy(), SHORT))[0].token_ids == again.token_ids
    tree.close()


def test_paths_of_one_command_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request and each record holds its whole path: many forks of a long one are not asked at once."""
    monkeypatch.setattr(session, "MAX_EXPORTED_TOKENS", 50)
    monkeypatch.setattr(plans, "MAX_ASKED_TOKENS", 50)
    tree = Driven()
    length = len(tree.node(0).token_ids)
    tree.accepted(Fork(1, 0, 50))
    some, many = tuple(range(50 // length)), tuple(range(50 // length + 1))
    for command in (Export(2, many), Decode(2, many, Greedy(), SHORT), ScoreNodes(2, many, ("a",))):
        error = tree.refused(command)
        assert error.field == "nodes"
        assert "at most 50 in one command" in str(error)
    tree.accepted(Export(3, some))
    tree.ran(Decode(4, some[:2], Greedy(), SHORT))
    assert tree.refused(ScoreNodes(5, some, ("a" * 60,))).field == "nodes"
    tree.close()
