"""Branches near the model's last position, and answers that begin with a forced prefix."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from forkdecode import LLM, AsyncClient, Client, InvalidRequestError, Options, Sample
from forkdecode.constraint_types import Regex
from forkdecode.search import (
    BestOfN,
    Branch,
    Budget,
    Decoding,
    Expand,
    Expanded,
    How,
    Policy,
    SearchResult,
    StepBeam,
    Work,
    YesNoScorer,
    run,
    run_async,
    top_n,
)
from tests.llm.models import TOKENIZER, opened
from tests.search.test_run import POLICIES
from tests.search.world import rewards
from tests.server.servers import running_server

POSITIONS = 512
LONG = [5] * (POSITIONS - 9)
STEPS = Decoding(Sample(temperature=1.2), step=("e",), step_tokens=6, max_tokens=200)
FORCED = (5, 6, 7)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with opened(block_size=16) as llm:
        yield llm


def search(llm: LLM, policy: Policy, decoding: Decoding, prompt: Any = "hello", **more: Any) -> SearchResult:
    with llm.tree(prompt, seed=4) as tree:
        result = run(tree, policy, rewards, decoding=decoding, **more)
        for branch in (*result.finished, *result.unfinished):
            node = tree.node(branch.id)
            full = node.num_tokens == POSITIONS or branch.path_tokens == decoding.max_tokens
            assert branch.is_finished or (branch.state == "cut") == full
    return result


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_ends_at_the_models_last_position(name: str, llm: LLM) -> None:
    result = search(llm, POLICIES[name](), STEPS, LONG, budget=Budget(tokens=300))
    assert result.spent.nodes
    assert result.finished or any(branch.state == "cut" for branch in result.unfinished)


def test_whole_answers_of_the_default_length(llm: LLM) -> None:
    result = search(llm, BestOfN(2), Decoding(options=Options(ignore_eos=True)), [5] * 400)
    assert [branch.path_tokens for branch in result.unfinished] == [POSITIONS - 400] * 2


class Again:
    """Goes on from what it drew last, after the same text."""

    def __init__(self, after: str) -> None:
        self.how, self.results = How(whole=True, after=after), list[Expanded]()

    def begin(self, root: Branch) -> None:
        self.node = root.id

    def ask(self) -> Work:
        return Work((Expand(self.node, 1, self.how),) if len(self.results) < 15 else ())

    def tell(self, results: Sequence[Expanded]) -> None:
        self.results += results
        for child in results[0].children:
            self.node = child.id

    def ranked(self) -> Sequence[Branch]:
        return []


@pytest.mark.parametrize("after", ["try again " * 5, "x"])
def test_given_texts_take_room_too(llm: LLM, after: str) -> None:
    policy = Again(after)
    answers = Options(constraint=Regex("[ab]{40}"))
    search(llm, policy, Decoding(max_tokens=1000, options=answers))
    made = [len(result.children) for result in policy.results]
    assert made == sorted(made, reverse=True)
    assert set(made) == {0, 1}


def test_the_text_to_be_given_is_longer_than_what_any_path_has_room_for(llm: LLM) -> None:
    policy = Again("try again " * 5)
    result = search(llm, policy, STEPS, LONG)
    assert not result.spent.nodes
    assert len(policy.results) == 15


def test_a_root_without_room_is_refused_by_name(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match=r"^root: has a path of 512 tokens; .* at most 511 with"):
        search(llm, BestOfN(2), STEPS, [5] * POSITIONS)


def test_a_question_that_the_model_has_no_positions_for_is_refused_by_name(llm: LLM) -> None:
    with llm.tree(LONG, seed=4) as tree:
        with pytest.raises(InvalidRequestError, match=r"^continuation: makes a path of \d+ tokens"):
            run(tree, StepBeam(2, 2), YesNoScorer(), decoding=STEPS)
        assert len(tree.nodes) == 1 + 4  # the branches, and no question


def test_top_n_ends_at_the_models_last_position(llm: LLM) -> None:
    chosen = Options(constraint=Regex("[ab]{1,9}"), max_tokens=20)
    with llm.tree([5] * (POSITIONS - 3)) as tree:
        assert tree.max_positions == POSITIONS
        found = top_n(tree, 50, options=chosen)
    assert found.exact
    assert {len(item.token_ids) for item in found.items} == {2, 3}
    assert len(found.items) == 2 + 4


def test_it_is_the_same_by_a_server_and_in_an_event_loop(llm: LLM) -> None:
    async def elsewhere(address: str) -> SearchResult:
        async with AsyncClient(address) as client, await client.tree(LONG, seed=4) as tree:
            assert tree.max_positions == POSITIONS
            return await run_async(tree, POLICIES["refinement"](), rewards, decoding=held)

    held = replace(STEPS, options=Options(forced_prefix="ab"))
    here = search(llm, POLICIES["refinement"](), held, LONG)
    with running_server(llm) as server:
        there = asyncio.run(elsewhere(server.address))
        with Client(server.address) as client, client.tree(LONG, seed=4) as tree:
            by_threads = run(tree, POLICIES["refinement"](), rewards, decoding=held)
    for other in (there, by_threads):
        assert [b.transcript for b in other.finished] == [b.transcript for b in here.finished]
        assert [b.token_ids for b in other.unfinished] == [b.token_ids for b in here.unfinished]
    assert here.spent.nodes
    assert llm.stats().held_nodes == 0


@pytest.mark.parametrize("budget", [None, Budget(tokens=31), Budget(tokens=1), Budget(tokens=98)], ids=str)
@pytest.mark.parametrize("name", POLICIES)
def test_a_forced_prefix_begins_answers_and_needs_its_room(
    name: str, budget: Budget | None, llm: LLM
) -> None:
    texts = [TOKENIZER.decode([token]) for token in FORCED]
    most = Budget(tokens=200) if budget is None else budget
    found = []
    for prefix in (FORCED, "".join(texts)):
        held = replace(STEPS, max_tokens=20, options=Options(forced_prefix=prefix))
        result = search(llm, POLICIES[name](), held, budget=most)
        assert result.spent.tokens <= (most.tokens or 0)
        found.append([b.token_ids for b in (*result.finished, *result.unfinished)])
        for branch in (*result.finished, *result.unfinished):
            assert branch.completion.startswith("".join(texts))
            assert branch.depth == 1 or name == "refinement" or branch.text[:3] != "".join(texts)
    assert found[0] == found[1]


def test_a_prefix_for_which_a_step_is_too_short_is_refused_by_name(llm: LLM) -> None:
    for prefix in ((5,) * 7, "qzjxqzjx"):
        held = replace(STEPS, options=Options(forced_prefix=prefix))
        with pytest.raises(InvalidRequestError, match=r"^forced_prefix: has [78] tokens; .* at most 6 for"):
            search(llm, StepBeam(2, 2), held)
