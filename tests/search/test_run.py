"""The driver: budgets, what is finished, pruning, verifiers, both kinds of tree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode import InvalidRequestError, Options, Sample
from forkdecode.calls.tree import AsyncTree, Tree
from forkdecode.search import (
    AdaptiveConsistency,
    BestOfN,
    Branch,
    Budget,
    Decoding,
    Dvts,
    Expand,
    Expanded,
    How,
    Mcts,
    Policy,
    Rebase,
    SearchResult,
    SelfConsistency,
    StepBeam,
    TreeQuest,
    Work,
    each,
    puct,
    run,
    run_async,
)
from tests.search.world import AsyncWorld, World, answer, reward, rewards

POLICIES: dict[str, Callable[[], Policy]] = {
    "best of n": lambda: BestOfN(6),
    "weighted": lambda: BestOfN(6, answer=answer),
    "self-consistency": lambda: SelfConsistency(answer, 6),
    "adaptive": lambda: AdaptiveConsistency(answer, 12, batch=3),
    "step beam": lambda: StepBeam(3, 2),
    "dvts": lambda: Dvts(3, 2, answer=answer),
    "rebase": lambda: Rebase(6, aggregate="min"),
    "uct": lambda: Mcts(20, expand=3, batch=2),
    "puct with rollouts": lambda: Mcts(12, expand=2, select=puct(), rollout=True),
    "ab-mcts": lambda: TreeQuest(trials=10),
    "refinement": lambda: TreeQuest(trials=6, batch=2, actions={"try": How(whole=True, after="!")}),
}
DECODING = Decoding(step=("\n",), step_tokens=4, max_tokens=12)


def search(name: str, world: World, budget: Budget | None = None, *, prune: bool = True) -> SearchResult:
    with Tree(world) as tree:
        return run(tree, POLICIES[name](), rewards, budget=budget, decoding=DECODING, prune=prune)


@pytest.mark.parametrize("name", POLICIES)
@given(
    seed=st.integers(0, 50),
    tokens=st.none() | st.integers(0, 60),
    nodes=st.none() | st.integers(0, 25),
    ends=st.sampled_from([0.0, 0.3, 1.0]),
)
@settings(max_examples=30, deadline=None)
def test_budgets_hold_and_nothing_unfinished_is_among_the_finished(
    name: str, seed: int, tokens: int | None, nodes: int | None, ends: float
) -> None:
    world = World(seed, ends=ends)
    result = search(name, world, Budget(tokens, nodes))
    assert (result.spent.tokens, result.spent.nodes) == (world.tokens, world.decoded)
    assert tokens is None or world.tokens <= tokens
    assert nodes is None or world.decoded <= nodes
    assert result.ended in ("policy", "tokens", "nodes")
    if result.ended == "tokens":
        assert world.tokens == tokens
    if result.ended == "nodes":
        assert world.decoded == nodes
    for branch in result.finished:
        assert branch.is_finished
        assert branch.finish_reason in ("eos", "stop")
        assert world.places[branch.id].path == f"{seed}:{branch.transcript}"
    for branch in result.unfinished:
        assert not branch.is_finished
        assert branch.finish_reason in ("step", "length")
        assert (branch.state == "cut") == (branch.path_tokens >= 12)
    for branch in (*result.finished, *result.unfinished):
        assert branch.path_tokens <= 12
        assert branch.score is None or branch.score == reward(branch)
    assert len({b.id for b in (*result.finished, *result.unfinished)}) == len(result.finished) + len(
        result.unfinished
    )


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_again_and_the_same_in_an_event_loop(name: str) -> None:
    async def elsewhere() -> SearchResult:
        async with await AsyncTree.create(AsyncWorld(World(3))) as tree:
            return await run_async(
                tree, POLICIES[name](), each(slowly), budget=Budget(tokens=50), decoding=DECODING
            )

    async def slowly(branch: Branch) -> float:
        await asyncio.sleep(0)
        return reward(branch)

    first = search(name, World(3), Budget(tokens=50))
    assert first.spent.nodes > 0
    for again in (search(name, World(3), Budget(tokens=50)), asyncio.run(elsewhere())):
        assert replace(again, spent=first.spent) == first
        assert replace(again.spent, seconds=0.0) == replace(first.spent, seconds=0.0)


@pytest.mark.parametrize("name", ["step beam", "uct", "weighted"])
def test_one_policy_runs_one_search_after_another(name: str) -> None:
    policy = POLICIES[name]()
    results = []
    for _ in range(2):
        with Tree(World(3)) as tree:
            results.append(run(tree, policy, rewards, decoding=DECODING))
    assert replace(results[1], spent=results[0].spent) == results[0]


@pytest.mark.parametrize("name", ["step beam", "dvts", "rebase"])
def test_what_is_given_up_is_pruned_and_only_if_that_is_wanted(name: str) -> None:
    world, untouched = World(5, ends=0.1), World(5, ends=0.1)
    first, second = search(name, world), search(name, untouched, prune=False)
    assert world.pruned
    assert not untouched.pruned
    assert not {b.id for b in (*first.finished, *first.unfinished)} & world.pruned
    assert second.finished == first.finished


class Once:
    """Wants one thing."""

    def __init__(self, *expand: Expand) -> None:
        self.expand, self.results = expand, list[Expanded]()

    def begin(self, root: Branch) -> None:
        self.left = True

    def ask(self) -> Work:
        left, self.left = self.left, False
        return Work(self.expand if left else ())

    def tell(self, results: Sequence[Expanded]) -> None:
        self.results += results

    def ranked(self) -> Sequence[Branch]:
        return [b for result in self.results for b in result.children]


def test_time_stops_what_runs() -> None:
    world = World(1, stuck=True)
    with Tree(world) as tree:
        policy = BestOfN(3)
        result = run(tree, policy, rewards, budget=Budget(seconds=0.05), decoding=DECODING)
    assert result.ended == "seconds"
    assert not result.finished
    assert [b.finish_reason for b in result.unfinished] == ["cancelled"] * 3


def test_time_stops_what_runs_in_an_event_loop() -> None:
    async def timed() -> SearchResult:
        async with await AsyncTree.create(AsyncWorld(World(1, stuck=True))) as tree:
            return await run_async(tree, BestOfN(3), rewards, budget=Budget(seconds=0.05))

    result = asyncio.run(timed())
    assert result.ended == "seconds"
    assert [b.finish_reason for b in result.unfinished] == ["cancelled"] * 3


def test_cancelling_prunes_what_runs() -> None:
    world = World(1, stuck=True)

    async def cancelled() -> None:
        async with await AsyncTree.create(AsyncWorld(world)) as tree:
            task = asyncio.create_task(run_async(tree, BestOfN(3), rewards))
            while world.decoded < 3:
                await asyncio.sleep(0)
            for _ in range(5):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancelled())
    assert world.pruned == {1, 2, 3}


def test_a_policy_cannot_pass_unfinished_branches_off_as_finished() -> None:
    with Tree(World(ends=0.0)) as tree, pytest.raises(InvalidRequestError, match="policy: ranks branch 1"):
        run(tree, Once(Expand(0)), rewards, decoding=DECODING)


@pytest.mark.parametrize(
    ("expand", "message"),
    [(Expand(7), "7, which is unknown"), (Expand(0, score="all"), "verifier: is missing")],
)
def test_what_a_policy_cannot_ask(expand: Expand, message: str) -> None:
    with Tree(World()) as tree, pytest.raises(InvalidRequestError, match=message):
        run(tree, Once(expand), decoding=DECODING)


def test_finished_branches_go_on_only_after_a_given_text() -> None:
    world = World(2)
    with Tree(world) as tree:
        first = Once(Expand(0, how=How(whole=True), score="none"))
        decoding = Decoding(max_tokens=200)
        run(tree, first, decoding=decoding)
        done = first.results[0].children[0]

        class Twice(Once):
            how = How(whole=True)

            def ask(self) -> Work:
                if not self.results:
                    return Work((Expand(0, 2, How(whole=True), "none"),))
                if len(self.results) == 1:
                    return Work(tuple(Expand(b.id, 1, self.how) for b in self.ranked()))
                return Work()

        refined = Twice()
        refined.how = How(whole=True, after="again:")
        result = run(tree, refined, rewards, decoding=decoding)
        for one, two in zip(refined.results[0].children, refined.results[1:], strict=True):
            child = two.children[0]
            assert child.transcript == one.transcript + "again:" + child.text
            assert child.completion == child.text
            assert child.parent == one.id
        assert len(world.pruned) == 2  # the given texts' own nodes
        assert not result.unfinished
        plain = Twice()
        with pytest.raises(InvalidRequestError, match="which is finished"):
            run(tree, plain, rewards, decoding=decoding)
    assert done.is_finished


def test_tries_after_the_same_text_differ() -> None:
    with Tree(World(2)) as tree:
        how = How(whole=True, after="again:")
        policy = Once(Expand(0, 2, how, "none"), Expand(0, 2, how, "none"))
        result = run(tree, policy, decoding=Decoding(max_tokens=200))
    assert len({branch.text for branch in result.finished}) == 4


@pytest.mark.parametrize("scores", [[1.0], ["a"] * 4, [float("nan")] * 4, None, [float("inf")] * 4])
def test_wrong_scores_are_refused(scores: object) -> None:
    with Tree(World()) as tree, pytest.raises(InvalidRequestError, match="one finite number for each of 4"):
        run(tree, Once(Expand(0, 4)), lambda branches: scores, decoding=DECODING)  # type: ignore[arg-type]


def test_a_verifier_that_fails_leaves_what_was_found() -> None:
    policy = StepBeam(4, 4)
    calls = []

    def failing(branches: Sequence[Branch]) -> list[float]:
        calls.append(len(branches))
        if len(calls) == 3:
            raise RuntimeError("no more")
        return rewards(branches)

    with Tree(World(4)) as tree, pytest.raises(RuntimeError, match="no more"):
        run(tree, policy, failing, decoding=DECODING)
    assert policy.ranked()


def test_given_texts_leave_the_tree_when_a_verifier_fails() -> None:
    def failing(branches: Sequence[Branch]) -> list[float]:
        raise RuntimeError("no more")

    async def elsewhere() -> set[int]:
        world = World(4)
        async with await AsyncTree.create(AsyncWorld(world)) as tree:
            with pytest.raises(RuntimeError, match="no more"):
                await run_async(tree, Once(Expand(0, 2, after)), failing)
        return world.pruned

    after, world = How(whole=True, after="again:"), World(4)
    with Tree(world) as tree:
        with pytest.raises(RuntimeError, match="no more"):
            run(tree, Once(Expand(0, 2, after)), failing)
        assert [node.id for node in tree.nodes] == [0, 2, 3]
    assert world.pruned == asyncio.run(elsewhere()) == {1}


@pytest.mark.parametrize(
    ("prune", "left"),
    [
        (((1,),), [2, 5]),
        (((1,), (3,)), [2, 5, 6]),
        (((3, 1),), [2, 5]),
        (((1, 3, 1, 77),), [2, 5]),
        (((3, 3),), [2, 4, 5]),
    ],
    ids=str,
)
def test_what_is_given_up_takes_all_that_comes_after_it_along(
    prune: tuple[tuple[int, ...], ...], left: list[int]
) -> None:
    """1 and 2 below the root, 3 and 4 below 1; then one below 0 with each pruning."""
    works = [Work((Expand(0, 2, score="none"),)), Work((Expand(1, 2, score="none"),))]
    works += [Work((Expand(0, 1, score="none"),), numbers) for numbers in prune]

    class Planned(Once):
        def ask(self) -> Work:
            return works[len(self.results)] if len(self.results) < len(works) else Work()

        def ranked(self) -> Sequence[Branch]:
            return []

    with Tree(World(5, ends=0.0)) as tree:
        result = run(tree, Planned(), decoding=DECODING)
        assert [branch.id for branch in result.unfinished] == left
        live = {node.id for node in tree.nodes}
    assert live >= set(left)
    assert live - set(left) <= {0, 1}


def test_starts_that_are_alike_are_one_command() -> None:
    world = World(5, ends=0.0)
    with Tree(world) as tree:
        run(tree, StepBeam(3, 2, max_steps=2), rewards, decoding=DECODING)
        run(tree, Dvts(3, 2, max_steps=1), rewards, decoding=DECODING)
    decodes = [c for c in world.commands if type(c).__name__ == "Decode"]
    assert [len(c.nodes) for c in decodes] == [1, 3, 1, 1, 1]  # type: ignore[union-attr]


def test_wrong_arguments_are_refused_by_name() -> None:
    with Tree(World()) as tree:
        for field, call in {
            "verifier": lambda: run(tree, BestOfN(2), 3),  # type: ignore[arg-type]
            "tree": lambda: run(None, BestOfN(2)),  # type: ignore[arg-type]
            "tokens": lambda: Budget(tokens=-1),
            "seconds": lambda: Budget(seconds=float("nan")),
            "sample": lambda: Decoding(sample=Sample(seed=3)),
            "step_tokens": lambda: Decoding(step_tokens=0),
            "options": lambda: Decoding(options={}),  # type: ignore[arg-type]
            "n": lambda: Expand(0, 0),
            "score": lambda: Expand(0, score="some"),  # type: ignore[arg-type]
            "prune": lambda: run(tree, BestOfN(2), rewards, prune=1),  # type: ignore[arg-type]
            "policy": lambda: run(tree, BestOfN, rewards),  # type: ignore[arg-type]
            "root": lambda: run(tree, BestOfN(2), rewards, root=0),  # type: ignore[arg-type]
            "budget": lambda: run(tree, BestOfN(2), rewards, budget=5),  # type: ignore[arg-type]
            "decoding": lambda: run(tree, BestOfN(2), rewards, decoding=Options()),  # type: ignore[arg-type]
        }.items():
            with pytest.raises(InvalidRequestError) as caught:
                call()
            assert caught.value.field == field, field
        for wrong in (5, Once, [BestOfN(2)]):
            with pytest.raises(InvalidRequestError, match=r"^policy: "):
                run(tree, wrong, rewards)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=r"^verifier: 5 is not callable"):
        each(5)  # type: ignore[arg-type]
    assert Decoding(options=Options(min_tokens=9, max_tokens=20)).limited(5).min_tokens == 5
