"""Greedy decoding and parallel sampling."""

from __future__ import annotations

import numpy as np

from forkdecode.step import Draw, SelectionResult
from forkdecode.strategies.draws import Draws
from forkdecode.strategies.hypotheses import F64, Hypotheses, HypothesisBatch
from forkdecode.strategies.policy import Decision, GroupRows, StopHits
from forkdecode.types import Greedy, Sample


class SamplePolicy:
    """n independent samples. One that ends leaves, the rest go on; done when none is left. One that nothing
    legal follows leaves too, and is no result.

    Greedy is one sample at temperature 0. Nothing is ranked: results() are in the order of the
    samples, and a score is the cumulative log-probability.
    """

    streams_candidates = True
    forced = None

    def __init__(self, strategy: Greedy | Sample) -> None:
        self._draws = Draws(strategy)
        self.max_rows = self.max_results = self._draws.count
        self.exhausted = False
        self.hypotheses = Hypotheses(self.max_rows)

    def choose(self, rows: GroupRows) -> Draw:
        """One draw per live sample."""
        return self._draws.choose(rows)

    def decide(self, result: SelectionResult, rows: GroupRows, stop: StopHits) -> Decision:
        """Samples that end leave the group."""
        outcome = self._draws.outcome(result, rows, stop)
        ended = outcome.ended()
        self.exhausted |= len(outcome.stuck) > 0
        batch = outcome.hypotheses(ended, outcome.cumulative[ended], outcome.reason[ended])
        return outcome.decision(outcome.live(), self.hypotheses.add(batch))

    def goes_on(self, result: SelectionResult, rows: GroupRows) -> int:
        """All, once they have forked."""
        return self._draws.goes_on(result, rows)

    def live_score(self, rows: GroupRows) -> F64:
        """[R] The cumulative log-probability."""
        return rows.cumulative

    def results(self) -> HypothesisBatch:
        """Every sample that has finished, in the order of the samples."""
        finished = self.hypotheses.best()
        return finished[np.argsort(finished.candidate, kind="stable")]
