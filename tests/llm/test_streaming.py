"""What a stream says, put together, is the result: tokens and texts, whatever ends a candidate."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from forkdecode import (
    LLM,
    Beam,
    BeamUpdate,
    BestOf,
    CancelledError,
    CandidateFinished,
    Committed,
    DecodeResult,
    Delta,
    Event,
    Finished,
    Greedy,
    Sample,
    Started,
    Strategy,
)
from forkdecode.text.token_bytes import token_bytes
from forkdecode.types import BEAMS
from tests.llm.models import EOS_ID, PROMPT, STRATEGIES, TOKENIZER, ids, outcome, text_of

BYTES = token_bytes(TOKENIZER)
DRAWING = {name: s for name, s in STRATEGIES.items() if not isinstance(s, BEAMS)}
PIECES = ["a", "b", " wor", "hello", "é", "ß", "世界", "👩‍👩‍👧", "\n\n", "|", "||", "<end>", "he", "ll"]


class Heard:
    """A stream put together, with the order of its events checked."""

    def __init__(self, events: list[Event]) -> None:
        self.texts: dict[int, str] = defaultdict(str)
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.ended: dict[int, CandidateFinished] = {}
        assert isinstance(events[0], Started)
        assert isinstance(events[-1], Finished)
        for event in events[1:-1]:
            if isinstance(event, Delta):
                assert event.candidate not in self.ended
                self.texts[event.candidate] += event.text
                self.tokens[event.candidate] += event.token_ids
            else:
                assert isinstance(event, CandidateFinished)
                assert event.candidate not in self.ended
                self.ended[event.candidate] = event
        self.result = events[-1].result

    def check(self) -> None:
        for candidate in self.result.candidates:
            assert tuple(self.tokens[candidate.index]) == candidate.token_ids
            assert self.texts[candidate.index] == candidate.text
            assert self.ended[candidate.index].finish_reason == candidate.finish_reason
            assert self.ended[candidate.index].cumulative_logprob == candidate.cumulative_logprob


@settings(max_examples=40)
@given(
    text=st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join),
    cut=st.integers(0, 3),
    stop=st.lists(st.sampled_from(["|", "||", "界", "hell", "é\n", "<end>", "end", "b |"]), max_size=3),
    include=st.booleans(),
    min_tokens=st.integers(0, 4),
    more=st.integers(0, 4),
    eos=st.booleans(),
    name=st.sampled_from(sorted(DRAWING)),
)
def test_deltas_add_up(
    shared_llm: LLM,
    text: str,
    cut: int,
    stop: list[str],
    include: bool,
    min_tokens: int,
    more: int,
    eos: bool,
    name: str,
) -> None:
    """`cut` ends the text inside of a character; `more` tokens are the model's own bytes."""
    forced = ids(text)[: max(1, len(ids(text)) - cut)]
    limit = len(forced) + more
    options: dict[str, Any] = {
        "forced_prefix": forced + ((EOS_ID,) if eos and more else ()),
        "stop": stop,
        "include_stop": include,
        "min_tokens": min(min_tokens, limit, len(forced)),
        "max_tokens": limit,
    }
    heard = Heard(list(shared_llm.stream(PROMPT, DRAWING[name], **options)))
    heard.check()
    assert outcome(heard.result) == outcome(shared_llm.decode(PROMPT, DRAWING[name], **options))
    for candidate in heard.result.candidates:
        assert candidate.text == expected_text(
            candidate.token_ids, candidate.finish_reason, stop, include, options["min_tokens"]
        )


def expected_text(
    tokens: tuple[int, ...], reason: str, stop: list[str], include: bool, min_tokens: int
) -> str:
    """The rule in plain words: all of the text, cut at the stop string that comes to an end first,
    in the first token that may end the candidate; of several that end there, the longest."""
    if reason != "stop":
        return text_of(tokens)
    ends = [len(b"".join(map(BYTES.of, tokens[:g]))) for g in range(len(tokens) + 1)]
    whole = b"".join(map(BYTES.of, tokens))
    for g in range(max(1, min_tokens), len(tokens) + 1):
        for end in range(ends[g - 1] + 1, ends[g] + 1):
            found = [len(s.encode()) for s in stop if whole[:end].endswith(s.encode())]
            if found:
                assert g == len(tokens), "the candidate went on after a stop string"
                return whole[: end if include else end - max(found)].decode(errors="replace")
    raise AssertionError("ended by a stop string that is not there")


class HeardBeam:
    """A beam's stream, with what is committed and shown put together and checked on the way."""

    def __init__(self, events: list[Event]) -> None:
        self.tokens: tuple[int, ...] = ()
        self.text = ""
        self.shown: dict[int, tuple[int, ...]] = {}
        self.commits: list[Committed] = []
        assert isinstance(events[0], Started)
        assert isinstance(events[-1], Finished)
        for event in events[1:-1]:
            if isinstance(event, Committed):
                self.commits.append(event)
                self.tokens += event.token_ids
                self.text += event.text
                assert text_of(self.tokens).startswith(self.text.rstrip("\ufffd"))
            else:
                assert isinstance(event, BeamUpdate)
                self.update(event)
        self.result = events[-1].result

    def update(self, event: BeamUpdate) -> None:
        beams = {beam.hypothesis_id: self.tokens + beam.token_ids for beam in event.beams}
        assert len(beams) == len(event.beams)
        assert 0 not in beams
        assert {len(tokens) for tokens in beams.values()} == {event.generated_tokens}
        assert sorted(event.beams, key=lambda beam: -beam.score) == list(event.beams)
        for beam in event.beams:
            whole = beams[beam.hypothesis_id]
            came_from = self.shown.get(beam.parent_id, ())
            assert (beam.parent_id == 0) == (not came_from)
            assert whole[: len(came_from)] == came_from
            assert text_of(whole).startswith((self.text + beam.text).rstrip("\ufffd"))
        self.shown = beams

    def check(self) -> None:
        for candidate in self.result.candidates:
            assert candidate.token_ids[: len(self.tokens)] == self.tokens
            assert candidate.text.startswith(self.text)


@settings(max_examples=40)
@given(
    text=st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map("".join),
    cut=st.integers(0, 3),
    stop=st.lists(st.sampled_from(["|", "||", "界", "hell", "é\n", "<end>", "a", "b |"]), max_size=3),
    include=st.booleans(),
    min_tokens=st.integers(0, 8),
    more=st.integers(1, 8),
    bias=st.sampled_from([0.0, 4.0, 9.0]),
    width=st.integers(1, 5),
    returned=st.integers(1, 5),
    early=st.sampled_from([True, False, "never"]),
    every=st.integers(0, 3),
    shown=st.integers(0, 3),
)
def test_what_a_beam_commits_stands(
    shared_llm: LLM,
    text: str,
    cut: int,
    stop: list[str],
    include: bool,
    min_tokens: int,
    more: int,
    bias: float,
    width: int,
    returned: int,
    early: Any,
    every: int,
    shown: int,
) -> None:
    """`text` is what all candidates begin with, unless it is what a stop string ends."""
    forced = ids(text)[: max(1, len(ids(text)) - cut)]
    limit = len(forced) + more
    options: dict[str, Any] = {
        "forced_prefix": forced,
        "stop": stop,
        "include_stop": include,
        "min_tokens": min(min_tokens, limit),
        "max_tokens": limit,
        "logit_bias": {EOS_ID: bias, 0x61: bias},
    }
    strategy = Beam(width, num_return_sequences=min(width, returned), early_stopping=early)
    events = list(shared_llm.stream(PROMPT, strategy, update_every=every, update_beams=shown, **options))
    heard = HeardBeam(events)
    heard.check()
    assert outcome(heard.result) == outcome(shared_llm.decode(PROMPT, strategy, **options))


def test_a_beam_commits_what_is_common_at_once(llm: LLM) -> None:
    text = "Grüße 世界"
    forced = ids(text)
    events = list(
        llm.stream(PROMPT, Beam(3), forced_prefix=text, max_tokens=len(forced) + 6, ignore_eos=True)
    )
    heard = HeardBeam(events)
    heard.check()
    assert [c.token_ids for c in heard.commits[: len(forced)]] == [(token,) for token in forced]
    assert heard.text.startswith(text)
    for before, event in pairwise(events[1:]):
        if isinstance(event, Committed):
            assert isinstance(before, BeamUpdate)  # committed comes first in its step


def test_one_beam_commits_every_token_but_the_last(llm: LLM) -> None:
    events = list(llm.stream(PROMPT, Beam(1), max_tokens=6, ignore_eos=True))
    heard = HeardBeam(events)
    heard.check()
    assert [len(c.token_ids) for c in heard.commits] == [1] * 5
    assert heard.tokens == heard.result.candidates[0].token_ids[:5]
    for event in events:
        if isinstance(event, BeamUpdate):
            assert [(beam.token_ids, beam.text) for beam in event.beams] == [((), "")]


def test_a_cancelled_beam_keeps_what_it_committed(llm: LLM) -> None:
    """Hypotheses that it could no longer return begin otherwise, and are not told of."""
    # At 300 tokens any live row would beat the pool, so the search goes on.
    strategy = Beam(3, num_return_sequences=1, early_stopping="never", length_penalty=3.0)
    options: dict[str, Any] = {"forced_prefix": "ab", "max_tokens": 300, "logit_bias": {EOS_ID: 2.0}}
    handle = llm.submit(PROMPT, strategy, stream=True, **options)
    committed: list[Committed] = []

    def listen() -> None:
        for event in handle:
            if isinstance(event, Committed):
                committed.append(event)
            elif isinstance(event, BeamUpdate) and event.finished == 3:
                handle.cancel()

    with pytest.raises(CancelledError) as caught:
        listen()
    tokens = tuple(token for event in committed for token in event.token_ids)
    text = "".join(event.text for event in committed)
    assert caught.value.partial is not None
    reasons = [candidate.finish_reason for candidate in caught.value.partial.candidates]
    assert reasons == ["eos", "cancelled", "cancelled", "cancelled"]
    assert len(tokens) >= 2
    for candidate in caught.value.partial.candidates:
        assert candidate.token_ids[: len(tokens)] == tokens
        assert candidate.text.startswith(text)


def test_text_is_never_taken_back_and_never_half_a_character(llm: LLM) -> None:
    text = "Grüße 世界 👩‍👩‍👧!"
    seen = ""
    for event in llm.stream(PROMPT, Greedy(), forced_prefix=text, max_tokens=len(ids(text))):
        if isinstance(event, Delta):
            seen += event.text
            assert "\ufffd" not in event.text
            assert text.startswith(seen)
    assert seen == text


def test_a_possible_stop_string_is_held_back_until_decided(llm: LLM) -> None:
    text = "ab<en|cd<end>"
    seen = []
    for event in llm.stream(PROMPT, Greedy(), forced_prefix=text, stop="<end>", max_tokens=20):
        if isinstance(event, Delta):
            seen.append(event.text)
    assert "".join(seen) == "ab<en|cd"
    assert seen[2:6] == ["", "", "", "<en|"]  # decided by the character that is not "d"


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
@pytest.mark.parametrize(
    ("text", "stop", "include", "expected"),
    [
        ("one. two. three", ". t", False, "one"),
        ("one. two. three", ". t", True, "one. t"),
        ("hello world", "o wor", False, "hell"),  # "hello" and " wor" are tokens
        ("hello world", "o wo", True, "hello wo"),
        ("a世界b", "界", False, "a世"),  # every byte of a character is a token
        ("xxabc", ["bc", "abc", "zz"], False, "xx"),
        ("hello", ["llo", "hell"], False, ""),  # in one token: "hell" ends first
        ("hello, hello", "hello, hello", False, ""),
        ("nothing here", "hello", False, None),
    ],
)  # fmt: skip
def test_stop_strings(
    llm: LLM, strategy: Strategy, text: str, stop: Any, include: bool, expected: str | None
) -> None:
    """`hello` in the prompt is none of its business."""
    result: DecodeResult = llm.decode(
        PROMPT, strategy, forced_prefix=text, stop=stop, include_stop=include, max_tokens=len(ids(text))
    )
    if expected is None:
        assert {(c.finish_reason, c.text) for c in result.candidates} == {("length", text)}
    else:
        assert {(c.finish_reason, c.text) for c in result.candidates} == {("stop", expected)}


def test_samples_end_on_their_own(llm: LLM) -> None:
    events = list(llm.stream(PROMPT, Sample(n=6, seed=3), max_tokens=40, logit_bias={EOS_ID: 3.0}))
    heard = Heard(events)
    heard.check()
    assert {c.finish_reason for c in heard.result.candidates} == {"eos"}
    assert len({len(c.token_ids) for c in heard.result.candidates}) > 1


def test_what_first_finished_cuts_off_is_told_as_cancelled(llm: LLM) -> None:
    strategy = BestOf(best_of=6, n=2, seed=3, first_finished=2)
    heard = Heard(list(llm.stream(PROMPT, strategy, max_tokens=40, logit_bias={EOS_ID: 3.0})))
    heard.check()
    reasons = [e.finish_reason for e in heard.ended.values()]
    assert len(reasons) == 6
    assert reasons.count("cancelled") == 6 - reasons.count("eos") > 0
    assert {c.finish_reason for c in heard.result.candidates} == {"eos"}
