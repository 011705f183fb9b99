"""Sampling: lineages, independence, leaving."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode import lineage
from forkdecode.step import Draw
from forkdecode.strategies.factory import make_policy
from forkdecode.strategies.hypotheses import EOS, LENGTH, STOP
from forkdecode.types import Beam, BestOf, Greedy, Options, Sample
from tests.strategies.toy import Run, markov, run

PAIRS = [(a, b) for a in range(12) for b in (2, 5)]


def sample(
    n: int, *, seed: int = 3, max_tokens: int = 12, vocab: int = 12, eos: tuple[int, ...] = (1, 4)
) -> Run:
    policy = make_policy(Sample(n=n), Options(max_tokens=max_tokens), np.array(eos, np.int64))
    return run(policy, markov(1, vocab, eos=eos, pairs=PAIRS), max_tokens, seed=seed)


def test_sample_i_draws_by_child_i_of_the_root_for_good() -> None:
    out = sample(6)
    expected = lineage.child(lineage.root(3), np.arange(6))
    for rows, choice in zip(out.rows, out.choices, strict=True):
        assert isinstance(choice, Draw)
        assert choice.position == 1 + rows.generated
        if rows.generated == 0:
            assert choice.source.tolist() == [0] * 6
            assert (choice.lineage == expected).all()
        else:
            assert choice.source.tolist() == list(range(rows.num_rows))
            assert (choice.lineage == expected[rows.candidate]).all()


@given(st.integers(0, 2**64 - 1), st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_a_sample_does_not_depend_on_how_many_there_are(seed: int, few: int, more: int) -> None:
    small, large = sample(few, seed=seed), sample(few + more, seed=seed)
    assert large.results[:few] == small.results


def test_samples_differ_and_repeat() -> None:
    paths = [r[0] for r in sample(16).results]
    assert len(set(paths)) > 8
    assert paths == [r[0] for r in sample(16).results]
    assert paths != [r[0] for r in sample(16, seed=4).results]


def test_rows_that_end_leave_and_the_rest_go_on() -> None:
    out = sample(32, max_tokens=4)
    assert {r[2] for r in out.results} == {EOS, STOP, LENGTH}
    live = 32
    for rows, finished in zip(out.rows[1:], out.finished, strict=False):
        live -= len(finished)
        assert rows.num_rows == live
        assert not set(rows.candidate.tolist()) & set(finished.candidate.tolist())
    assert sum(map(len, out.finished)) == 32
    assert out.batch is not None
    assert out.batch.candidate.tolist() == list(range(32))


def test_sums_are_those_of_the_path() -> None:
    out = sample(8)
    assert out.batch is not None
    for path, hypothesis in zip(out.paths, range(8), strict=True):
        raw = path.logprobs.astype(np.float64).sum()
        assert out.batch.cumulative[hypothesis] == pytest.approx(raw, abs=1e-9)
        assert out.batch.score[hypothesis] == out.batch.cumulative[hypothesis]
        assert out.batch.selection[hypothesis] == np.add.accumulate(path.selection_logprobs)[-1]


def test_greedy_is_one_argmax_row() -> None:
    model = markov(5, 9, eos=[2])
    policy = make_policy(Greedy(), Options(max_tokens=7), np.array([2]))
    out = run(policy, model, 7)
    last = 0
    for token in out.results[0][0]:
        assert token == model.logprobs[last].argmax()
        last = token
    assert isinstance(out.choices[0], Draw)
    assert out.choices[0].temperature == 0.0
    assert len(out.results) == 1


def test_settings_reach_the_draw() -> None:
    strategy = Sample(n=2, temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, typical_p=0.8)
    out = run(make_policy(strategy, Options(max_tokens=1), np.array([])), markov(0, 5), 1)
    choice = out.choices[0]
    assert isinstance(choice, Draw)
    found = (choice.temperature, choice.top_k, choice.top_p, choice.min_p, choice.typical_p)
    assert found == (0.7, 5, 0.9, 0.1, 0.8)


def test_what_is_admitted_and_streamed() -> None:
    expected = ((Greedy(), 1, True), (Sample(n=5), 5, True), (BestOf(best_of=7), 7, True))
    for strategy, rows, streams in (*expected, (Beam(width=6), 6, False), (Beam(width=1), 1, False)):
        policy = make_policy(strategy, Options(), np.array([1]))
        assert (policy.max_rows, policy.streams_candidates) == (rows, streams)
