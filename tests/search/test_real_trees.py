"""Every policy on trees of a real engine: in process, by threads and by an event loop."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from forkdecode import LLM, AsyncClient, AsyncLLM, Client, Options, Sample
from forkdecode.constraint_types import Regex
from forkdecode.search import Budget, Decoding, SearchResult, run, run_async
from tests.search.test_run import POLICIES
from tests.search.world import rewards
from tests.server.servers import running_server
from tests.tiny_model import save_tiny_llama

DECODING = Decoding(
    Sample(temperature=1.2), step=("e", " "), step_tokens=5, max_tokens=20, options=Options(stop=("a", "b"))
)
BUDGET = Budget(tokens=90)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=512))


@pytest.fixture(scope="module")
def llm(folder: str) -> Iterator[LLM]:
    with LLM(folder, num_blocks=1024, threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def in_a_loop(folder: str) -> dict[str, SearchResult]:
    async def searches() -> dict[str, SearchResult]:
        async with AsyncLLM(folder, num_blocks=1024, threads=1) as llm:

            async def one(name: str) -> SearchResult:
                async with await llm.tree("hello", seed=4) as tree:
                    return await run_async(tree, POLICIES[name](), rewards, budget=BUDGET, decoding=DECODING)

            return dict(zip(POLICIES, await asyncio.gather(*map(one, POLICIES)), strict=True))

    return asyncio.run(searches())


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_in_process(name: str, llm: LLM, in_a_loop: dict[str, SearchResult]) -> None:
    with llm.tree("hello", seed=4) as tree:
        result = run(tree, POLICIES[name](), rewards, budget=BUDGET, decoding=DECODING)
        assert 0 < result.spent.tokens <= 90
        for branch in (*result.finished, *result.unfinished):
            node = tree.node(branch.id)
            assert node.token_ids == branch.token_ids
            assert node.completion == branch.transcript
            assert branch.is_finished == (node.finish_reason in ("eos", "stop"))
    same(in_a_loop[name], result)  # all of them at once, in one batch


def same(one: SearchResult, other: SearchResult) -> None:
    assert [b.id for b in one.finished] == [b.id for b in other.finished]
    assert [b.transcript for b in one.finished] == [b.transcript for b in other.finished]
    assert replace(one.spent, seconds=0.0) == replace(other.spent, seconds=0.0)


def test_every_policy_by_a_server(llm: LLM, in_a_loop: dict[str, SearchResult]) -> None:
    """By threads one after another, and by an event loop all at once."""

    async def searches(address: str) -> dict[str, SearchResult]:
        async with AsyncClient(address) as client:

            async def one(name: str) -> SearchResult:
                async with await client.tree("hello", seed=4) as tree:
                    return await run_async(tree, POLICIES[name](), rewards, budget=BUDGET, decoding=DECODING)

            return dict(zip(POLICIES, await asyncio.gather(*map(one, POLICIES)), strict=True))

    with running_server(llm) as server:
        with Client(server.address) as client:
            for name, make in POLICIES.items():
                with client.tree("hello", seed=4) as tree:
                    result = run(tree, make(), rewards, budget=BUDGET, decoding=DECODING)
                    same(result, in_a_loop[name])
        for name, result in asyncio.run(searches(server.address)).items():
            same(result, in_a_loop[name])
    assert llm.stats().held_nodes == 0


@pytest.mark.parametrize("name", POLICIES)
def test_what_is_found_under_a_constraint_follows_it_over_all_steps(name: str, llm: LLM) -> None:
    texts = Regex("([ab]{2}[ex] ?){2,4}")
    held = replace(DECODING, step=("e",), options=Options(constraint=texts))
    with llm.tree("hello", seed=4) as tree:
        result = run(tree, POLICIES[name](), rewards, budget=Budget(tokens=150), decoding=held)
        whole = [branch for branch in result.finished if tree.node(branch.id).finish_reason == "eos"]
        for branch in whole:
            node = tree.node(branch.id)
            given = [one for one in node.path() if one.finish_reason is None][-1]  # it begins anew after that
            assert re.fullmatch(texts.pattern, node.path_text[len(given.path_text) :])


@pytest.mark.parametrize("name", ["best of n", "step beam"])
def test_branches_that_nothing_follows_are_cut_and_the_others_are_found(name: str, llm: LLM) -> None:
    """Each letter once: what draws no "a" in time is stuck, in the middle of a step or after it."""
    ids = [i for text in "abcde" for i in llm.tokenize(text)]
    once = Options(allowed_token_ids=tuple(ids), no_repeat_ngram_size=1, ignore_eos=True, stop=("a",))
    held = replace(DECODING, step=("!",), step_tokens=30, max_tokens=30, options=once)
    with llm.tree("hi", seed=4) as tree:
        result = run(tree, POLICIES[name](), rewards, budget=BUDGET, decoding=held)
        assert result.finished or result.unfinished
        for branch in (*result.finished, *result.unfinished):
            assert branch.state == ("finished" if branch.finish_reason == "stop" else "cut")
            assert branch.finish_reason in ("stop", "failed")
            assert "a" not in branch.text


def test_nothing_is_held_after_a_search(llm: LLM) -> None:
    with llm.tree("hello", seed=4) as tree:
        run(tree, POLICIES["step beam"](), rewards, budget=BUDGET, decoding=DECODING)
    assert llm.stats().held_nodes == 0
