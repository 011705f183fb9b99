"""A caller's function that steps wait for can't wait for a step: it is told, and fails its request alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from forkdecode import LLM, AsyncLLM, Beam, CustomScorer, Greedy, GroupFailedError, UnavailableError
from tests.llm.models import PROMPT, TOKENIZER, ids, tiny_llama


def decode_a_root(llm: LLM) -> None:
    with llm.tree(PROMPT) as tree:
        tree.decode(tree.root, Greedy(), max_tokens=1)


ASKS: dict[str, Callable[[LLM], Any]] = {
    "decode": lambda llm: llm.decode(PROMPT, max_tokens=1),
    "submit": lambda llm: llm.submit(PROMPT, max_tokens=1),
    "stream": lambda llm: next(llm.stream(PROMPT, max_tokens=1)),
    "decode_many": lambda llm: list(llm.decode_many([PROMPT, PROMPT], max_tokens=1)),
    "function and prefix": lambda llm: llm.decode(
        PROMPT, forced_prefix="a", prefix_allowed_tokens_fn=lambda batch, tokens: ids("a"), max_tokens=1
    ),
    "score": lambda llm: llm.score(PROMPT, ["a"]),
    "tree": decode_a_root,
    "stats": lambda llm: llm.stats(),
    "update_weights": lambda llm: llm.update_weights(tiny_llama()),
    "close": lambda llm: llm.close(),
}


def fails(llm: LLM | AsyncLLM, kind: str, ask: Callable[[], Any]) -> tuple[dict[str, Any], list[str]]:
    """A beam of that function, and what it was told."""
    told: list[str] = []

    def function(*_: Any) -> Any:
        try:
            ask()
        except UnavailableError as error:
            told.append(str(error))
            raise
        return ids("ab")

    if kind == "scorer":
        return {"strategy": Beam(2, scorer=CustomScorer(function))}, told
    return {"strategy": Beam(2), "prefix_allowed_tokens_fn": function}, told


@pytest.mark.parametrize("kind", ["prefix_allowed_tokens_fn", "scorer"])
@pytest.mark.parametrize("ask", ASKS)
def test_its_own_llm_is_refused_to_it_by_name(llm: LLM, kind: str, ask: str) -> None:
    given, told = fails(llm, kind, lambda: ASKS[ask](llm))
    handle = llm.submit(PROMPT, max_tokens=4, **given)
    with pytest.raises(GroupFailedError, match="the engine waits for this function") as failed:
        handle.result(60)
    assert failed.value.field == kind
    assert told
    assert llm.decode(PROMPT, max_tokens=1).candidates


def test_a_handle_is_not_waited_for_either(llm: LLM) -> None:
    other = llm.submit(PROMPT, Beam(2), max_tokens=60, ignore_eos=True)
    given, told = fails(llm, "prefix_allowed_tokens_fn", other.result)
    with pytest.raises(GroupFailedError):
        llm.submit(PROMPT, max_tokens=4, **given).result(60)
    assert told
    assert other.result(60)


@pytest.mark.parametrize("kind", ["prefix_allowed_tokens_fn", "scorer"])
def test_nor_is_an_async_llm(kind: str) -> None:
    async def main() -> None:
        async with AsyncLLM(tiny_llama(), tokenizer=TOKENIZER, num_blocks=64, threads=1) as llm:
            for ask in (
                lambda: llm.decode(PROMPT, max_tokens=1),
                llm.stats,
                lambda: llm.update_weights({}),
                llm.close,
            ):
                given, told = fails(llm, kind, lambda ask=ask: asyncio.run(ask()))  # type: ignore[misc]
                with pytest.raises(GroupFailedError):
                    await llm.decode(PROMPT, max_tokens=4, **given)
                assert told
            assert (await llm.decode(PROMPT, max_tokens=1)).candidates

    asyncio.run(main())


def test_another_llm_is_its_to_use(llm: LLM) -> None:
    with LLM(tiny_llama(), tokenizer=TOKENIZER, num_blocks=64, threads=1) as other:
        given, told = fails(llm, "prefix_allowed_tokens_fn", lambda: other.decode(PROMPT, max_tokens=1))
        assert llm.decode(PROMPT, max_tokens=2, **given).candidates
    assert not told
