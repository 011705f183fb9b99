"""prefix_allowed_tokens_fn: what it is told, what becomes of what it returns, and who notices its faults."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from forkdecode import (
    LLM,
    Beam,
    BestOf,
    FromCatalogue,
    Greedy,
    GroupFailedError,
    InvalidRequestError,
    Options,
    Sample,
)
from forkdecode.client.writer import Writer
from forkdecode.engine.crossing import crossing
from forkdecode.requests.prepare import RequestMaker
from tests.llm.models import EOS_ID, PROMPT, STRATEGIES, TOKENIZER, VOCAB, ids, opened, tiny_llama

LETTERS = ids("abcdefgh")
SIZE = len(VOCAB)


def letters(batch_id: int, tokens: torch.Tensor) -> list[int]:
    """Letters, and the end after the fourth."""
    made = len(tokens) - len(ids(PROMPT))
    return list(LETTERS) if made < 4 else [EOS_ID]


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_keeps_to_it(llm: LLM, name: str) -> None:
    result = llm.decode(PROMPT, STRATEGIES[name], prefix_allowed_tokens_fn=letters, max_tokens=8)
    for candidate in result.candidates:
        assert len(candidate.token_ids) == 5
        assert set(candidate.token_ids[:4]) <= set(LETTERS)
        assert candidate.finish_reason == "eos"
        assert candidate.item is None


def test_it_is_told_prompt_and_generated_tokens(llm: LLM) -> None:
    told: list[tuple[int, torch.Tensor]] = []

    def note(batch_id: int, tokens: torch.Tensor) -> list[int]:
        told.append((batch_id, tokens.clone()))
        return letters(batch_id, tokens)

    result = llm.decode(PROMPT, Greedy(), prefix_allowed_tokens_fn=note, max_tokens=3)
    whole = [*ids(PROMPT), *result.candidates[0].token_ids]
    assert [batch for batch, _ in told] == [0, 0, 0]
    assert [t.tolist() for _, t in told] == [whole[: len(whole) - 3 + i] for i in range(3)]
    assert all(t.dtype == torch.int64 and t.dim() == 1 for _, t in told)


@pytest.mark.parametrize(
    "form",
    [tuple, lambda x: x * 2, np.array, torch.tensor, lambda x: np.array(x, np.uint8), reversed],
    ids=["tuple", "twice", "numpy", "tensor", "uint8", "reversed"],
)
def test_ids_in_any_form_and_order(llm: LLM, form: Any) -> None:
    plain = llm.decode(PROMPT, Beam(width=3), prefix_allowed_tokens_fn=letters, max_tokens=4)
    other = llm.decode(
        PROMPT, Beam(width=3), prefix_allowed_tokens_fn=lambda b, t: form(list(letters(b, t))), max_tokens=4
    )
    assert [c.token_ids for c in other.candidates] == [c.token_ids for c in plain.candidates]


def raises(batch_id: int, tokens: torch.Tensor) -> list[int]:
    raise KeyError("no such prefix")


FAULTS: dict[str, tuple[Any, str]] = {
    "raises": (raises, r"raised KeyError: 'no such prefix' \(.*test_prefix_function.py, line \d+\)"),
    "empty": (lambda b, t: [], "returned no token id"),
    "none": (lambda b, t: None, "returned None, which lists no token ids"),
    "text": (lambda b, t: "abc", "returned 'abc', which lists no token ids"),
    "floats": (lambda b, t: [1.5], "returned .*, which lists no token ids"),
    "mask": (lambda b, t: [True, False], "returned .*, which lists no token ids"),
    "gradient": (lambda b, t: torch.ones(2, requires_grad=True), "returned .*, which lists no token ids"),
    "exits": (lambda b, t: sys.exit(3), "raised SystemExit: 3"),
    "exits later": (lambda b, t: (sys.exit(i) for i in [3]), "returned .*, which lists no token ids"),
    "nested": (lambda b, t: [[1, 2]], "returned .*, which lists no token ids"),
    "negative": (lambda b, t: [3, -1], "returned -1, which is no token id"),
    "too high": (lambda b, t: [3, SIZE], f"returned {SIZE}, which is no token id: 0 to {SIZE - 1} are"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("late", [False, True])
def test_a_function_that_fails_fails_its_request_alone(llm: LLM, fault: str, late: bool) -> None:
    bad, message = FAULTS[fault]

    def function(batch_id: int, tokens: torch.Tensor) -> Any:
        made = len(tokens) - len(ids(PROMPT))
        return letters(batch_id, tokens) if late and made < 2 else bad(batch_id, tokens)

    alone = llm.decode(PROMPT, Beam(width=3), max_tokens=6)
    others = [llm.submit(PROMPT, Beam(width=3), max_tokens=6) for _ in range(2)]
    others.append(llm.submit(PROMPT, Beam(width=3), max_tokens=6, prefix_allowed_tokens_fn=letters))
    failed = llm.submit(PROMPT, Sample(n=3, seed=1), max_tokens=6, prefix_allowed_tokens_fn=function)
    with pytest.raises(GroupFailedError, match=f"prefix_allowed_tokens_fn {message}") as error:
        failed.result()
    assert error.value.field == "prefix_allowed_tokens_fn"
    assert [h.result().candidates for h in others[:2]] == [alone.candidates] * 2
    assert others[2].result().candidates


def test_calls_come_one_at_a_time_and_not_in_the_engine_s_or_the_caller_s_thread(llm: LLM) -> None:
    inside, names = threading.Lock(), set()

    def function(batch_id: int, tokens: torch.Tensor) -> list[int]:
        assert inside.acquire(blocking=False), "two calls at once"
        names.add(threading.current_thread().name)
        try:
            return letters(batch_id, tokens)
        finally:
            inside.release()

    handles = [
        llm.submit(PROMPT, strategy, max_tokens=6, prefix_allowed_tokens_fn=function)
        for strategy in (Beam(width=4), Sample(n=4, seed=1), BestOf(best_of=4, seed=2))
    ]
    for handle in handles:
        handle.result()
    assert len(names) == 1
    assert names.pop().startswith("forkdecode-prefix-function")


def test_a_forced_prefix_must_be_allowed(llm: LLM) -> None:
    result = llm.decode(
        PROMPT, Beam(width=2), prefix_allowed_tokens_fn=letters, forced_prefix="ab", max_tokens=6
    )
    assert all(c.text.startswith("ab") and len(c.token_ids) == 5 for c in result.candidates)
    with pytest.raises(
        InvalidRequestError,
        match=rf"forced_prefix: token {ids('z')[0]} at position 1 is not allowed by prefix_allowed",
    ):
        llm.decode(PROMPT, Greedy(), prefix_allowed_tokens_fn=letters, forced_prefix="az", max_tokens=6)


def test_fewer_legal_paths_than_beams_are_told(llm: LLM) -> None:
    def two(batch_id: int, tokens: torch.Tensor) -> list[int]:
        made = len(tokens) - len(ids(PROMPT))
        return [LETTERS[0], LETTERS[1]] if made == 0 else [LETTERS[2]] if made == 1 else [EOS_ID]

    result = llm.decode(PROMPT, Beam(width=4), prefix_allowed_tokens_fn=two, max_tokens=6)
    assert {c.token_ids for c in result.candidates} == {(a, LETTERS[2], EOS_ID) for a in LETTERS[:2]}
    assert result.exhausted
    assert not llm.decode(
        PROMPT, Beam(width=4, num_return_sequences=2), prefix_allowed_tokens_fn=two, max_tokens=6
    ).exhausted


def test_only_an_end_that_min_tokens_bans_leaves_nothing(llm: LLM) -> None:
    given = {"prefix_allowed_tokens_fn": letters, "min_tokens": 6, "max_tokens": 8}
    for strategy in (Greedy(), Sample(n=2, seed=1), Beam(width=2)):
        with pytest.raises(GroupFailedError, match="no legal token at generated token 5, under the") as error:
            llm.decode(PROMPT, strategy, **given)
        assert error.value.field == "prefix_allowed_tokens_fn"


def test_what_is_no_function_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="prefix_allowed_tokens_fn: 5 is not callable"):
        llm.decode(PROMPT, prefix_allowed_tokens_fn=5)
    with pytest.raises(
        InvalidRequestError, match="prefix_allowed_tokens_fn: can't be combined with constraint"
    ):
        Options(prefix_allowed_tokens_fn=letters, constraint=FromCatalogue("items"))


def test_it_does_not_leave_its_process(llm: LLM) -> None:
    given = {"prefix_allowed_tokens_fn": letters}
    with pytest.raises(InvalidRequestError, match="prefix_allowed_tokens_fn: is a Python callable") as caught:
        Writer().decode(PROMPT, None, None, given, chat=False, request_id=None)
    assert caught.value.field == "prefix_allowed_tokens_fn"
    prepared = RequestMaker(TOKENIZER, llm.info).prepare(
        PROMPT, None, None, given, chat=False, request_id=None
    )
    with pytest.raises(InvalidRequestError, match="prefix_allowed_tokens_fn: is a Python callable"):
        crossing(prepared.request)


def functions_threads() -> int:
    return sum(t.name.startswith("forkdecode-prefix-function") for t in threading.enumerate())


@pytest.mark.parametrize("close", [True, False])
def test_its_thread_ends_with_the_engine(close: bool) -> None:
    before = {t for t in threading.enumerate() if t.name.startswith("forkdecode-prefix-function")}
    with opened(tiny_llama()) as llm:
        llm.decode(PROMPT, Greedy(), prefix_allowed_tokens_fn=letters, max_tokens=3)
        mine = [
            t
            for t in threading.enumerate()
            if t.name.startswith("forkdecode-prefix-function") and t not in before
        ]
        assert len(mine) == 1
    if not close:
        other = LLM(tiny_llama(), tokenizer=TOKENIZER, num_blocks=64, threads=1)
        other.decode(PROMPT, Greedy(), prefix_allowed_tokens_fn=letters, max_tokens=3)
        mine += [
            t
            for t in threading.enumerate()
            if t.name.startswith("forkdecode-prefix-function") and t not in {*before, *mine}
        ]
        gone = weakref.ref(other)
        del other
        gc.collect()
        assert gone() is None
    for thread in mine:
        thread.join(30)
        assert not thread.is_alive()
