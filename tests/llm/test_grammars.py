"""Decoding by regular expressions, schemas and grammars: what ends parses, whatever else is asked for."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode import (
    LLM,
    Beam,
    BestOf,
    Candidate,
    Delta,
    Finished,
    Greedy,
    GroupFailedError,
    InvalidRequestError,
    JsonSchema,
    Lark,
    Regex,
    Sample,
    Strategy,
)
from forkdecode.constraints import grammar_rows
from forkdecode.constraints.grammar_text import GrammarSpec
from tests.llm.grammar_oracle import check
from tests.llm.models import EOS_ID, PROMPT, VOCAB, assert_idle, ids, opened, outcome, tiny_llama

COMPACT = {"x-guidance": {"whitespace_flexible": False}}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["é", "ü", "none"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "tree": {
            "anyOf": [
                {"type": "boolean"},
                {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2},
            ]
        }
    },
    "$ref": "#/$defs/tree",
}
SPECS: dict[str, GrammarSpec] = {
    "date": Regex(r"(19|20)\d\d-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"),
    "characters": Regex(r"([д-я]|[äöü€]|😀){1,3}( \p{Greek})?"),
    "words": Regex(r"(hello|world|he|low?)( (hello|or|l+)){0,3}\."),
    "person": JsonSchema(PERSON),
    "compact person": JsonSchema(PERSON | COMPACT),
    "tree": JsonSchema(TREE | COMPACT),
    "formats": JsonSchema({"type": "string", "format": "date"}),
    "sums": Lark('start: sum\nsum: product ("+" product)~0..2\nproduct: /[0-9]{1,2}/ | "(" sum ")" | "é"'),
    "balanced": Lark('root ::= "(" root ")" root | [a-c\\u00e9]', "gbnf"),
}
STRATEGIES: dict[str, Strategy] = {
    "greedy": Greedy(),
    "samples": Sample(n=8, seed=3, temperature=1.2),
    "filtered": Sample(n=3, seed=4, top_k=3, top_p=0.8),
    "best of": BestOf(best_of=6, n=3, seed=5),
    "beam 1": Beam(width=1),
    "beam 4": Beam(width=4),
    "beam 16": Beam(width=16, num_return_sequences=16, length_penalty=0.0),
}


@pytest.fixture(scope="module")
def engine() -> Iterator[LLM]:
    with opened(tiny_llama(max_position_embeddings=1024, vocab_size=300), block_size=4) as llm:
        yield llm


@pytest.fixture
def llm(engine: LLM) -> Iterator[LLM]:
    yield engine
    assert_idle(engine)


def checked(llm: LLM, spec: GrammarSpec, found: tuple[Candidate, ...], *stops: int) -> None:
    for candidate in found:
        check(spec, candidate, llm._session.requests.token_bytes, (EOS_ID, *stops))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", SPECS)
def test_what_ends_parses_and_what_is_cut_off_could_have(llm: LLM, name: str, strategy: str) -> None:
    spec = SPECS[name]
    result = llm.decode(PROMPT, STRATEGIES[strategy], max_tokens=32, constraint=spec)
    assert result.candidates
    checked(llm, spec, result.candidates)
    if name in {"date", "characters", "formats"}:
        assert {c.finish_reason for c in result.candidates} == {"eos"}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_result_repeats(llm: LLM, strategy: str) -> None:
    spec = SPECS["compact person"]
    first, again = (
        llm.decode(PROMPT, STRATEGIES[strategy], max_tokens=24, constraint=spec) for _ in range(2)
    )
    assert outcome(first) == outcome(again)


OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "max_tokens": st.integers(12, 40),
    "min_tokens": st.integers(0, 12),
    "repetition_penalty": st.sampled_from([1.0, 1.3, 0.8]),
    "presence_penalty": st.sampled_from([0.0, 1.5]),
    "frequency_penalty": st.sampled_from([0.0, -0.5]),
    "no_repeat_ngram_size": st.sampled_from([0, 0, 3]),
    "logit_bias": st.dictionaries(st.integers(0, len(VOCAB) - 1), st.floats(-20, 20), max_size=8),
    "bad_words": st.sampled_from([(), ((EOS_ID - 1, 0), "é"), ("0",)]),
    "logprobs": st.sampled_from([None, 0, 2]),
    "stop_token_ids": st.sampled_from([(), ids("."), (*ids("0"), *ids("9"))]),
}


@settings(max_examples=25)
@given(
    spec=st.sampled_from(list(SPECS.values())),
    strategy=st.sampled_from(list(STRATEGIES.values())),
    options=st.fixed_dictionaries({}, optional=OPTIONS),
)
def test_with_all_that_may_be_asked_for_besides(
    engine: LLM, spec: GrammarSpec, strategy: Strategy, options: dict[str, Any]
) -> None:
    options["min_tokens"] = min(options.get("min_tokens", 0), options.get("max_tokens", 64))
    handle = engine.submit(PROMPT, strategy, constraint=spec, **options)
    try:
        result = handle.result()
    except GroupFailedError as error:
        if "no legal token" in str(error):  # the options leave nothing of what the grammar does
            return
        raise
    checked(engine, spec, result.candidates, *options.get("stop_token_ids", ()))
    for candidate in result.candidates:
        assert len(candidate.token_ids) >= options["min_tokens"] or candidate.finish_reason == "length"


def test_a_batch_is_what_each_is_alone(llm: LLM) -> None:
    names, strategies = list(SPECS), list(STRATEGIES.values())
    chosen = [strategies[i % len(strategies)] for i in range(len(names))]
    handles = [
        llm.submit(PROMPT[i:], strategy, max_tokens=32, constraint=SPECS[name])
        for i, (name, strategy) in enumerate(zip(names, chosen, strict=True))
    ]
    for i, (name, strategy, handle) in enumerate(zip(names, chosen, handles, strict=True)):
        alone = llm.decode(PROMPT[i:], strategy, max_tokens=32, constraint=SPECS[name])
        assert [(c.token_ids, c.finish_reason) for c in handle.result().candidates] == [
            (c.token_ids, c.finish_reason) for c in alone.candidates
        ]


@pytest.mark.parametrize("strategy", [Sample(n=3, seed=1), Beam(width=3)], ids=["samples", "beam"])
def test_a_stream_says_what_the_result_does(llm: LLM, strategy: Strategy) -> None:
    spec = SPECS["characters"]
    events = list(llm.stream(PROMPT, strategy, max_tokens=32, constraint=spec))
    last = events[-1]
    assert isinstance(last, Finished)
    checked(llm, spec, last.result.candidates)
    if isinstance(strategy, Sample):
        for candidate in last.result.candidates:
            parts = [e.text for e in events if isinstance(e, Delta) and e.candidate == candidate.index]
            assert "".join(parts) == candidate.text
            assert "\ufffd" not in candidate.text


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_preempted_groups_go_on_in_their_grammar(preemption: str) -> None:
    strategies: list[Strategy] = [Beam(width=4), Sample(n=4, seed=2), Beam(width=4), Sample(n=4, seed=3)]
    specs = [SPECS["person"], SPECS["sums"], SPECS["balanced"], SPECS["compact person"]]
    settings: dict[str, Any] = {"preemption": preemption, "swap_memory": "1MiB", "block_size": 2}
    with opened(num_blocks=90, **settings) as llm:
        for spec in specs:  # compiled beforehand: a request that still waits for its grammar presses nobody
            llm.decode(PROMPT, max_tokens=1, constraint=spec)
        handles = [
            llm.submit(PROMPT, strategy, max_tokens=30, constraint=spec)
            for strategy, spec in zip(strategies, specs, strict=True)
        ]
        found = [handle.result() for handle in handles]
        stats = llm.stats()
        assert stats.preemptions > 0
        assert (stats.swapped_blocks > 0) == (preemption == "swap")
        for result, strategy, spec in zip(found, strategies, specs, strict=True):
            checked(llm, spec, result.candidates)
            alone = llm.decode(PROMPT, strategy, max_tokens=30, constraint=spec)
            assert [c.token_ids for c in result.candidates] == [c.token_ids for c in alone.candidates]


def test_beams_fork_their_states(llm: LLM) -> None:
    """A wide beam over a small language finds all of it, once each."""
    spec = Regex(r"[ab]{3}|x")
    result = llm.decode(PROMPT, Beam(width=16, num_return_sequences=16), max_tokens=8, constraint=spec)
    texts = [c.text for c in result.candidates]
    assert sorted(texts) == sorted(["x", *(a + b + c for a in "ab" for b in "ab" for c in "ab")])
    assert result.exhausted


def test_a_forced_prefix_is_what_the_grammar_begins_with(llm: LLM) -> None:
    spec = Regex("hello( world)?[.!]")
    result = llm.decode(PROMPT, Greedy(), forced_prefix="hell", constraint=spec, max_tokens=12)
    assert result.candidates[0].text in {"hello.", "hello!", "hello world.", "hello world!"}
    for wrong in ("help", "hello.x", (EOS_ID,)):
        with pytest.raises(InvalidRequestError, match="forced_prefix") as error:
            llm.decode(PROMPT, Greedy(), forced_prefix=wrong, constraint=spec)
        assert error.value.field == "forced_prefix"


def test_a_stop_string_cuts_and_is_named_as_what_ended_it(llm: LLM) -> None:
    result = llm.decode(PROMPT, Sample(n=4, seed=1), constraint=Regex("[ab]+;[ab]+"), stop=";", max_tokens=60)
    for candidate in result.candidates:
        if candidate.finish_reason == "stop":
            assert re.fullmatch("[ab]+", candidate.text)


def test_what_can_not_be_held_to_a_grammar_is_refused_by_name(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="EOS") as error:
        llm.decode(PROMPT, constraint=Regex("a"), ignore_eos=True)
    assert error.value.field == "ignore_eos"
    with pytest.raises(InvalidRequestError, match=r"constraint\.pattern: regex parse error") as error:
        llm.decode(PROMPT, constraint=Regex("a("))
    assert error.value.field == "constraint.pattern"
    with opened(tiny_llama(eos_token_id=None)) as endless, pytest.raises(InvalidRequestError) as error:
        endless.decode(PROMPT, constraint=Regex("a"))
    assert error.value.field == "constraint"
    with opened(tokenizer=None) as mute, pytest.raises(InvalidRequestError, match="no tokenizer") as error:
        mute.decode([1, 2], constraint=Regex("a"))
    assert error.value.field == "constraint"


def test_a_grammar_that_fails_on_its_way_fails_its_request_alone(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    masks = grammar_rows.masks

    def fail(compiled: Any, matchers: Any, rows: Any = None) -> Any:
        if len(matchers) == 3:
            raise GroupFailedError("constraint: too hard")
        return masks(compiled, matchers, rows)

    monkeypatch.setattr(grammar_rows, "masks", fail)
    good = llm.submit(PROMPT, Sample(n=2, seed=1), max_tokens=20, constraint=SPECS["person"])
    bad = llm.submit(PROMPT, Sample(n=3, seed=1), max_tokens=20, constraint=SPECS["person"])
    with pytest.raises(GroupFailedError, match="constraint: too hard") as error:
        bad.result()
    assert error.value.request_id == bad.request_id
    checked(llm, SPECS["person"], good.result().candidates)


def test_threads_of_grammars_end_with_the_llm() -> None:
    def running() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name.startswith(("forkdecode-g", "forkdecode-m"))]

    before = set(running())
    with opened() as llm:
        llm.decode(PROMPT, Beam(width=2), max_tokens=4, constraint=SPECS["date"])
        threads = [t for t in threading.enumerate() if t.name in set(running()) - before]
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
