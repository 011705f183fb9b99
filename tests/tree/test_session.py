"""What each command does, and what refuses it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from forkdecode.errors import CancelledError, CapacityError, EngineClosedError, InvalidRequestError
from forkdecode.scheduler.request import Release
from forkdecode.tree import plans, session
from forkdecode.tree.session import EngineItem
from forkdecode.tree_types import (
    Accepted,
    Decode,
    Done,
    Export,
    Exported,
    Extend,
    Finish,
    Fork,
    Import,
    NodeDelta,
    NodePath,
    NodeScored,
    NodesPruned,
    NodeStopped,
    Pin,
    Prune,
    ScoreNodes,
    Stop,
    TreeLimits,
    Truncate,
    Unpin,
)
from forkdecode.types import BestOf, Greedy, Options, Sample
from tests.llm.models import EOS_ID, VOCAB, ids
from tests.tree.driven import MAX_POSITIONS, Driven, InlinePort

ENDS = Options(max_tokens=3, allowed_token_ids=(EOS_ID,))
SHORT = Options(max_tokens=4, ignore_eos=True)


def _path(**changes: Any) -> NodePath:
    plain: dict[str, Any] = {"model": "toy", "node": 0, "parent": None, "token_ids": ids("hell")}
    return NodePath(**(plain | {"start": 0, "text": "hell", "lineage": 1} | changes))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "unknown node": (lambda: Decode(9, (99,)), "nodes"),
    "unknown among others": (lambda: Prune(9, (0, 99)), "nodes"),
    "pruned": (lambda: Fork(9, 3), "node"),
    "generating": (lambda: Decode(9, (0, 4)), "nodes"),
    "fork of a generating node": (lambda: Fork(9, 4), "node"),
    "extension of a generating node": (lambda: Extend(9, 4, "a"), "node"),
    "truncation of a generating node": (lambda: Truncate(9, 4, 3), "node"),
    "score of a generating node": (lambda: ScoreNodes(9, (4,), ("a",)), "nodes"),
    "export of a generating node": (lambda: Export(9, (4,)), "nodes"),
    "ended by EOS": (lambda: Decode(9, (2,)), "nodes"),
    "running command id": (lambda: Fork(4, 0), "command_id"),
    "no position left": (lambda: Decode(9, (1,), Greedy(), Options(max_tokens=MAX_POSITIONS)), "max_tokens"),
    "options of beams": (lambda: Decode(9, (0,), Greedy(), Options(update_every=2)), "update_every"),
    "foreign token": (lambda: Extend(9, 0, (len(VOCAB),)), "continuation"),
    "too long": (lambda: Extend(9, 0, (1,) * MAX_POSITIONS), "continuation"),
    "into the prompt": (lambda: Truncate(9, 1, 4), "num_tokens"),
    "beyond the end": (lambda: Truncate(9, 1, 10), "num_tokens"),
    "no own tokens": (lambda: ScoreNodes(9, (0,)), "continuations"),
    "foreign continuation": (lambda: ScoreNodes(9, (0,), ((999,),)), "continuations"),
    "other model": (lambda: Import(9, (_path(model="other"),)), "paths"),
    "other text": (lambda: Import(9, (_path(text="help"),)), "paths"),
    "foreign path": (lambda: Import(9, (_path(token_ids=(1, 999), text=""),)), "paths"),
    "twice": (lambda: Import(9, (_path(), _path())), "paths"),
    "no such parent": (lambda: Import(9, (_path(parent=7),), ((7, 99),)), "parents"),
    "parent that is generated": (lambda: Import(9, (_path(parent=7),), ((7, 4),)), "parents"),
    "no child of a parent that was imported before": (
        lambda: Import(9, (_path(parent=7),), ((7, 0),)),
        "paths",
    ),
    "no child of its parent": (
        lambda: Import(9, (_path(), _path(node=1, parent=0, token_ids=(5, 6), start=1, text=""))),
        "paths",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_command_names_the_field_and_changes_nothing(case: str) -> None:
    tree = Driven()
    tree.ran(Decode(1, (0,), Greedy(), SHORT))
    tree.ran(Decode(2, (0,), Greedy(), ENDS))
    tree.accepted(Fork(3, 0))
    tree.accepted(Prune(3, (3,)))
    tree.accepted(Decode(4, (0,), Sample(n=2), SHORT))
    make, field = REFUSED[case]
    error = tree.refused(make())
    assert isinstance(error, InvalidRequestError)
    assert error.field == field
    assert error.limit
    assert field in str(error)
    tree.run()
    assert [tree.node(number).state for number in (4, 5)] == ["stopped", "stopped"]
    tree.close()


def test_pruned_nodes_are_told_from_those_that_never_were() -> None:
    tree = Driven()
    tree.accepted(Fork(1, 0))
    tree.accepted(Prune(2, (1,)))
    assert "node: 1 has been pruned" in str(tree.refused(Fork(3, 1)))
    assert "node: 2 is not in this tree" in str(tree.refused(Fork(3, 2)))
    tree.close()


MALFORMED: dict[str, tuple[Callable[[], Any], str]] = {
    "command id": (lambda: Fork(-1, 0), "command_id"),
    "node": (lambda: Fork(1, -1), "node"),
    "no nodes": (lambda: Decode(1, ()), "nodes"),
    "node twice": (lambda: Decode(1, (0, 0)), "nodes"),
    "no forks": (lambda: Fork(1, 0, 0), "n"),
    "seeds": (lambda: Fork(1, 0, 2, seeds=(1,)), "seeds"),
    "seed": (lambda: Fork(1, 0, 1, seeds=(-1,)), "seeds"),
    "two seeds": (lambda: Decode(1, (0,), Sample(seed=1), seeds=(1,)), "seeds"),
    "seeds of nodes": (lambda: Decode(1, (0, 1), Sample(), seeds=(1,)), "seeds"),
    "ranked": (lambda: Decode(1, (0,), BestOf()), "strategy"),
    "options": (lambda: Decode(1, (0,), Greedy(), {}), "options"),  # type: ignore[arg-type]
    "salt": (lambda: Decode(1, (0,), Greedy(), Options(cache_salt="a")), "cache_salt"),
    "step": (lambda: Decode(1, (0,), step=("",)), "step"),
    "stops together": (lambda: Decode(1, (0,), Greedy(), Options(stop=("a" * 3000,)), ("b" * 3000,)), "step"),
    "nothing given": (lambda: Extend(1, 0, ""), "continuation"),
    "empty continuation": (lambda: ScoreNodes(1, (0,), ("",)), "continuations"),
    "subtree": (lambda: Prune(1, (0,), 1), "subtree"),  # type: ignore[arg-type]
    "length": (lambda: Truncate(1, 0, 0), "num_tokens"),
    "ttl": (lambda: Pin(1, (0,), -1.0), "ttl"),
    "no paths": (lambda: Import(1, ()), "paths"),
    "paths": (lambda: Import(1, ({},)), "paths"),  # type: ignore[arg-type]
    "parents": (lambda: Import(1, (_path(),), ((1, -1),)), "parents"),
    "no pair of parents": (lambda: Import(1, (_path(),), ((1,),)), "parents"),  # type: ignore[arg-type]
    "two parents": (lambda: Import(1, (_path(),), ((1, 1), (1, 2))), "parents"),
    "item": (lambda: _path(item=3), "item"),
    "lineage": (lambda: _path(lineage=2**64), "lineage"),
    "start": (lambda: _path(start=9), "start"),
    "logprobs": (lambda: _path(logprobs=(-0.5, -0.5)), "logprobs"),
    "reason": (lambda: _path(finish_reason="why"), "finish_reason"),
    "unknown field": (lambda: NodePath.of_json({**_path().to_json(), "colour": 1}), "colour"),
    "missing field": (lambda: NodePath.of_json({"model": "toy"}), "paths"),
    "limits": (lambda: TreeLimits(max_nodes=0), "max_nodes"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_command_is_not_even_made(case: str) -> None:
    make, field = MALFORMED[case]
    with pytest.raises(InvalidRequestError) as caught:
        make()
    assert caught.value.field == field


def test_each_command_is_accepted_then_done() -> None:
    tree = Driven()
    assert [type(e) for e in tree.send(Fork(1, 0, 2))] == [Accepted, Done]
    assert [type(e) for e in tree.send(Export(2, (0,)))] == [Accepted, Exported, Done]
    assert [type(e) for e in tree.send(Prune(3, (1,)))] == [Accepted, NodesPruned, Done]
    assert [type(e) for e in tree.send(Decode(4, (0, 2), Sample(n=2), SHORT))] == [Accepted]
    tree.run()
    last = tree.events[-1]
    assert isinstance(last, Done)
    assert last.command_id == 4
    assert [usage.generated_tokens for usage in last.usages] == [8, 8]
    assert last.error is None
    made = next(e for e in tree.said(Accepted) if e.command_id == 4).nodes
    assert [(n.node, n.parent, n.state) for n in made] == [
        (3, 0, "generating"), (4, 0, "generating"), (5, 2, "generating"), (6, 2, "generating")
    ]  # fmt: skip
    tree.check_heard()
    tree.close()


def test_a_step_delimiter_stays_and_a_stop_string_is_cut() -> None:
    allowed = ids("ab\n")
    tree = Driven()
    steps = tree.ran(
        Decode(1, (0,), Sample(n=6), Options(max_tokens=30, allowed_token_ids=allowed), step=("\n\n", "ba"))
    )
    assert {n.finish_reason for n in steps} == {"step"}
    for node in steps:
        assert node.text.endswith(("\n\n", "ba"))
        assert ids("".join(node.text)) == node.token_ids
        child = tree.ran(Decode(10 + node.node, (node.node,), Greedy(), SHORT))
        assert child
    options = Options(max_tokens=40, allowed_token_ids=allowed, stop=("b",))
    both = tree.ran(Decode(2, (0,), Sample(n=12), options, step=("\n",)))
    assert {n.finish_reason for n in both} == {"step", "stop"}
    for node in both:
        assert "b" not in node.text
        assert node.text.endswith("\n") == (node.finish_reason == "step")
    tree.close()


def test_pruning_cancels_what_runs_there_and_nothing_else() -> None:
    tree = Driven()
    long = Options(max_tokens=60, ignore_eos=True)
    tree.accepted(Decode(1, (0,), Sample(n=2), long))
    tree.step()
    tree.accepted(Prune(2, (1,)))
    assert [(s.node, s.finish_reason) for s in tree.said(NodeStopped)] == [(1, "pruned")]
    tree.step()
    assert not any(d.node == 1 for d in tree.events[-3:] if isinstance(d, NodeDelta))
    tree.accepted(ScoreNodes(3, (0,), ("hello",)))
    tree.send(Prune(4, (0,)))
    tree.run()
    done = {e.command_id: e for e in tree.said(Done)}
    assert done[1].error is None
    assert isinstance(done[3].error, CancelledError)
    assert not tree.said(NodeScored)
    assert tree.port.stats().generated_tokens < 20
    assert tree.session.num_nodes == 0
    assert tree.session.blocks == 0
    tree.close()


def test_pruned_and_finished_nodes_hold_nothing() -> None:
    tree = Driven(port=InlinePort(prefix_cache=False))
    made = tree.ran(Decode(1, (0,), Sample(n=3), SHORT))
    assert tree.port.stats().held_nodes == tree.session.held_nodes == 4
    tree.accepted(Prune(2, (made[0].node,)))
    assert tree.port.stats().held_nodes == tree.session.held_nodes == 3
    tree.accepted(Finish(3, (made[1].node,)))
    assert tree.port.stats().held_nodes == tree.session.held_nodes == 2
    assert tree.port.stats().used_blocks <= tree.session.blocks
    tree.close()


def test_pruning_without_the_subtree_leaves_children_that_go_on() -> None:
    tree = Driven()
    tree.ran(Decode(1, (0,), Greedy(), SHORT))
    tree.accepted(Decode(2, (1,), Greedy(), SHORT))
    tree.step()
    tree.accepted(Prune(3, (1,), subtree=False))
    tree.run()
    child = tree.node(2)
    assert (child.state, child.parent, len(child.token_ids)) == ("stopped", None, 4)
    assert tree.path(2)[:-4] == child.before_ids
    tree.close()


def test_a_stopped_node_keeps_what_it_has_and_can_be_decoded_on() -> None:
    tree = Driven()
    long = Options(max_tokens=60, ignore_eos=True)
    tree.accepted(Decode(1, (0,), Sample(n=2), long))
    for _ in range(5):
        tree.step()
    tree.accepted(Stop(2, (1,)))
    cut = tree.node(1)
    assert (cut.state, cut.finish_reason) == ("stopped", "cancelled")
    assert 0 < len(cut.token_ids) < 60
    tree.ran(Decode(3, (1,), Greedy(), SHORT))
    assert tree.node(1) == dataclasses.replace(cut, text=tree.node(1).text)
    assert len(tree.node(2).token_ids) == 60
    tree.check_heard()
    tree.accepted(Decode(4, (0,), Sample(n=2, seed=9), long))
    tree.step()
    tree.accepted(Stop(5, (0, 4, 5)))
    tree.run()
    assert tree.port.stats().generated_tokens < 150
    tree.close()


@pytest.mark.parametrize("how", [Stop, Prune, Finish])
def test_the_row_of_a_child_that_is_stopped_is_free_at_the_next_step(
    how: type[Stop | Prune | Finish],
) -> None:
    options = Options(max_tokens=30, ignore_eos=True)
    alone = Driven()
    expected = [node.token_ids for node in alone.ran(Decode(1, (0,), Sample(n=4), options))]
    alone.close()
    tree = Driven()
    tree.accepted(Decode(1, (0,), Sample(n=4), options))
    for _ in range(6):
        tree.step()
    assert tree.port.stats().running_rows == 4
    used = tree.port.stats().used_blocks
    tree.accepted(how(2, (2, 4)))
    tree.step()
    assert tree.port.stats().running_rows == 2
    computed = tree.port.runner.computed
    tree.step()
    assert tree.port.runner.computed - computed == 2
    assert tree.port.stats().used_blocks < used
    tree.run()
    assert [tree.node(number).token_ids for number in (1, 3)] == [expected[0], expected[2]]
    assert len(tree.said(Done, 1)) == 1
    if how is Stop:
        assert tree.node(2).token_ids == expected[1][: len(tree.node(2).token_ids)]
        again = tree.ran(Decode(3, (2,), Greedy(), SHORT))
        assert len(again[0].token_ids) == 4
    tree.close()


def test_children_that_are_stopped_before_they_began_never_run() -> None:
    tree = Driven()
    tree.accepted(Decode(1, (0,), Sample(n=4), Options(max_tokens=9, ignore_eos=True)))
    tree.accepted(Stop(2, (1, 3, 4)))
    tree.step()
    assert tree.port.stats().running_rows == 1
    tree.run()
    assert [len(tree.node(number).token_ids) for number in range(1, 5)] == [0, 9, 0, 0]
    assert [node.finish_reason for node in tree.session.snapshot().nodes[1:]] == [
        "cancelled",
        "length",
        "cancelled",
        "cancelled",
    ]
    tree.close()


def test_a_finished_node_is_decoded_on_only_when_extended() -> None:
    tree = Driven()
    [ended] = tree.ran(Decode(1, (0,), Greedy(), ENDS))
    assert (ended.state, ended.finish_reason, ended.token_ids) == ("finished", "eos", (EOS_ID,))
    [fork] = tree.accepted(Fork(2, ended.node))
    assert fork.state == "finished"
    assert "EOS" in str(tree.refused(Decode(3, (fork.node, ended.node))))
    [extended] = tree.accepted(Extend(4, ended.node, " again"))
    assert tree.ran(Decode(5, (extended.node,), Greedy(), SHORT))
    [back] = tree.accepted(Truncate(6, ended.node, len(tree.path(0))))
    assert tree.ran(Decode(7, (back.node,), Greedy(), SHORT))
    tree.accepted(Decode(8, (0,), Sample(), Options(max_tokens=50, ignore_eos=True)))
    tree.step()
    running = tree.session.snapshot().nodes[-1].node
    tree.accepted(Finish(9, (0, running)))
    tree.run()
    assert [tree.node(n).state for n in (0, running)] == ["finished", "finished"]
    assert "told" in str(tree.refused(Decode(10, (0,))))
    assert tree.accepted(Extend(11, 0, "!"))
    tree.close()


def test_scores_of_continuations_and_of_a_nodes_own_tokens() -> None:
    tree = Driven()
    [node] = tree.ran(Decode(1, (0,), Sample(), Options(max_tokens=6, logprobs=0)))
    [given] = tree.accepted(Extend(2, node.node, " world"))
    tree.ran(ScoreNodes(3, (node.node, given.node)))
    own, extension = tree.said(NodeScored)
    assert own.continuations[0].token_ids == node.token_ids
    assert own.continuations[0].cumulative_logprob == pytest.approx(node.cumulative_logprob, abs=1e-4)
    assert extension.continuations[0].text == " world"
    tree.ran(ScoreNodes(4, (node.node,), (" world", "x"), top_logprobs=2))
    both = tree.said(NodeScored)[-1].continuations
    assert both[0].cumulative_logprob == pytest.approx(extension.continuations[0].cumulative_logprob)
    assert len(both[1].logprobs[0].top) == 2
    tree.close()


def test_tokens_are_computed_once_but_for_the_last_of_a_node() -> None:
    tree = Driven(port=InlinePort(prefix_cache=False))
    prompt, length, n = len(tree.path(0)), 4, 3
    options = Options(max_tokens=length, ignore_eos=True)
    computed = 0

    def more() -> int:
        nonlocal computed
        before, computed = computed, tree.port.runner.computed
        return computed - before

    level = tree.ran(Decode(1, (0,), Sample(n=n), options))
    assert more() == prompt + n * (length - 1)
    tree.ran(Decode(2, tuple(node.node for node in level), Sample(n=n), options))
    assert more() == n * (1 + n * (length - 1))
    tree.ran(Decode(3, (0, level[0].node), Sample(n=n, seed=5), options))
    assert more() == 2 * (1 + n * (length - 1))
    [back] = tree.accepted(Truncate(4, level[0].node, prompt + 2))
    forks = tree.accepted(Fork(5, level[1].node, 2))
    tree.ran(Decode(6, (back.node, forks[0].node, forks[1].node), Greedy(), options))
    assert more() == 3 * length
    [given] = tree.accepted(Extend(7, level[2].node, (5, 6, 7)))
    tree.ran(Decode(8, (given.node,), Greedy(), options))
    assert more() == 3 + length
    tree.ran(ScoreNodes(9, (level[0].node,), ((5, 6), (7,))))
    assert more() == 1 + 1
    tree.close()


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


def test_a_group_that_fails_stops_its_nodes_alone() -> None:
    tree = Driven()
    tree.accepted(Decode(1, (0,), Sample(n=2), Options(max_tokens=20, ignore_eos=True)))
    tree.step()
    tree.port.runner.fail_at.add(tree.port.stats().steps + 1)
    tree.run()
    stops = tree.said(NodeStopped)
    assert [(s.node, s.finish_reason, s.state) for s in stops] == [
        (1, "failed", "stopped"),
        (2, "failed", "stopped"),
    ]
    assert stops[0].error is not None
    assert tree.said(Done)[-1].error is stops[0].error
    assert tree.ran(Decode(2, (1,), Greedy(), SHORT))
    tree.check_heard()
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


def test_an_engine_that_goes_down_takes_what_runs_and_refuses_the_rest() -> None:
    tree = Driven()
    tree.accepted(Decode(1, (0,), Sample(n=2), SHORT))
    tree.step()
    [run] = tree.session._runs
    gone = EngineClosedError("gone")
    tree.session.take(EngineItem(run, gone))
    assert {s.error for s in tree.said(NodeStopped)} == {gone}
    assert tree.said(Done)[-1].error is gone
    assert not tree.session.is_running


def test_characters_that_a_node_does_not_complete_are_text_of_those_that_do() -> None:
    tree = Driven("hé")
    e_acute = ids("é")
    assert len(e_acute) == 2
    [first] = tree.accepted(Extend(1, 0, e_acute[:1]))
    [second] = tree.accepted(Extend(2, first.node, (*e_acute[1:], *ids("!"))))
    [broken] = tree.accepted(Extend(3, first.node, ids("!")))
    assert (first.text, second.text, broken.text) == ("", "é!", "\ufffd!")
    [back] = tree.accepted(Truncate(4, second.node, len(tree.path(first.node)) + 1))
    assert back.text == "é"
    half = Driven(e_acute[:1])
    assert half.node(0).text == ""
    assert half.accepted(Extend(1, 0, e_acute[1:]))[0].text == "é"
