"""Best-of: ranking, early exit, scorers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from forkdecode.results import Candidate
from forkdecode.strategies.factory import make_policy
from forkdecode.strategies.hypotheses import CANCELLED
from forkdecode.types import BestOf, Options, Sample
from tests.strategies.toy import Run, markov, run

MODEL = markov(2, 10, eos=[1, 4])


def decode(strategy: BestOf | Sample, max_tokens: int = 15) -> Run:
    policy = make_policy(strategy, Options(max_tokens=max_tokens), np.array(MODEL.eos))
    return run(policy, MODEL, max_tokens, seed=11)


@pytest.mark.parametrize("rank_by", ["cumulative_logprob", "mean_logprob"])
def test_ranks_the_samples_that_sampling_gives(rank_by: str) -> None:
    samples = decode(Sample(n=9))
    assert samples.batch is not None
    scores = samples.batch.cumulative.copy()
    if rank_by == "mean_logprob":
        scores /= samples.batch.generated
    order = np.argsort(-scores, kind="stable")[:4]
    best = decode(BestOf(best_of=9, n=4, rank_by=rank_by))
    assert [r[0] for r in best.results] == [samples.results[i][0] for i in order]
    assert [r[1] for r in best.results] == scores[order].tolist()
    assert best.batch is not None
    assert best.batch.candidate.tolist() == order.tolist()


@pytest.mark.parametrize("enough", [1, 3, 9])
def test_first_finished_cancels_the_rest_and_ranks_what_ended(enough: int) -> None:
    everything = decode(BestOf(best_of=9, n=9))
    out = decode(BestOf(best_of=9, n=1, first_finished=enough))
    last = next(
        i for i in range(len(everything.finished)) if sum(map(len, everything.finished[: i + 1])) >= enough
    )
    assert len(out.choices) == last + 1
    ended = {c for f in everything.finished[: last + 1] for c in f.candidate.tolist()}
    best = next(r for r, c in zip(everything.results, _candidates(everything), strict=True) if c in ended)
    assert out.results == [best]
    cancelled = out.finished[-1].candidate[out.finished[-1].reason == CANCELLED]
    assert set(cancelled.tolist()) == set(range(9)) - ended


def _candidates(out: Run) -> list[int]:
    assert out.batch is not None
    return [int(c) for c in out.batch.candidate]


def test_a_scorer_gets_every_finished_sample_in_order() -> None:
    def scorer(candidates: Sequence[Candidate]) -> list[float]:
        raise AssertionError("never called here")

    out = decode(BestOf(best_of=6, n=2, rank_by=scorer))
    assert _candidates(out) == list(range(6))
    assert [r[0] for r in out.results] == [r[0] for r in decode(Sample(n=6)).results]


def test_live_score_is_what_ranks() -> None:
    for rank_by, expected in (("cumulative_logprob", -6.0), ("mean_logprob", -2.0)):
        policy = make_policy(BestOf(best_of=2, rank_by=rank_by), Options(), np.array([1]))
        rows = decode(Sample(n=1)).rows[0]
        rows = type(rows)(3, 4, rows.lineage, rows.candidate, np.array([-6.0]), rows.selection, rows.root)
        assert policy.live_score(rows).tolist() == [expected]
