"""However events are gathered into messages, nothing of them is lost and their order means the same."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.results import (
    BeamUpdate,
    CandidateFinished,
    Committed,
    Delta,
    Event,
    Finished,
    LiveBeam,
    Started,
    TokenLogprob,
)
from forkdecode.rpc.coalesce import Coalescer
from tests.rpc import records
from tests.rpc.records import NAME


def taken(events: list[Event], sizes: list[int]) -> list[list[Event]]:
    """The messages of a reader who takes after so many events each time, and the rest at the end."""
    merged, messages = Coalescer(), []
    at = 0
    for size in [*sizes, len(events)]:
        merged.add(events[at : at + size])
        at += size
        if merged:
            messages.append(merged.take())
        assert not merged
        assert merged.tokens == 0
    return messages


cuts = st.lists(st.integers(0, 12), max_size=12)


@st.composite
def sampled(draw: st.DrawFn) -> list[Event]:
    """The events of a request with several samples."""
    events: list[Event] = [Started(NAME, 7, 3)]
    live = set(range(draw(st.integers(1, 4))))
    with_logprobs = draw(st.booleans())
    for token in range(draw(st.integers(0, 8))):
        for candidate in sorted(live):
            logprobs = (TokenLogprob(token, -1.0, -2.0),) if with_logprobs else None
            events.append(Delta(NAME, candidate, (token,), draw(records.texts), logprobs))
            if draw(st.integers(0, 5)) == 0:
                live.discard(candidate)
                events.append(Delta(NAME, candidate, (), draw(records.some_text)))
                events.append(CandidateFinished(NAME, candidate, "eos", -3.5))
    return [*events, Finished(NAME, draw(records.results()))]


@dataclass
class Heard:
    """What a reader knows who has followed the events."""

    tokens: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    texts: dict[int, str] = field(default_factory=lambda: defaultdict(str))
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=lambda: defaultdict(list))
    ended: dict[int, CandidateFinished] = field(default_factory=dict)
    others: list[Event] = field(default_factory=list)

    def hear(self, event: Event) -> None:
        if isinstance(event, Delta):
            assert event.candidate not in self.ended, "a token after its candidate's end"
            self.tokens[event.candidate].extend(event.token_ids)
            self.texts[event.candidate] += event.text
            self.logprobs[event.candidate].extend(event.logprobs or ())
        elif isinstance(event, CandidateFinished):
            assert event.candidate not in self.ended
            self.ended[event.candidate] = event
        else:
            self.others.append(event)


def heard(events: list[Event]) -> Heard:
    reader = Heard()
    for event in events:
        reader.hear(event)
    return reader


@given(sampled(), cuts)
@settings(deadline=None)
def test_samples_are_whole_however_they_are_read(events: list[Event], sizes: list[int]) -> None:
    messages = taken(events, sizes)
    assert heard([event for message in messages for event in message]) == heard(events)
    for message in messages:
        kinds = [type(event) for event in message]
        order = (Started, Delta, CandidateFinished, Finished)
        assert kinds == sorted(kinds, key=order.index)
        changed = [event.candidate for event in message if isinstance(event, Delta)]
        assert len(changed) == len(set(changed)), "two deltas of one candidate in one message"


@dataclass(frozen=True)
class Hypothesis:
    """A live hypothesis of the model beam search below."""

    name: int
    parent: int
    tokens: tuple[int, ...]


def letters(tokens: tuple[int, ...]) -> str:
    return "".join(chr(97 + token) for token in tokens)


def common(live: list[Hypothesis]) -> int:
    """Tokens that all begin with."""
    length = 0
    while all(len(h.tokens) > length and h.tokens[length] == live[0].tokens[length] for h in live):
        length += 1
    return length


@st.composite
def searched(draw: st.DrawFn) -> tuple[list[Event], dict[int, Hypothesis]]:
    """The events of a beam search over two tokens, and all its hypotheses by name. Every step commits
    what it can; updates come every so many steps and show so many beams."""
    width, every, shown = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    live, committed, name = [Hypothesis(0, 0, ())], 0, 0
    everyone: dict[int, Hypothesis] = {}
    before: list[Hypothesis] = []
    events: list[Event] = []
    for step in range(1, draw(st.integers(1, 12)) + 1):
        grown = []
        for _ in range(width):
            parent = live[draw(st.integers(0, len(live) - 1))]
            name += 1
            grown.append(Hypothesis(name, parent.name, (*parent.tokens, draw(st.integers(0, 1)))))
        live = list({h.tokens: h for h in grown}.values())
        everyone.update({h.name: h for h in live})
        length = common(live)
        if length > committed:
            new = live[0].tokens[committed:length]
            events.append(Committed(NAME, new, letters(new)))
            committed = length
        if step % every == 0:
            names = {h.name for h in before}
            beams = tuple(
                LiveBeam(
                    h.name,
                    next((a for a in ancestors(h, everyone) if a in names), 0),
                    h.tokens[committed:],
                    letters(h.tokens[committed:]),
                    -1.0,
                )
                for h in live[:shown]
            )
            events.append(BeamUpdate(NAME, step, beams, 0))
            before = live[:shown]
    return events, everyone


def ancestors(hypothesis: Hypothesis, everyone: dict[int, Hypothesis]) -> list[int]:
    found, parent = [], hypothesis.parent
    while parent in everyone:
        found.append(parent)
        parent = everyone[parent].parent
    return found


@given(searched(), cuts)
@settings(deadline=None, max_examples=300)
def test_beams_follow_what_is_committed(
    search: tuple[list[Event], dict[int, Hypothesis]], sizes: list[int]
) -> None:
    events, everyone = search
    committed: tuple[int, ...] = ()
    text = ""
    shown: set[int] = set()
    for message in taken(events, sizes):
        assert [type(event) for event in message] in ([Committed], [BeamUpdate], [Committed, BeamUpdate])
        for event in message:
            if isinstance(event, Committed):
                committed, text = committed + event.token_ids, text + event.text
            if isinstance(event, BeamUpdate):
                assert event.beams
                for beam in event.beams:
                    truth = everyone[beam.hypothesis_id]
                    assert committed + beam.token_ids == truth.tokens
                    assert text + beam.text == letters(truth.tokens)
                    assert event.generated_tokens == len(truth.tokens)
                    assert beam.parent_id in shown | {0}
                    assert beam.parent_id in [0, *ancestors(truth, everyone)]
                shown = {beam.hypothesis_id for beam in event.beams}
    whole = [event for event in events if isinstance(event, Committed)]
    assert committed == tuple(token for event in whole for token in event.token_ids)
    assert text == "".join(event.text for event in whole)


@given(searched())
@settings(deadline=None)
def test_a_reader_who_takes_everything_at_once_gets_it_unchanged(
    search: tuple[list[Event], dict[int, Hypothesis]],
) -> None:
    events, _ = search
    messages = taken(events, [1] * len(events))
    assert [event for message in messages for event in message] == events


def update(step: int, *beams: LiveBeam) -> BeamUpdate:
    return BeamUpdate(NAME, step, beams, 0)


def test_parents_skip_updates_that_were_not_taken() -> None:
    merged = Coalescer()
    merged.add([update(1, LiveBeam(1, 0, (5,), "f", 0.0), LiveBeam(2, 0, (6,), "g", 0.0))])
    merged.take()
    merged.add([update(2, LiveBeam(3, 2, (6, 5), "gf", 0.0))])
    merged.add([update(3, LiveBeam(4, 3, (6, 5, 5), "gff", 0.0), LiveBeam(5, 9, (6, 5, 6), "gfg", 0.0))])
    last = merged.take()[-1]
    assert isinstance(last, BeamUpdate)
    assert [beam.parent_id for beam in last.beams] == [2, 0]


def test_an_update_that_a_commit_overtakes_is_put_in_its_terms() -> None:
    merged = Coalescer()
    old = update(2, LiveBeam(1, 0, (5, 6), "fg", -1.0), LiveBeam(2, 0, (6, 6), "gg", -2.0))
    merged.add([old, Committed(NAME, (5,), "f")])
    assert merged.tokens == 2
    kept = replace(old, beams=(LiveBeam(1, 0, (6,), "g", -1.0),))
    assert merged.take() == [Committed(NAME, (5,), "f"), kept]


def test_an_update_of_which_nothing_is_left_is_left_out() -> None:
    merged = Coalescer()
    merged.add([update(1, LiveBeam(1, 0, (5,), "f", 0.0)), Committed(NAME, (5, 6), "fg")])
    assert merged.take() == [Committed(NAME, (5, 6), "fg")]


def test_memory_follows_tokens_and_not_events() -> None:
    merged = Coalescer()
    for step in range(1000):
        merged.add([Delta(NAME, 0, (step,), "x"), update(step, LiveBeam(step + 1, step, (1, 2), "", 0.0))])
    assert merged.tokens == 1002
    assert len(merged.take()) == 2
