"""The same call in process and by a server: the same result, events and errors."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode import (
    LLM,
    AsyncClient,
    Beam,
    BestOf,
    CandidateFinished,
    Client,
    Committed,
    Contrastive,
    DecodeResult,
    Delta,
    DiverseBeam,
    Event,
    Finished,
    ForkdecodeError,
    Greedy,
    GroupFailedError,
    LengthNormalised,
    Options,
    Sample,
    Strategy,
)
from tests.llm.models import EOS_ID, PROMPT, STRATEGIES, VOCAB
from tests.llm.test_best_of import BAD, by_length
from tests.llm.test_errors import LIMIT, PROMPTS
from tests.server.servers import Running

TOKENS = st.integers(0, len(VOCAB) - 1)
DRAWN: dict[str, Any] = {
    "temperature": st.floats(0.1, 3.0),
    "top_k": st.integers(0, 20),
    "top_p": st.floats(0.3, 1.0),
    "min_p": st.floats(0.0, 0.2),
    "typical_p": st.floats(0.3, 1.0),
    "seed": st.integers(0, 2**64 - 1),
}
SAMPLES = st.builds(Sample, n=st.integers(1, 4), **DRAWN)
RANKS = st.sampled_from(["cumulative_logprob", "mean_logprob", "none", by_length])
BEST = st.integers(1, 3).flatmap(
    lambda n: st.builds(
        BestOf,
        best_of=st.integers(n + 1, 5),
        n=st.just(n),
        rank_by=RANKS,
        first_finished=st.sampled_from([None, n, n + 1]),
        **DRAWN,
    )
)
BEAMS = st.builds(
    Beam,
    width=st.integers(1, 4),
    length_penalty=st.floats(-1.0, 2.0),
    early_stopping=st.sampled_from([True, False, "never"]),
) | st.builds(Beam, width=st.just(2), patience=st.floats(0.6, 2.0), early_stopping=st.just(True))
SCORERS = st.sampled_from([None, LengthNormalised(0.4), Contrastive((-1.5, -4.0), 0.5)])
KINDS = st.builds(
    DiverseBeam,
    width=st.just(4),
    groups=st.sampled_from([1, 2, 4]),
    diversity_penalty=st.floats(0.0, 3.0),
    early_stopping=st.sampled_from([True, False, "never"]),
    scorer=SCORERS,
) | st.builds(
    Beam,
    width=st.just(3),
    widths=st.sampled_from([(), (3, 1), (1, 3, 2)]),
    sibling_penalty=st.sampled_from([0.0, 0.6]),
    scorer=SCORERS,
)
ANY = st.just(Greedy()) | SAMPLES | BEST | BEAMS | KINDS
OPTIONS = st.fixed_dictionaries(
    {"max_tokens": st.integers(3, 8)},
    optional={
        "min_tokens": st.integers(0, 3),
        "stop": st.lists(st.sampled_from(["a", "é", "\n", "ll"]), max_size=2),
        "stop_token_ids": st.lists(TOKENS, max_size=2),
        "include_stop": st.booleans(),
        "ignore_eos": st.booleans(),
        "repetition_penalty": st.floats(0.5, 2.0),
        "presence_penalty": st.floats(-2.0, 2.0),
        "frequency_penalty": st.floats(-2.0, 2.0),
        "no_repeat_ngram_size": st.integers(0, 2),
        "logit_bias": st.dictionaries(TOKENS, st.floats(-5.0, 5.0), max_size=3),
        "bad_words": st.lists(st.sampled_from(["x", "hello", (5, 6)]), max_size=2),
        "forced_prefix": st.sampled_from(["", "he", (7, 8)]),
        "logprobs": st.sampled_from([None, 0, 3]),
        "priority": st.integers(-3, 3),
    },
)
ASKED = st.sampled_from([PROMPT, "é ü", (5, 6, 7), [{"role": "user", "content": "hello"}]])


SALTS = itertools.count()


def plain(result: DecodeResult) -> DecodeResult:
    """All but what differs between two equal requests: id and times."""
    times = ("queue_time", "time_to_first_token", "time_per_token", "total_time")
    assert all(getattr(result.usage, name) >= 0 for name in times)
    return replace(result, request_id="", usage=replace(result.usage, **dict.fromkeys(times, 0.0)))


def fresh(options: dict[str, Any]) -> dict[str, Any]:
    """The same options, with nothing in the prefix cache: hits show in the usage, and in last bits."""
    return {**options, "cache_salt": f"fresh {next(SALTS)}"}


def outcome(call: Any) -> Any:
    """A result, or what must be the same of an error."""
    try:
        return plain(call())
    except ForkdecodeError as error:
        partial = error.partial and plain(error.partial)
        return type(error), error.field, error.limit, partial


@given(prompt=ASKED, strategy=ANY, options=OPTIONS)
@settings(max_examples=60)
def test_results(engine: LLM, shared_client: Client, prompt: Any, strategy: Any, options: Any) -> None:
    here = outcome(lambda: engine.decode(prompt, strategy, **fresh(options)))
    there = outcome(lambda: shared_client.decode(prompt, strategy, **fresh(options)))
    assert here == there
    if isinstance(here, DecodeResult):
        assert here.strategy == strategy


def told(events: list[Event]) -> dict[Any, Any]:
    """What a stream says, however its steps were merged."""
    text: dict[Any, str] = defaultdict(str)
    tokens: dict[Any, tuple[int, ...]] = defaultdict(tuple)
    logprobs: dict[Any, tuple[Any, ...]] = defaultdict(tuple)
    ends = {}
    for event in events:
        match event:
            case Delta() | Committed():
                name = event.candidate if isinstance(event, Delta) else "committed"
                text[name] += event.text
                tokens[name] += event.token_ids
                logprobs[name] += getattr(event, "logprobs", None) or ()
            case CandidateFinished():
                ends[event.candidate] = (event.finish_reason, event.cumulative_logprob)
    return {"text": text, "tokens": tokens, "logprobs": logprobs, "ends": ends}


@given(prompt=ASKED, strategy=ANY, options=OPTIONS)
@settings(max_examples=30)
def test_streams(engine: LLM, shared_client: Client, prompt: Any, strategy: Any, options: Any) -> None:
    streams = []
    for one in (engine, shared_client):
        try:
            streams.append(list(one.stream(prompt, strategy, request_id="mine", **fresh(options))))
        except ForkdecodeError as error:
            streams.append([type(error), error.field])  # type: ignore[list-item]
    here, there = streams
    if not isinstance(here[-1], Finished) or not isinstance(there[-1], Finished):
        assert here == there
        return
    assert told(here) == told(there)
    assert plain(here[-1].result) == plain(there[-1].result)
    assert type(here[0]) is type(there[0])
    assert {event.request_id for event in here + there} == {"mine"}


@pytest.mark.parametrize("scorer", BAD.values(), ids=BAD)
def test_a_bad_scorer(client: Client, llm: LLM, scorer: Any) -> None:
    strategy = BestOf(best_of=3, seed=1, rank_by=scorer)
    errors = []
    for one in (client, llm):
        with pytest.raises(GroupFailedError, match="rank_by: the scorer failed") as caught:
            one.decode(PROMPT, strategy, request_id="mine", **fresh({"max_tokens": 6}))
        errors.append(caught.value)
    there, here = errors
    assert (str(there), there.field, there.request_id) == (str(here), here.field, here.request_id)
    assert type(there.__cause__) is type(here.__cause__)
    assert there.partial is not None
    assert here.partial is not None
    assert plain(there.partial) == plain(here.partial)


@pytest.mark.parametrize("first", [1, 3])
def test_a_scorer_sees_all_that_finished(client: Client, llm: LLM, first: int) -> None:
    seen = []

    def scorer(candidates: Any) -> list[float]:
        seen.append(tuple(candidates))
        return by_length(candidates)

    strategy = BestOf(best_of=8, n=1, seed=5, first_finished=first, rank_by=scorer)
    options = {"max_tokens": 60, "logit_bias": {EOS_ID: 2.0}}
    results = [one.decode(PROMPT, strategy, **fresh(options)) for one in (client, llm)]
    assert seen[0] == seen[1]
    assert results[0].candidates == results[1].candidates
    assert results[0].strategy == strategy


WRONG: list[dict[str, Any]] = [
    *({"prompt": prompt} for prompt in PROMPTS.values()),
    *({"strategy": it} for it in ("beam", 5, Beam, Options(), {"n": 2}, True)),
    *({"options": it} for it in ("fast", {"max_tokens": 3}, Options, Greedy())),
    {"options": Options(), "top_k": 3}, {"max_new_tokens": 3}, {"chat": 1}, {"prompt": [1, 2], "chat": True},
    *({"request_id": it} for it in ("", 5, b"x", "\ud800")),
    *({"max_tokens": it} for it in (0, -1, LIMIT, 2**31 - 1, 10**30, 1.5, "3")),
    {"stop_token_ids": [len(VOCAB)]}, {"allowed_token_ids": [3, 2**31 - 1]}, {"allowed_token_ids": []},
    {"logit_bias": {len(VOCAB): 1.0}}, {"logit_bias": {3: float("nan")}}, {"bad_words": [[3, len(VOCAB)]]},
    {"forced_prefix": [len(VOCAB)]}, {"forced_prefix": "x" * 65}, {"stop": ["\ud800"]}, {"logprobs": 1025},
    {"update_every": 3}, {"strategy": Beam(width=5000), "max_tokens": 400},
    {"prompt": ["a", ""]}, {"prompt": ["a", [-1]]}, {"prompt": ["a", "b"], "strategy": [Greedy()]},
    {"prompt": ["a", "b"], "request_id": "x"},
    {"allowed_token_ids": [EOS_ID], "min_tokens": 2},
]  # fmt: skip


def _name(wrong: dict[str, Any]) -> str:
    """Of a test: the same in every process, so without the addresses of objects."""
    return re.sub(" at 0x[0-9a-f]+", "", ascii(wrong))[:60]


@pytest.mark.parametrize("wrong", WRONG, ids=_name)
def test_errors(client: Client, llm: LLM, wrong: dict[str, Any]) -> None:
    arguments = {"prompt": "a", **wrong}
    errors = []
    for one in (client, llm):
        with pytest.raises(ForkdecodeError) as caught:
            one.decode(**arguments)
        errors.append(caught.value)
    there, here = errors
    assert type(there) is type(here)
    assert there.field == here.field
    assert bool(there.request_id) >= bool(here.request_id)


def test_prompts_of_any_kind(client: Client, llm: LLM) -> None:
    for prompt in (np.array([5, 6, 7]), (5, 6, 7), range(5, 8), [np.int32(5), 6, np.uint8(7)]):
        assert client.decode(prompt, max_tokens=2).prompt_token_ids == (5, 6, 7)  # type: ignore[call-overload]
    batch: list[Any] = ["a", [5, 6], [{"role": "user", "content": "x"}]]
    several: list[Strategy] = [Greedy(), Beam(width=2), Sample(n=2, seed=1)]
    here, there = (one.decode(batch, several, **fresh({"max_tokens": 3})) for one in (llm, client))
    assert [plain(r) for r in here] == [plain(r) for r in there]
    assert client.decode([]) == []


def test_messages_that_cannot_be_sent(client: Client) -> None:
    for message in ({"role": "user", "content": "a", "name": "b"}, {"role": "user", "content": [{"a": 1}]}):
        with pytest.raises(ForkdecodeError, match="prompt: ") as caught:
            client.decode([message])
        assert caught.value.field == "prompt"


def test_scores(client: Client, llm: LLM) -> None:
    pieces = ["a", [5, 6], "hello"]
    here, there = (one.score(PROMPT, pieces, **fresh({"top_logprobs": 2})) for one in (llm, client))
    assert here.continuations == there.continuations
    assert here.prompt_token_ids == there.prompt_token_ids
    assert client.score("a", ["b"], request_id="mine").request_id == "mine"
    several: list[Any] = [PROMPT, [5, 6]]
    for own in (pieces, [pieces, ["b"]]):
        lists = [one.score(several, own, **fresh({})) for one in (llm, client)]
        assert [r.continuations for r in lists[0]] == [r.continuations for r in lists[1]]
        assert [r.prompt_token_ids for r in lists[0]] == [r.prompt_token_ids for r in lists[1]]
    for wrong in ({"continuations": []}, {"continuations": [""]}, {"continuations": [[9999]]},
                  {"continuations": "ab"}, {"top_logprobs": -1}, {"prompt": None}, {"chat": 3},
                  {"prompt": ["a", ""]}, {"prompt": ["a"], "continuations": [["b"], ["c"]]},
                  {"prompt": ["a"], "request_id": "x"}):  # fmt: skip
        arguments = {"prompt": "a", "continuations": ["b"], **wrong}
        errors = []
        for one in (llm, client):
            with pytest.raises(ForkdecodeError) as caught:
                one.score(**arguments)
            errors.append((type(caught.value), caught.value.field))
        assert errors[0] == errors[1], wrong


def test_tokens_and_texts(client: Client, llm: LLM) -> None:
    for prompt in ("hello wörld", [5, 6], [{"role": "user", "content": "x"}]):
        assert client.tokenize(prompt) == llm.tokenize(prompt)
    assert client.tokenize("a", chat=True) == llm.tokenize("a", chat=True)
    assert client.detokenize(client.tokenize("hello wörld")) == "hello wörld"
    for one in (client, llm):
        with pytest.raises(ForkdecodeError) as caught:
            one.detokenize([len(VOCAB)])
        assert caught.value.field == "token_ids"


def test_what_is_served(client: Client, llm: LLM) -> None:
    for name in ("name", "dtype", "vocab_size", "max_positions", "eos_ids"):
        assert getattr(client.info, name) == getattr(llm.info, name)
    assert client.info.num_blocks == llm.capacity.num_blocks
    assert client.stats().total_blocks == llm.stats().total_blocks


def test_coroutines(llm: LLM, server: Running) -> None:
    async def work() -> None:
        async with await AsyncClient.create(server.address) as client:
            assert client.info.vocab_size == len(VOCAB)
            found = await asyncio.gather(
                *(client.decode(PROMPT, s, **fresh({"max_tokens": 6})) for s in STRATEGIES.values())
            )
            for strategy, result in zip(STRATEGIES.values(), found, strict=True):
                assert plain(result) == plain(llm.decode(PROMPT, strategy, **fresh({"max_tokens": 6})))
            strategy = STRATEGIES["sample"]
            events = [e async for e in client.stream(PROMPT, strategy, **fresh({"max_tokens": 6}))]
            assert told(events) == told(list(llm.stream(PROMPT, strategy, **fresh({"max_tokens": 6}))))
            with pytest.raises(GroupFailedError, match="the scorer failed"):
                await client.decode(PROMPT, BestOf(seed=1, rank_by=BAD["raises"]), max_tokens=3)
            [score] = await client.score(["a"], ["b", "c"], **fresh({}))
            assert score.continuations == llm.score("a", ["b", "c"], **fresh({})).continuations
            assert await client.detokenize(await client.tokenize("abc")) == "abc"
            assert (await client.stats()).total_blocks == llm.stats().total_blocks

    asyncio.run(work())
