"""What a streamed beam commits and shows, against its candidates written out."""

from __future__ import annotations

import dataclasses
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from forkdecode.engine.core import Engine
from forkdecode.scheduler.beam_stream import ROWS_A_STEP, CommonPrefix, ShownBeams
from forkdecode.scheduler.events import BeamStep, GroupFailed, GroupFinished, GroupStarted, TokensCommitted
from forkdecode.scheduler.group import SequenceGroup
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.strategies.history import History
from forkdecode.strategies.hypotheses import EOS, NO_HYPOTHESES, Hypotheses, HypothesisBatch
from forkdecode.text.stop import StopAutomaton
from forkdecode.text.token_bytes import TokenBytes
from forkdecode.types import Beam, DiverseBeam, Greedy, LengthNormalised, Sample, StochasticBeam
from tests.scheduler.committed_reference import Tokens, committed
from tests.scheduler.engines import VOCAB, assert_idle, decode_alone, renamed, request, tokens, toy_engine

LETTERS = TokenBytes.build([bytes([65 + i]) for i in range(VOCAB)])
MAX_WIDTH = 6


# -- the common prefix alone --------------------------------------------------------------------------


class RandomBeam:
    """Steps that no model would take: any rows go on, any end, with any scores."""

    def __init__(self, seed: int, width: int, kept: int, returned: int, ends: float, spread: float) -> None:
        self._rng = np.random.default_rng(seed)
        self._width, self._returned, self._ends, self._spread = width, returned, ends, spread
        self.history = History()
        self.rows: list[Tokens] = [()]
        self.pool = Hypotheses(kept)
        self._ended: dict[tuple[int, int], Tokens] = {}

    def step(self) -> tuple[np.ndarray, HypothesisBatch]:
        """The parents of the next rows, one at least, and what entered the pool."""
        rng, before = self._rng, len(self.rows)
        # Few sources make rows die out, so that levels become common.
        sources = rng.choice(before, size=min(before, 1 + int(rng.poisson(self._spread))), replace=False)
        pairs = [(int(row), int(token)) for row in sources for token in rng.choice(9, size=4, replace=False)]
        rng.shuffle(pairs)
        end = rng.random(len(pairs)) < self._ends
        end[0] = False
        live = [pair for pair, ended in zip(pairs, end, strict=True) if not ended][: self._width]
        finished = self.pool.add(self._finish([p for p, ended in zip(pairs, end, strict=True) if ended]))
        parents = np.array([row for row, _ in live], np.int32)
        chosen = np.array([token for _, token in live], np.int64)
        zeros = np.zeros(len(live), np.float32)
        self.history.append(parents, chosen, zeros, zeros)
        self.rows = [(*self.rows[row], token) for row, token in live]
        return parents, finished

    def returnable(self) -> HypothesisBatch:
        return self.pool.best(self._returned)

    def returnable_tokens(self) -> list[Tokens]:
        batch = self.returnable()
        return [self._ended[key] for key in zip(batch.generated.tolist(), batch.pick.tolist(), strict=True)]

    def _finish(self, pairs: list[tuple[int, int]]) -> HypothesisBatch:
        n, generated = len(pairs), self.history.steps + 1
        for pick, (row, token) in enumerate(pairs):
            self._ended[generated, pick] = (*self.rows[row], token)
        zeros = np.zeros(n, np.float32)
        return HypothesisBatch(
            generated=np.full(n, generated, np.int32),
            row=np.array([row for row, _ in pairs], np.int32),
            pick=np.arange(n),
            token=np.array([token for _, token in pairs], np.int64),
            logprob=zeros,
            selection_logprob=zeros,
            cumulative=zeros.astype(np.float64),
            selection=zeros,
            score=self._rng.integers(0, 12, n) + 0.5 * generated,
            reason=np.full(n, EOS, np.uint8),
            candidate=np.zeros(n, np.int32),
        )


@settings(max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    width=st.integers(1, 7),
    kept=st.integers(1, 7),
    returned=st.integers(1, 7),
    ends=st.sampled_from([0.0, 0.02, 0.1, 0.4]),
    spread=st.sampled_from([0.2, 1.0, 3.0]),
    steps=st.sampled_from([5, 20, 110]),
)
def test_the_prefix_is_that_of_all_tokens_of_all_candidates(
    seed: int, width: int, kept: int, returned: int, ends: float, spread: float, steps: int
) -> None:
    beam = RandomBeam(seed, width, kept, returned, ends, spread)
    common = CommonPrefix()
    for _ in range(steps):
        before = common.count
        parents, finished = beam.step()
        grown = common.step(beam.history, parents, finished, beam.returnable())
        expected = committed(beam.rows, beam.returnable_tokens())
        assert common.count == len(expected)
        assert grown == (common.count > before)
        assert tuple(common.tokens(beam.history, before).tolist()) == expected[before:]


def test_random_beams_commit_in_the_presence_of_hypotheses() -> None:
    """The property above is of no use where nothing ever grows."""
    grown = 0
    for seed in range(40):
        beam, common = RandomBeam(seed, 4, 5, 2, 0.1, 1.0), CommonPrefix()
        for _ in range(60):
            parents, finished = beam.step()
            had_some = len(beam.pool) > len(finished)
            grown += common.step(beam.history, parents, finished, beam.returnable()) and had_some
    assert grown > 40


# -- which hypotheses are shown -----------------------------------------------------------------------


def test_shown_hypotheses_know_whom_they_continue() -> None:
    shown = ShownBeams(every=2, beams=2)
    shown.move(np.array([0, 0, 0], np.int32))
    assert not shown.due(1)
    shown.move(np.array([2, 0, 2], np.int32))
    assert shown.due(2)
    best, numbers, parents = shown.show(np.array([-3.0, -1.0, -1.0]), 2)
    assert best.tolist() == [1, 2]  # of equal scores the lower row
    assert numbers.tolist() == [2 * ROWS_A_STEP + 2, 2 * ROWS_A_STEP + 3]
    assert parents.tolist() == [0, 0]
    shown.move(np.array([2, 2, 0], np.int32))
    shown.move(np.array([2, 1, 0], np.int32))
    best, _, parents = shown.show(np.array([-1.0, -2.0, -3.0]), 4)
    assert best.tolist() == [0, 1]
    assert parents.tolist() == [0, 2 * ROWS_A_STEP + 3]  # row 0 goes back to one that was not shown


def test_numbers_of_the_widest_beam_differ() -> None:
    shown, scores = ShownBeams(every=1, beams=0), np.zeros(ROWS_A_STEP)
    seen: set[int] = set()
    for generated in (1, 2, 3):
        shown.move(np.zeros(ROWS_A_STEP, np.int32))
        seen.update(shown.show(scores, generated)[1].tolist())
    assert len(seen) == 3 * ROWS_A_STEP
    assert 0 not in seen


# -- in the scheduler ---------------------------------------------------------------------------------


class Listener:
    """One streamed request: what it has been told, held against its group after every step."""

    def __init__(self, engine: Engine, what: DecodeRequest) -> None:
        self.engine, self.what = engine, what
        self.committed: Tokens = ()
        self.shown: dict[int, Tokens] = {}
        self.last: GroupFinished | GroupFailed | None = None

    def step(self) -> None:
        """One step of the engine, alone with this request."""
        group = self.engine.scheduler._groups[self.what.request_id]
        before = group.rows.generated
        events = self.engine.step()
        kinds = [type(event) for event in events]
        order = [GroupStarted, TokensCommitted, BeamStep, GroupFinished]
        assert kinds == [kind for kind in order if kind in kinds]
        for event in events:
            self.take(event, group)
        options, generated = self.what.options, group.rows.generated
        if self.last is None and generated > before:
            assert self.committed == committed(*candidates(group))
            due = options.update_every and generated % options.update_every == 0
            assert (BeamStep in kinds) == bool(due)

    def take(self, event: Any, group: SequenceGroup) -> None:
        if isinstance(event, TokensCommitted):
            assert len(event.token_ids)
            self.committed += tuple(event.token_ids.tolist())
        elif isinstance(event, BeamStep):
            self.update(event, group)
        elif isinstance(event, (GroupFinished, GroupFailed)):
            self.last = event
            for candidate in event.candidates:
                assert candidate.token_ids[: len(self.committed)] == self.committed

    def update(self, event: BeamStep, group: SequenceGroup) -> None:
        rows, _ = candidates(group)
        wanted = self.what.options.update_beams or len(rows)
        scores = group.policy.live_score(group.rows)
        best = sorted(range(len(rows)), key=lambda r: (-scores[r], r))[:wanted]
        beams = [self.committed + tuple(rest) for rest in event.token_ids.tolist()]
        assert beams == [rows[r] for r in best]
        assert event.scores.tolist() == [scores[r] for r in best]
        assert (event.generated, event.finished) == (group.rows.generated, len(group.policy.hypotheses))
        for beam, parent in zip(beams, event.parents.tolist(), strict=True):
            ancestors = [number for number, shown in self.shown.items() if beam[: len(shown)] == shown]
            assert ancestors == ([parent] if parent else [])
        assert not self.shown.keys() & set(event.hypotheses.tolist())
        self.shown = dict(zip(event.hypotheses.tolist(), beams, strict=True))


def candidates(group: SequenceGroup) -> tuple[list[Tokens], list[Tokens]]:
    """The tokens of a group's live rows, and of the hypotheses it would return if nothing followed."""
    everyone = np.arange(group.num_rows, dtype=np.int32)
    rows = group.history.tokens(group.rows.generated, everyone).tolist()
    ended = [path.tokens.tolist() for path in group.history.paths(group.policy.results())]
    return [tuple(r) for r in rows], [tuple(r) for r in ended]


@st.composite
def strategies(draw: st.DrawFn) -> Beam | DiverseBeam | StochasticBeam:
    width = draw(st.integers(1, MAX_WIDTH))
    kind = draw(st.sampled_from([Beam, DiverseBeam, StochasticBeam]))
    if kind is StochasticBeam:
        seed, temperature = draw(st.integers(0, 99)), draw(st.sampled_from([0.5, 1.0, 2.0]))
        return StochasticBeam(width, temperature, top_k=draw(st.sampled_from([0, 3])), seed=seed)
    early: Any = draw(st.sampled_from([True, False, "never"]))
    if kind is DiverseBeam:
        groups = draw(st.integers(1, 3))
        return DiverseBeam(
            width=groups * draw(st.integers(1, 3)),
            groups=groups,
            diversity_penalty=draw(st.sampled_from([0.0, 0.3, 2.0])),
            num_return_sequences=draw(st.none() | st.integers(1, groups)),
            early_stopping=early,
        )
    patience = draw(st.sampled_from([0.5, 1.0, 2.0])) if early is True else 1.0
    widths = draw(st.lists(st.integers(1, width), max_size=4))
    widths += [width] if widths else []
    pool = Beam(width, early_stopping=early, patience=patience, widths=tuple(widths)).pool_size
    return Beam(
        width=width,
        widths=tuple(widths),
        sibling_penalty=draw(st.sampled_from([0.0, 0.5])),
        num_return_sequences=draw(st.one_of(st.none(), st.just(1), st.integers(1, pool))),
        length_penalty=draw(st.sampled_from([0.0, 1.0, 1.5, -1.0])),
        early_stopping=early,
        patience=patience,
    )


@st.composite
def beams(draw: st.DrawFn) -> DecodeRequest:
    strategy = draw(strategies())
    max_tokens = draw(st.integers(1, 40))
    what = request(
        "x",
        range(draw(st.integers(1, 9))),
        strategy,
        eos=draw(st.sampled_from([[], [1], [1, 2]])),
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, min(6, max_tokens))),
        stop_token_ids=draw(st.sampled_from([(), (9,)])),
        update_every=draw(st.integers(0, 3)),
        update_beams=draw(st.integers(0, 3)),
        repetition_penalty=draw(st.sampled_from([1.0, 1.2])),
    )
    stop = draw(st.lists(st.sampled_from(["A", "BC", "KL", "M", "D"]), max_size=3))
    automaton = StopAutomaton(stop, LETTERS) if stop else None
    return dataclasses.replace(what, stream=True, automaton=automaton)


@settings(max_examples=120)
@given(
    what=beams(),
    preempt=st.lists(st.integers(1, 20), max_size=2),
    cancel=st.one_of(st.none(), st.integers(1, 30)),
    mode=st.sampled_from(["recompute", "swap"]),
    sharpness=st.sampled_from([1.0, 4.0]),
)
def test_committed_is_final_and_as_long_as_it_can_be(
    what: DecodeRequest, preempt: list[int], cancel: int | None, mode: str, sharpness: float
) -> None:
    engine = toy_engine(preemption=mode)
    engine._runner.sharpness = sharpness
    engine.submit(what)
    listener = Listener(engine, what)
    for step in range(1, 200):
        if listener.last is not None:
            break
        if step in preempt:
            engine.scheduler.preempt(what.request_id)
        if step != cancel:
            listener.step()
            continue
        group = engine.scheduler._groups[what.request_id]
        for event in engine.cancel(what.request_id):
            listener.take(event, group)
        assert isinstance(listener.last, GroupFailed)
    assert isinstance(listener.last, (GroupFinished, GroupFailed))
    assert isinstance(listener.last, GroupFinished) or cancel is not None
    assert_idle(engine)


def test_groups_of_a_diverse_beam_commit_what_they_have_in_common() -> None:
    """Rows of different groups take the same tokens, from the first step on: without a penalty always."""
    engine = toy_engine()
    engine._runner.sharpness = 4.0
    what = request("x", [5, 6], DiverseBeam(4, 2, 0.0, num_return_sequences=1), max_tokens=90)
    what = dataclasses.replace(what, stream=True)
    engine.submit(what)
    listener = Listener(engine, what)
    while listener.last is None:
        listener.step()
    assert len(listener.committed) > 20


def test_beams_do_commit() -> None:
    """With hypotheses in the pool, and more than a block of history behind: what the property is about."""
    counts = []
    for eos in ([], [1, 2]):
        engine = toy_engine()
        engine._runner.sharpness = 4.0
        strategy = Beam(width=4, num_return_sequences=1, early_stopping="never")
        what = request("x", [5, 6], strategy, eos=eos, max_tokens=90)
        what = dataclasses.replace(what, stream=True)
        engine.submit(what)
        listener = Listener(engine, what)
        while listener.last is None:
            listener.step()
        counts.append(len(listener.committed))
    assert counts[0] > 70
    assert counts[1] > 0


@pytest.mark.parametrize(
    "strategy",
    [Beam(width=5, scorer=LengthNormalised()), DiverseBeam(6, 3), StochasticBeam(5, seed=3)],
    ids=["beam", "diverse", "stochastic"],
)
def test_streaming_changes_no_result(strategy: Any) -> None:
    what = request("x", [5, 6], strategy, eos=[1, 2], max_tokens=20)
    streamed = dataclasses.replace(renamed(what, "y"), stream=True)
    engine = toy_engine()
    engine.submit(streamed)
    listener = Listener(engine, streamed)
    while listener.last is None:
        listener.step()
    assert tokens(listener.last.candidates) == tokens(decode_alone(what))


@pytest.mark.parametrize(
    "strategy", [Greedy(), Sample(n=2, seed=1), Beam(width=3), Beam(width=1), DiverseBeam()], ids=str
)
def test_who_does_not_listen_to_a_beam_pays_nothing(strategy: Any) -> None:
    engine = toy_engine()
    what = request("x", [5, 6], strategy, max_tokens=5)
    for stream in (False, True):
        engine.submit(dataclasses.replace(what, request_id=str(stream), stream=stream))
    streams = [engine.scheduler._groups[str(stream)].beam_stream for stream in (False, True)]
    assert streams[0] is None
    assert (streams[1] is not None) == isinstance(strategy, (Beam, DiverseBeam))


def test_a_hypothesis_that_may_not_be_returned_holds_nothing_back() -> None:
    """Two rows, of which one ends: with one returned, the worse of two hypotheses does not count."""
    history, common = History(), CommonPrefix()
    zeros = np.zeros(2, np.float32)
    history.append(np.array([0, 0], np.int32), np.array([4, 5]), zeros, zeros)
    assert not common.step(history, np.array([0, 0], np.int32), NO_HYPOTHESES, NO_HYPOTHESES)
    pool = Hypotheses(2)
    ended = RandomBeam(0, 2, 2, 1, 0.0, 1.0)
    ended.history, ended.rows = history, [(4,), (5,)]
    first = ended._finish([(1, 7)])
    pool.add(first)
    history.append(np.array([0], np.int32), np.array([6]), zeros[:1], zeros[:1])
    assert not common.step(history, np.array([0], np.int32), first, pool.best(1))
    assert common.count == 0
    ended.history, ended.rows = history, [(4, 6)]
    better = dataclasses.replace(ended._finish([(0, 8)]), score=first.score + 1)
    pool.add(better)
    history.append(np.array([0], np.int32), np.array([9]), zeros[:1], zeros[:1])
    assert common.step(history, np.array([0], np.int32), better, pool.best(1))
    assert common.count == 2  # (4, 6) of the live (4, 6, 9) and the kept (4, 6, 8)
