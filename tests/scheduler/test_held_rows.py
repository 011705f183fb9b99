"""Nodes hold what was computed: nothing is computed twice, and running work never lacks room for it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from forkdecode.errors import InvalidRequestError
from forkdecode.scheduler.events import GroupFailed, GroupFinished
from forkdecode.scheduler.request import DecodeRequest, NodeRef, Release, Share
from forkdecode.types import Beam, BestOf, Greedy, Sample, Strategy
from tests.scheduler.engines import assert_idle, decode_alone, request, run, score_request, tokens, toy_engine
from tests.scheduler.toy import EMPTY

PROMPT = list(range(3, 26))


def node(number: int) -> NodeRef:
    return NodeRef("t", number)


class Tree:
    """A tree on an engine: paths by node number, and what each command computed."""

    def __init__(self, **config: Any) -> None:
        self.engine = toy_engine(**config)
        self.paths: dict[int, list[int]] = {0: PROMPT}
        self.next = 1

    def command(self, at: int, strategy: Strategy, **options: Any) -> DecodeRequest:
        what = request(f"r{self.next}", self.paths[at], strategy, **options)
        what = dataclasses.replace(what, origin=node(at), keep=node(self.next))
        self.next += 100
        return what

    def take(self, what: DecodeRequest, event: Any) -> list[int]:
        assert isinstance(event, GroupFinished), event
        assert tokens(event.candidates) == tokens(decode_alone(what))
        assert what.keep is not None
        for candidate in event.candidates:
            path = self.paths[what.origin.node] if what.origin else []
            self.paths[what.keep.node + candidate.index] = [*path, *candidate.token_ids]
        return [what.keep.node + candidate.index for candidate in event.candidates]

    def decode(self, at: int, n: int = 1, max_tokens: int = 5, **options: Any) -> list[int]:
        what = self.command(at, Sample(n=n, seed=at), max_tokens=max_tokens, **options)
        self.engine.submit(what)
        return self.take(what, run(self.engine)[what.request_id])

    def extend(self, at: int, more: list[int]) -> int:
        child, self.next = self.next, self.next + 1
        self.engine.tree(Share(node(at), (node(child),), len(self.paths[at]) - 1))
        self.paths[child] = self.paths[at] + more
        return child

    @property
    def computed(self) -> int:
        """Tokens that went through the model."""
        return self.engine._runner.computed  # type: ignore[attr-defined, no-any-return]

    def end(self) -> None:
        self.engine.tree(Release("t"))
        assert_idle(self.engine)
        assert self.engine.stats().held_nodes == 0


@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_a_tree_computes_each_token_once_and_a_nodes_last_once_a_command(
    block_size: int, prefix_cache: bool
) -> None:
    tree = Tree(block_size=block_size, prefix_cache=prefix_cache)
    leaves, commands = [0], 0
    for _ in range(3):
        grown = []
        for leaf in leaves:
            before = tree.computed
            grown += tree.decode(leaf, n=3, max_tokens=5)
            commands += 1
            # Of the path the last token (all of the root's), once for all three; of five new ones four.
            assert tree.computed - before == (len(PROMPT) if leaf == 0 else 1) + 3 * 4
        leaves = grown
    assert tree.engine.stats().prefill_tokens == len(PROMPT) - 1
    tree.decode(0, n=2)
    assert tree.engine.stats().prefill_tokens == len(PROMPT) - 1
    assert tree.engine.stats().rebuilt_tokens == 0
    tree.end()


def test_what_is_added_to_a_node_is_computed_once_for_all_later_commands() -> None:
    tree = Tree(prefix_cache=False)
    tree.decode(0)
    child = tree.extend(0, [9, 8, 7])
    before = tree.engine.stats().prefill_tokens
    tree.decode(child)
    assert tree.engine.stats().prefill_tokens - before == 3  # the root's last token and two of the new ones
    tree.decode(child)
    assert tree.engine.stats().prefill_tokens - before == 3
    tree.end()


def test_a_cut_path_and_scores_begin_with_what_is_held() -> None:
    tree = Tree(prefix_cache=False)
    [leaf] = tree.decode(0, max_tokens=6)
    tree.engine.tree(Share(node(leaf), (node(50),), 19))
    tree.paths[50] = PROMPT[:20]
    before = tree.engine.stats().prefill_tokens
    tree.decode(50)
    what = score_request("s", tree.paths[leaf], [[4, 5, 6], [7], [4, 9]])
    what = dataclasses.replace(what, origin=node(leaf), keep=node(60))
    tree.engine.submit(what)
    event = run(tree.engine)["s"]
    tree.take(what, event)
    for i in range(3):
        tree.decode(60 + i)
    assert tree.engine.stats().prefill_tokens == before
    tree.end()


@pytest.mark.parametrize("mode", ["swap", "recompute"])
def test_idle_nodes_make_room_before_anything_that_runs(mode: str) -> None:
    tree = Tree(num_blocks=40, host_slots=400, preemption=mode, prefix_cache=False)
    leaves = tree.decode(0, n=4, max_tokens=9)
    big = request("big", [3] * 60, Greedy(), max_tokens=60)
    tree.engine.submit(big)
    event = run(tree.engine)["big"]
    assert isinstance(event, GroupFinished)
    assert tokens(event.candidates) == tokens(decode_alone(big))
    stats = tree.engine.stats()
    assert stats.preemptions == 0
    assert (stats.swapped_nodes > 0, stats.dropped_nodes > 0) == (mode == "swap", mode != "swap")
    before = stats.prefill_tokens
    for leaf in leaves:
        tree.decode(leaf)
    after = tree.engine.stats()
    assert (after.rebuilt_tokens > 0) == (mode == "recompute")
    assert after.prefill_tokens - before == after.rebuilt_tokens
    tree.end()


def test_what_siblings_share_goes_to_the_host_once_and_is_rebuilt_once() -> None:
    for mode in ("swap", "recompute"):
        tree = Tree(preemption=mode, prefix_cache=False)
        leaves = tree.decode(0, n=4, max_tokens=9)
        unique = tree.engine.stats().held_blocks
        scheduler = tree.engine.scheduler
        scheduler.held.reclaim(scheduler.pool.num_blocks, (), scheduler._planner.moves)
        assert tree.engine.stats().held_blocks == 0
        for leaf in leaves:
            tree.decode(leaf, max_tokens=1)
        stats = tree.engine.stats()
        if mode == "swap":
            assert stats.swapped_blocks == unique
            assert stats.rebuilt_tokens == 0
        else:
            # The last leaf rebuilds all of its row, the others what is behind the prompt's full blocks.
            path = len(PROMPT) + 9 - 1
            assert stats.rebuilt_tokens == path + 3 * (path - len(PROMPT) // 4 * 4)
        tree.end()


def test_a_dropped_node_is_found_in_the_prefix_cache() -> None:
    tree = Tree(preemption="recompute")
    [leaf] = tree.decode(0, max_tokens=9)
    scheduler = tree.engine.scheduler
    scheduler.held.reclaim(scheduler.pool.num_blocks, (), scheduler._planner.moves)
    assert tree.engine.stats().used_blocks == 0
    tree.decode(leaf)
    assert tree.engine.stats().rebuilt_tokens == (len(PROMPT) + 9 - 1) % 4
    tree.end()


def test_a_running_groups_swap_is_worth_more_than_nodes_in_host_memory() -> None:
    tree = Tree(num_blocks=400, host_slots=12, preemption="swap", prefix_cache=False)
    [leaf] = tree.decode(0, max_tokens=9)
    scheduler = tree.engine.scheduler
    scheduler.held.reclaim(400, (), scheduler._planner.moves)
    what = request("x", [5] * 30, Greedy(), max_tokens=9)
    tree.engine.submit(what)
    tree.engine.step()
    scheduler.preempt("x")
    event = run(tree.engine)["x"]
    assert isinstance(event, GroupFinished)
    assert event.usage.recomputed_tokens == 0
    assert event.usage.swapped_blocks > 0
    assert tree.engine.stats().dropped_nodes > 0
    tree.decode(leaf)
    tree.end()


def test_release_while_a_group_runs_leaves_nothing_and_later_use_holds_again() -> None:
    tree = Tree()
    what = tree.command(0, Sample(n=3, seed=1), max_tokens=6)
    tree.engine.submit(what)
    tree.engine.step()
    assert tree.engine.stats().held_nodes == 1
    tree.engine.tree(Release("t"))
    later = tree.command(0, Greedy(), max_tokens=20)
    tree.engine.submit(later)
    last = run(tree.engine)
    assert last[what.request_id].candidates == ()  # nobody waits for nodes that have been let go
    assert tokens(last[later.request_id].candidates) == tokens(decode_alone(later))  # type: ignore[union-attr]
    assert later.keep is not None
    assert set(tree.engine.scheduler.held._rows) == {node(0), later.keep}
    tree.end()


def test_candidates_that_do_not_come_back_leave_nothing() -> None:
    tree = Tree()
    what = tree.command(0, BestOf(best_of=4, n=2, seed=3), eos=[1, 2], max_tokens=7)
    tree.engine.submit(what)
    kept = tree.take(what, run(tree.engine)[what.request_id])
    assert set(tree.engine.scheduler.held._rows) == {node(0), *map(node, kept)}
    tree.engine._runner.fail_at = {tree.engine.scheduler._planner.step + 3}  # type: ignore[attr-defined]
    failing = tree.command(0, Sample(n=4, seed=3), eos=list(range(8)), max_tokens=30)
    tree.engine.submit(failing)
    failed = run(tree.engine)[failing.request_id]
    assert isinstance(failed, GroupFailed)
    assert failed.kept == ()
    assert set(tree.engine.scheduler.held._rows) == {node(0), *map(node, kept)}
    tree.end()


def test_a_cancelled_group_leaves_what_it_returns() -> None:
    tree = Tree()
    what = tree.command(0, Sample(n=3, seed=1), max_tokens=50)
    tree.engine.submit(what)
    for _ in range(4):
        tree.engine.step()
    [event] = tree.engine.cancel(what.request_id)
    assert isinstance(event, GroupFailed)
    assert what.keep is not None
    assert set(event.kept) == {candidate.index for candidate in event.candidates}
    before = tree.engine.stats().prefill_tokens
    for candidate in event.candidates:
        assert len(candidate.token_ids) == 4
        number = what.keep.node + candidate.index
        tree.paths[number] = [*PROMPT, *candidate.token_ids]
        tree.decode(number)
    assert tree.engine.stats().prefill_tokens == before
    tree.end()


def test_beams_begin_at_nodes_but_none_keeps_them() -> None:
    tree = Tree(prefix_cache=False)
    tree.decode(0)
    beam = tree.command(0, Beam(width=3), eos=[1], max_tokens=6)
    with pytest.raises(InvalidRequestError, match="keep: nodes keep candidates, and those of a beam"):
        tree.engine.submit(beam)
    before = tree.engine.stats().prefill_tokens
    tree.engine.submit(dataclasses.replace(beam, keep=None))
    event = run(tree.engine)[beam.request_id]
    assert isinstance(event, GroupFinished)
    assert tokens(event.candidates) == tokens(decode_alone(dataclasses.replace(beam, keep=None)))
    assert tree.engine.stats().prefill_tokens == before
    tree.end()


def test_a_group_alone_gets_even_what_its_own_node_holds() -> None:
    """A pool in which the request fits exactly, with its node's last block held besides."""
    tree = Tree(num_blocks=16, block_size=4, prefix_cache=False)
    [leaf] = tree.decode(0, max_tokens=4)
    path = len(tree.paths[leaf])
    longest = 4 * (16 - 1 - -(-path // 4)) - path % 4
    tree.decode(leaf, max_tokens=longest)
    tree.end()


def test_a_group_alone_gets_what_its_node_can_do_nothing_with() -> None:
    """Its node's row has lost its first block, and what it still has behind the gap is all that there is."""
    tree = Tree(num_blocks=9, block_size=4, host_slots=0, preemption="recompute")

    def score(name: str, path: list[int], at: int | None = None) -> None:
        what = score_request(name, path, [[7]])
        tree.engine.submit(what if at is None else dataclasses.replace(what, origin=node(at)))
        assert isinstance(run(tree.engine, limit=100)[name], GroupFinished)

    score("first", PROMPT, 0)
    [fork] = forked(tree, 0, 1)
    score("all", [28] * 28)  # both rows lose their blocks, of which the cache keeps the first
    score("begins alike", [*PROMPT[:4], 30], 900)  # and another node holds the first now
    score("again", PROMPT, 0)  # so that the fork finds all of its blocks again but that one
    [later] = forked(tree, fork, 1)
    tree.engine.tree(Release("t", (0, 900)))
    score("most", [29] * 20)  # the first block is evicted
    held = dict(tree.engine.scheduler.held.rows())
    assert (held[node(later)] >= 0).tolist() == [False, True, True, True, True, False]
    score("with a gap", PROMPT, later)
    tree.end()


def test_a_group_alone_comes_back_from_the_host_whatever_its_node_holds() -> None:
    tree = Tree(num_blocks=9, block_size=4, preemption="swap", prefix_cache=False)
    what = tree.command(0, Sample(n=1, seed=1), max_tokens=5)
    tree.engine.submit(what)
    for _ in range(3):
        tree.engine.step()
    tree.engine.scheduler.preempt(what.request_id)
    ended = run(tree.engine, limit=100)[what.request_id]
    tree.take(what, ended)
    assert ended.usage.swapped_blocks > 0
    tree.end()


def forked(tree: Tree, at: int, count: int) -> list[int]:
    """Nodes of the same path as `at`, which share what it holds."""
    numbers = list(range(tree.next, tree.next + count))
    tree.next += count
    tree.engine.tree(Share(node(at), tuple(map(node, numbers)), len(tree.paths[at])))
    tree.paths |= dict.fromkeys(numbers, tree.paths[at])
    return numbers


def started(tree: Tree, nodes: list[int], **options: Any) -> list[DecodeRequest]:
    """A command of each, all before a step."""
    asked = [tree.command(at, Sample(n=2, seed=at), max_tokens=4, **options) for at in nodes]
    for what in asked:
        tree.engine.submit(what)
    return asked


@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("chunk", [3, 1000])
def test_commands_that_start_together_compute_what_they_share_once(prefix_cache: bool, chunk: int) -> None:
    tree = Tree(block_size=4, prefix_cache=prefix_cache, max_prefill_tokens=chunk, max_step_tokens=chunk + 40)
    longer = tree.extend(0, [4, 5, 6, 7, 8, 9])
    asked = started(tree, [*forked(tree, 0, 3), longer, 0])
    ended = run(tree.engine)
    for what in asked:
        tree.take(what, ended[what.request_id])
    assert tree.engine.stats().prefill_tokens == len(PROMPT) - 1 + 6
    tree.end()


@pytest.mark.parametrize(("block_size", "other"), [(32, "t"), (4, "u")])
def test_nobody_waits_for_less_than_a_block_nor_for_another_tree(block_size: int, other: str) -> None:
    tree = Tree(block_size=block_size, prefix_cache=False)
    [first] = started(tree, forked(tree, 0, 1))
    second = dataclasses.replace(tree.command(0, Greedy(), max_tokens=4), origin=NodeRef(other, 0), keep=None)
    tree.engine.submit(second)
    tree.engine.step()
    assert tree.engine.stats().running_groups == 2
    assert set(run(tree.engine)) == {first.request_id, second.request_id}
    assert tree.engine.stats().prefill_tokens == 2 * (len(PROMPT) - 1)
    tree.engine.tree(Release("u"))
    tree.end()


@pytest.mark.parametrize("end", ["cancel", "preempt", "release", "release it"])
def test_who_waits_goes_on_when_the_one_that_computes_does_not(end: str) -> None:
    tree = Tree(block_size=4, prefix_cache=False, max_prefill_tokens=4, max_step_tokens=8)
    first, second = started(tree, forked(tree, 0, 2))
    tree.engine.step()
    assert tree.engine.stats().running_groups == 1
    assert first.origin is not None
    assert second.origin is not None
    if end == "cancel":
        tree.engine.cancel(first.request_id)
    elif end == "preempt":
        tree.engine.scheduler.preempt(first.request_id)
    else:
        released = first.origin.node if end == "release" else second.origin.node
        tree.engine.tree(Release("t", (released,)))
    ended = run(tree.engine)
    tree.take(second, ended[second.request_id])
    if end != "cancel":
        tree.take(first, ended[first.request_id])
    tree.end()


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_what_is_forgotten_is_computed_again_wherever_it_was(prefix_cache: bool) -> None:
    tree = Tree(num_blocks=40, host_slots=400, preemption="swap", prefix_cache=prefix_cache)
    leaves = [leaf for _ in range(4) for leaf in tree.decode(0, n=4, max_tokens=9)]
    stats = tree.engine.stats()
    assert stats.swapped_nodes > 0
    tree.engine.scheduler.forget()
    after = tree.engine.stats()
    assert (after.held_nodes, after.used_blocks, after.cached_blocks) == (stats.held_nodes, 0, 0)
    runner: Any = tree.engine._runner
    runner.store[:] = runner.host[:] = EMPTY
    before = tree.computed
    grown = tree.decode(leaves[0], n=2)
    assert tree.computed - before >= len(tree.paths[leaves[0]])
    before = tree.computed
    tree.decode(grown[0])
    assert tree.computed - before < len(PROMPT)
    tree.end()
