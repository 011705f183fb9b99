"""What each command does."""

from __future__ import annotations

import dataclasses

import pytest

from forkdecode.errors import CancelledError, EngineClosedError
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
    NodeDelta,
    NodeScored,
    NodesPruned,
    NodeStopped,
    Prune,
    ScoreNodes,
    Stop,
    Truncate,
)
from forkdecode.types import Greedy, Options, Sample
from tests.llm.models import EOS_ID, ids
from tests.tree.driven import Driven, InlinePort
from tests.tree.session_options import ENDS, SHORT


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
