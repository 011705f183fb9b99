"""Branches that nothing is legal after: the others are searched on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from forkdecode import LLM, AsyncClient, NoLegalTokenError, Options, Sample
from forkdecode.search import (
    Branch,
    Budget,
    Decoding,
    Expand,
    How,
    SearchResult,
    StepBeam,
    Work,
    run,
    run_async,
)
from tests.llm.models import ids, opened
from tests.search.test_run import POLICIES
from tests.search.test_run import Once as OneWork
from tests.search.world import rewards
from tests.server.servers import running_server

ONCE = Options(allowed_token_ids=ids("abcde"), no_repeat_ngram_size=1, ignore_eos=True, stop=("ab", "cd"))
"""Each letter once, so that a path has five tokens at most."""
DECODING = Decoding(Sample(temperature=1.2), step=("e", "d", "b"), step_tokens=2, max_tokens=30, options=ONCE)
BUDGET = Budget(tokens=200)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with opened(block_size=16) as llm:
        yield llm


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_goes_on_with_the_others(name: str, llm: LLM) -> None:
    ended = []
    for seed in range(4):
        with llm.tree("hi", seed=seed) as tree:
            result = run(tree, POLICIES[name](), rewards, budget=BUDGET, decoding=DECODING, prune=False)
            assert all(node.token_ids for node in tree.nodes)
            assert len(tree.nodes) == 1 + result.spent.nodes
        ended.append(result.ended)
    assert set(ended) == {"policy"}


def test_a_branch_that_was_found_to_be_a_dead_end_is_cut(llm: LLM) -> None:
    """A step of five letters is open; the next step finds nothing."""
    held = replace(DECODING, step_tokens=5, options=replace(ONCE, stop=()), step=("!",))
    with llm.tree("hi", seed=1) as tree:
        result = run(tree, StepBeam(2, 2), rewards, budget=BUDGET, decoding=held)
    assert [branch.state for branch in result.unfinished] == ["cut"] * 2
    assert result.spent.nodes == 4


def test_the_same_by_a_server_and_in_an_event_loop(llm: LLM) -> None:
    async def elsewhere(address: str) -> SearchResult:
        async with AsyncClient(address) as client, await client.tree("hi", seed=2) as tree:
            return await run_async(
                tree, POLICIES["puct with rollouts"](), rewards, budget=BUDGET, decoding=DECODING
            )

    with llm.tree("hi", seed=2) as tree:
        here = run(tree, POLICIES["puct with rollouts"](), rewards, budget=BUDGET, decoding=DECODING)
    with running_server(llm) as server:
        there = asyncio.run(elsewhere(server.address))
    assert [(b.state, b.transcript) for b in there.unfinished] == [
        (b.state, b.transcript) for b in here.unfinished
    ]
    assert [b.transcript for b in there.finished] == [b.transcript for b in here.finished]
    assert llm.stats().held_nodes == 0


def test_nothing_can_follow_the_root(llm: LLM) -> None:
    with llm.tree("abcde", seed=1) as tree:
        with pytest.raises(NoLegalTokenError):
            run(tree, StepBeam(2, 2), rewards, decoding=DECODING)
        assert tree.nodes == (tree.root,)


class Twice(OneWork):
    """Expands its first child by the same work again and again."""

    def ask(self) -> Work:
        if not self.results:
            return Work((Expand(0, 1, score="none"),))
        child = self.results[0].children[0].id
        how = How(after="abcde")
        return Work((Expand(child, 2, how, "none"),) if len(self.results) < 4 else ())

    def ranked(self) -> Sequence[Branch]:
        return []


def test_a_dead_end_behind_a_given_text_is_the_texts(llm: LLM) -> None:
    policy = Twice()
    with llm.tree("hi", seed=1) as tree:
        result = run(tree, policy, decoding=replace(DECODING, step_tokens=1))
        assert len(tree.nodes) == 2
    assert [one.is_stuck for one in policy.results] == [False, True, True, True]
    assert not any(one.children for one in policy.results[1:])
    assert [branch.state for branch in result.unfinished] == ["open"]
    assert result.spent.nodes == 1
