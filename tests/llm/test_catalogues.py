"""Decoding from catalogues in a real engine: nothing but items, all that there are, swapped while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forkdecode import (
    LLM,
    AsyncLLM,
    Beam,
    BestOf,
    Delta,
    DiverseBeam,
    Finished,
    FromCatalogue,
    Greedy,
    InvalidRequestError,
    Sample,
    StochasticBeam,
    build_catalogue,
    save_catalogue,
)
from forkdecode.strategy_types import Strategy
from tests.constraints.tries import Trie, first_of
from tests.llm.models import EOS_ID, PROMPT, TOKENIZER, ids, opened, tiny_llama

VOCAB = 264
STRATEGIES: dict[str, Strategy] = {
    "greedy": Greedy(),
    "sample": Sample(n=4, seed=5),
    "best_of": BestOf(best_of=4, n=2, seed=6),
    "beam": Beam(width=3),
    "a wide beam": Beam(width=40),
    "diverse": DiverseBeam(width=4, groups=2),
    "stochastic": StochasticBeam(width=3, seed=7),
}
ITEMS = st.lists(
    st.lists(st.one_of(st.integers(0, 4), st.integers(0, 261)), min_size=1, max_size=4).map(tuple),
    min_size=1,
    max_size=25,
)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with opened() as llm:
        yield llm


def _flat(items: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Those that begin no other."""
    trie = dict(Trie.of(items).paths())
    return [item for item in items if not trie[item].children]


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("end", ["eos", "item"])
def test_nothing_but_items_comes_out(llm: LLM, name: str, end: Any) -> None:
    strategy = STRATEGIES[name]

    @settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(ITEMS)
    def check(drawn: list[tuple[int, ...]]) -> None:
        items = drawn if end == "eos" else _flat(drawn)
        numbers = first_of(items)
        llm.catalogues.put("items", build_catalogue(items, [f"item {i}" for i in range(len(items))]))
        result = llm.decode(PROMPT, strategy, constraint=FromCatalogue("items", end=end), max_tokens=8)
        for candidate in result.candidates:
            tokens = candidate.token_ids
            assert candidate.finish_reason == ("eos" if end == "eos" else "stop")
            item = tokens[:-1] if end == "eos" else tokens
            assert candidate.item == f"item {numbers[item]}"
            assert tokens == ((*item, EOS_ID) if end == "eos" else item)
        if not isinstance(strategy, (Beam, DiverseBeam, StochasticBeam)):
            assert not result.exhausted
            return
        found = [candidate.token_ids for candidate in result.candidates]
        assert result.exhausted == (len(found) < strategy.width)
        if isinstance(strategy, DiverseBeam):  # whose groups may find the same
            return
        assert len(set(found)) == len(found)
        if strategy.width >= len(numbers):
            assert len(found) == len(numbers)

    check()


def test_candidates_cut_short_are_no_items(llm: LLM) -> None:
    llm.catalogues.put("items", build_catalogue([(1, 2, 3, 4, 5), (6,)]))
    result = llm.decode(PROMPT, Beam(width=2), constraint=FromCatalogue("items"), max_tokens=2)
    assert {(c.item, c.finish_reason) for c in result.candidates} <= {("1", "eos"), (None, "length")}
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"max_tokens": 1}, "max_tokens"),
        ({"min_tokens": 6}, "min_tokens"),
    )
    for options, field in wrong:
        with pytest.raises(InvalidRequestError) as caught:
            llm.decode(PROMPT, constraint=FromCatalogue("items"), **options)
        assert caught.value.field == field


def test_other_options_apply_too(llm: LLM) -> None:
    """A forced beginning, banned tokens, a least length, a penalty, log-probabilities."""
    llm.catalogues.put(
        "items", build_catalogue([(1, 2), (1, 2, 3), (1, 4, 4), (7,)], ["ab", "abc", "add", "h"])
    )

    def keys(**options: Any) -> set[str | None]:
        constraint = FromCatalogue("items")
        result = llm.decode(PROMPT, Beam(width=9), constraint=constraint, max_tokens=8, **options)
        return {candidate.item for candidate in result.candidates}

    assert keys() == {"ab", "abc", "add", "h"}
    assert keys(forced_prefix=(1, 2)) == {"ab", "abc"}
    assert keys(bad_words=((4,),)) == {"ab", "abc", "h"}
    assert keys(no_repeat_ngram_size=1) == {"ab", "abc", "h"}
    assert keys(min_tokens=3) == {"abc", "add"}
    assert keys(min_tokens=3, forced_prefix=(1, 2)) == {"abc"}
    for seed in range(4):  # none goes where only short items are
        drawn = llm.decode(
            PROMPT, Sample(n=4, seed=seed), constraint=FromCatalogue("items"), min_tokens=3, max_tokens=8
        )
        assert {candidate.item for candidate in drawn.candidates} <= {"abc", "add"}
    assert keys(allowed_token_ids=(1, 2, EOS_ID)) == {"ab"}
    assert keys(repetition_penalty=1.5, logprobs=2) == {"ab", "abc", "add", "h"}
    with pytest.raises(InvalidRequestError, match="forced_prefix"):
        keys(forced_prefix=(2,))
    with pytest.raises(
        InvalidRequestError, match="no item of 3 or more tokens continues with token 7 at position 0"
    ):
        keys(forced_prefix=(7,), min_tokens=3)
    with pytest.raises(InvalidRequestError, match="ignore_eos"):
        keys(ignore_eos=True)


def test_a_group_that_runs_keeps_its_catalogue(llm: LLM, tmp_path: Path) -> None:
    """The file is replaced, and the name is put anew and removed, while samples are under way."""
    path = tmp_path / "c"
    long = [tuple(5 + (i * j) % 250 for j in range(1, 40)) for i in range(1, 6)]
    save_catalogue(build_catalogue(long, [f"old {i}" for i in range(5)]), path)
    llm.catalogues.put("items", path)
    constraint = FromCatalogue("items")
    with llm.stream(PROMPT, Sample(n=3, seed=1), constraint=constraint, max_tokens=64) as events:
        for event in events:
            if isinstance(event, Delta):
                break
        save_catalogue(build_catalogue([(9, 9)], ["new"]), path)
        assert [c.item for c in llm.decode(PROMPT, constraint=constraint).candidates] == ["new"]
        llm.catalogues.put("items", build_catalogue([(8,)], ["newest"]))
        assert [c.item for c in llm.decode(PROMPT, constraint=constraint).candidates] == ["newest"]
        llm.catalogues.remove("items")
        with pytest.raises(InvalidRequestError, match="'items' is no catalogue here"):
            llm.decode(PROMPT, constraint=constraint)
        last = list(events)[-1]
    assert isinstance(last, Finished)
    for candidate in last.result.candidates:
        assert candidate.item is not None
        assert candidate.item.startswith("old ")
        assert candidate.token_ids[:-1] == long[int(candidate.item[4:])]


def test_catalogues_are_given_with_the_model(tmp_path: Path) -> None:
    save_catalogue(build_catalogue([(3,)], ["three"]), tmp_path / "c")
    sources: dict[str, Any] = {"file": str(tmp_path / "c"), "made": build_catalogue([(4,)], ["four"])}
    with opened(catalogues=sources) as llm:
        assert llm.catalogues.names() == ("file", "made")
        assert llm.decode(PROMPT, constraint=FromCatalogue("file")).candidates[0].item == "three"
    for wrong in ({"a": tmp_path / "none"}, {"a": build_catalogue([(VOCAB,)])}, [1]):
        with pytest.raises(InvalidRequestError, match="catalogue"), opened(catalogues=wrong):
            pass

    async def ask() -> str | None:
        async with AsyncLLM(
            tiny_llama(), tokenizer=TOKENIZER, threads=1, num_blocks=64, catalogues=sources
        ) as llm:
            assert llm.catalogues.names() == ("file", "made")
            result = await llm.decode(PROMPT, constraint=FromCatalogue("made"))
            return str(result.candidates[0].item)

    assert asyncio.run(ask()) == "four"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("width", [1, 3, 6])
def test_equals_generate_with_a_prefix_function(seed: int, width: int) -> None:
    """transformers' generate with prefix_allowed_tokens_fn made of the same trie. Items are many enough that
    it never has fewer than 2 * width legal candidates, where it would fill up with placeholders."""
    rng = np.random.default_rng(seed)
    items = [tuple(row) for row in rng.integers(0, 256, (600, 3)).tolist()]
    items += [item[:2] for item in items[:40]]
    root, model = Trie.of(items), tiny_llama(seed=seed)
    generate: Any = model.generate
    prompt = TOKENIZER.encode(PROMPT, add_special_tokens=False)

    def allowed(_: int, ids: torch.Tensor) -> list[int]:
        node = root
        for token in ids[len(prompt) :].tolist():
            if token not in node.children:
                return [EOS_ID]
            node = node.children[token]
        return [*node.children, *([EOS_ID] if node.item is not None else [])]

    want = generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        num_beams=width,
        num_return_sequences=width,
        do_sample=False,
        max_new_tokens=5,
        pad_token_id=0,
        prefix_allowed_tokens_fn=allowed,
    )
    paths = [row[len(prompt) :] for row in want.tolist()]
    paths = [row[: row.index(EOS_ID) + 1] for row in paths]
    with opened(model, catalogues={"items": build_catalogue(items)}) as llm:
        result = llm.decode(prompt, Beam(width=width), constraint=FromCatalogue("items"), max_tokens=5)
    assert [list(candidate.token_ids) for candidate in result.candidates] == paths
    assert not result.exhausted


ENDING = [Greedy(), Sample(2, seed=1), Beam(2)]


@pytest.mark.parametrize("options", [{"stop": "bc"}, {"stop": "bc", "include_stop": True}, {"stop": "b!"}])
def test_an_item_that_ends_as_a_stop_string_begins_is_told_whole(options: dict[str, Any]) -> None:
    given: dict[str, Any] = {"constraint": FromCatalogue("shop", end="item"), "max_tokens": 4, **options}
    with opened(catalogues={"shop": build_catalogue([ids("ab")], ["ab"])}) as llm:
        for strategy in ENDING:
            for candidate in llm.decode(PROMPT, strategy, **given).candidates:
                assert (candidate.text, candidate.item, candidate.finish_reason) == ("ab", "ab", "stop")
        events = list(llm.stream(PROMPT, **given))
        assert "".join(event.text for event in events if isinstance(event, Delta)) == "ab"
        with llm.tree(PROMPT, seed=1) as tree:
            [node] = tree.decode(tree.root, Sample(1), **given)
            assert (node.text, node.item) == ("ab", "ab")


@pytest.mark.parametrize("item", [(10, EOS_ID, 11), (EOS_ID, 10), (10, EOS_ID)])
def test_items_that_end_by_themselves_may_hold_eos_ids(item: tuple[int, ...]) -> None:
    given: dict[str, Any] = {"constraint": FromCatalogue("shop", end="item"), "max_tokens": 6}
    with opened(catalogues={"shop": build_catalogue([item], ["it"])}) as llm:
        for options in ({}, {"min_tokens": len(item)}, {"forced_prefix": item[:2]}):
            for strategy in ENDING:
                for candidate in llm.decode(PROMPT, strategy, **given, **options).candidates:
                    assert candidate.token_ids == item
                    assert (candidate.item, candidate.finish_reason) == ("it", "stop")
        with llm.tree(PROMPT, seed=1) as tree:  # and in a tree they go on from node to node
            [begun] = tree.decode(tree.root, Sample(1), **(given | {"max_tokens": 1}))
            [node] = tree.decode(begun, Sample(1), **given)
            assert (begun.token_ids, node.token_ids) == (item[:1], item[1:])
            assert node.item == "it"
