"""Exhaustive top-N on trees of a real engine: against all items scored, and against wide beams."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from forkdecode import LLM, AsyncClient, Beam, Client, InvalidRequestError, Options
from forkdecode.constraint_types import FromCatalogue, Regex
from forkdecode.constraints.catalogue_build import build_catalogue
from forkdecode.search import Budget, top_n, top_n_async
from tests.llm.models import EOS_ID, PROMPT, TOKENIZER, opened, tiny_llama
from tests.server.servers import running_server

RNG = np.random.default_rng(5)
ITEMS = sorted({tuple(RNG.integers(0, 9, RNG.integers(1, 5)).tolist()) for _ in range(60)})
LEAVES = [item for item in ITEMS if not any(o[: len(item)] == item for o in ITEMS if o != item)]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with opened(
        tiny_llama(), catalogues={"items": build_catalogue(ITEMS), "leaves": build_catalogue(LEAVES)}
    ) as llm:
        yield llm


def options(name: str, end: Any, **more: Any) -> Options:
    return Options(constraint=FromCatalogue(name, end=end), max_tokens=6, **more)


def scored(llm: LLM, sequences: list[tuple[int, ...]]) -> list[tuple[tuple[int, ...], float]]:
    found = llm.score(PROMPT, sequences).continuations
    return sorted(((s.token_ids, s.cumulative_logprob) for s in found), key=lambda one: -one[1])


@pytest.mark.parametrize("end", ["eos", "item"])
@pytest.mark.parametrize(("batch", "children"), [(1, 64), (8, 3)])
def test_the_likeliest_items_of_a_catalogue(llm: LLM, end: Any, batch: int, children: int) -> None:
    name = "items" if end == "eos" else "leaves"
    whole = [(*item, EOS_ID) for item in ITEMS] if end == "eos" else LEAVES
    truth = scored(llm, whole)
    with llm.tree(PROMPT, seed=1) as tree:
        found = top_n(tree, 12, options=options(name, end), batch=batch, children=children)
        assert len(tree.nodes) == 1  # nothing is left behind
    assert found.exact
    assert found.ended == "done"
    assert [item.token_ids for item in found.items] == [tokens for tokens, _ in truth[:12]]
    np.testing.assert_allclose([i.score for i in found.items], [s for _, s in truth[:12]], atol=2e-5)
    assert {item.finish_reason for item in found.items} == {"eos" if end == "eos" else "stop"}
    beam = llm.decode(PROMPT, Beam(len(whole), length_penalty=0.0), options=options(name, end))
    assert [c.token_ids for c in beam.candidates[:12]] == [item.token_ids for item in found.items]
    np.testing.assert_allclose(
        [c.selection_logprob for c in beam.candidates[:12]], [i.score for i in found.items], atol=2e-5
    )
    assert [c.text for c in beam.candidates[:12]] == [item.text for item in found.items]
    assert None not in [item.item for item in found.items]
    assert [c.item for c in beam.candidates[:12]] == [item.item for item in found.items]


def test_all_of_a_catalogue_when_more_are_wanted(llm: LLM) -> None:
    with llm.tree(PROMPT) as tree:
        found = top_n(tree, 500, options=options("leaves", "item"), children=4)
    assert found.exact
    assert sorted(item.token_ids for item in found.items) == sorted(LEAVES)
    assert found.bound == -np.inf


def test_min_tokens_and_bad_words_hold_along_the_path(llm: LLM) -> None:
    chosen = options("items", "eos", min_tokens=3, bad_words=((1,), (2, 3)))
    with llm.tree(PROMPT) as tree:
        found = top_n(tree, 500, options=chosen)
    expected = [
        (*item, EOS_ID) for item in ITEMS if len(item) >= 3 and 1 not in item and (2, 3) not in pairwise(item)
    ]
    assert found.exact
    assert sorted(item.token_ids for item in found.items) == sorted(expected)


@pytest.mark.parametrize("budget", [Budget(nodes=5), Budget(tokens=11), Budget(seconds=0.0)], ids=str)
def test_a_budget_that_does_not_suffice_says_so(llm: LLM, budget: Budget) -> None:
    with llm.tree(PROMPT) as tree:
        found = top_n(tree, 40, options=options("items", "eos"), batch=4, budget=budget)
    assert not found.exact
    assert found.ended in ("nodes", "tokens", "seconds")
    assert getattr(budget, found.ended) is not None
    assert found.spent.nodes <= (5 if budget.nodes else 99)
    assert found.spent.tokens <= (11 if budget.tokens else 99)
    truth = scored(llm, [(*item, EOS_ID) for item in ITEMS])
    certain = [item.token_ids for item in found.items]
    assert certain == [tokens for tokens, _ in truth[: len(certain)]]
    assert all(score <= found.bound + 2e-5 for _, score in truth[len(certain) :])


def test_without_a_constraint_below_a_node(llm: LLM) -> None:
    """Two tokens of the whole vocabulary: all of them by a beam that keeps everything."""
    chosen = Options(max_tokens=2, allowed_token_ids=tuple(range(20, 40)), stop_token_ids=(25, 31))
    with llm.tree(PROMPT) as tree:
        node = tree.extend(tree.root, (7, 8))
        found = top_n(tree, 15, options=chosen, root=node, children=6)
    assert found.exact
    prompt = [*TOKENIZER.encode(PROMPT), 7, 8]
    beam = llm.decode(prompt, Beam(600, length_penalty=0.0), options=chosen)
    ended = [c for c in beam.candidates if c.finish_reason == "stop"][:15]
    assert [item.token_ids for item in found.items] == [c.token_ids for c in ended]


def test_by_a_server_and_in_an_event_loop_it_is_the_same(llm: LLM) -> None:
    chosen, budget = Options(constraint=Regex("[ab][0-3]{1,2}x?"), max_tokens=6), Budget(nodes=8)

    async def searches(address: str) -> list[Any]:
        async with AsyncClient(address) as client, await client.tree(PROMPT) as tree:
            limited = await top_n_async(tree, 9, options=chosen, budget=budget, batch=3)
            return [await top_n_async(tree, 9, options=chosen, children=5), limited]

    with llm.tree(PROMPT) as tree:
        here = [top_n(tree, 9, options=chosen), top_n(tree, 9, options=chosen, budget=budget, batch=3)]
    with running_server(llm) as server:
        elsewhere = asyncio.run(searches(server.address))
        with Client(server.address) as client, client.tree(PROMPT) as tree:
            by_threads = top_n(tree, 9, options=chosen)
    beam = llm.decode(PROMPT, Beam(90, length_penalty=0.0), options=chosen)
    assert [c.token_ids for c in beam.candidates[:9]] == [i.token_ids for i in here[0].items]
    assert [found.exact for found in here] == [True, False]
    for found, own in [(by_threads, here[0]), *zip(elsewhere, here, strict=True)]:
        assert (found.exact, found.ended) == (own.exact, own.ended)
        assert [i.token_ids for i in found.items] == [i.token_ids for i in own.items]
        np.testing.assert_allclose([i.score for i in found.items], [i.score for i in own.items], atol=2e-5)
    assert llm.stats().held_nodes == 0


def test_items_by_a_server(llm: LLM) -> None:
    chosen, limit = options("items", "eos"), Budget(nodes=30)
    with running_server(llm) as server, Client(server.address) as client, client.tree(PROMPT) as tree:
        found = top_n(tree, 40, options=chosen, budget=limit)
    assert found.items
    keys = {item: str(number) for number, item in enumerate(ITEMS)}
    for one in found.items + found.others:
        assert one.item == keys[one.token_ids[:-1]]


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"options": Options(stop=("a",))}, "stop"),
        ({"options": Options(repetition_penalty=1.2)}, "repetition_penalty"),
        ({"options": Options(logit_bias={3: 1.0})}, "logit_bias"),
        ({"options": Options(forced_prefix="a")}, "forced_prefix"),
        ({"children": 1025}, "children"),
        ({"batch": 0}, "batch"),
        ({"n": 0}, "n"),
        ({"options": {}}, "options"),
        ({"budget": 5}, "budget"),
        ({"root": 0}, "root"),
    ],
    ids=["stop", "penalty", "bias", "prefix", "children", "batch", "n", "options", "budget", "root"],
)
def test_what_it_cannot_do_is_refused_by_name(llm: LLM, wrong: dict[str, Any], name: str) -> None:
    with llm.tree(PROMPT) as tree, pytest.raises(InvalidRequestError, match=f"^{name}: "):
        top_n(tree, **{"n": 2, **wrong})
    with pytest.raises(InvalidRequestError, match=r"^tree: "):
        top_n(llm, 2)  # type: ignore[arg-type]


def test_items_that_end_by_themselves_and_min_tokens() -> None:
    """A look ahead begins items that are too short; no forced token of one is an error."""
    items = [(1, 2), (1, 3, 4), (5, 6, 7, 8), (9,)]
    options = Options(constraint=FromCatalogue("c", end="item"), max_tokens=6, min_tokens=3)
    with opened(tiny_llama(), catalogues={"c": build_catalogue(items)}) as llm, llm.tree(PROMPT) as tree:
        found = top_n(tree, 50, options=options)
    assert found.exact
    assert sorted(item.token_ids for item in found.items) == [(1, 3, 4), (5, 6, 7, 8)]
