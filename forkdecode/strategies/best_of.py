"""Best of n: sample many, return the best."""

from __future__ import annotations

import numpy as np

from forkdecode.step import I64, Draw, SelectionResult
from forkdecode.strategies.draws import Draws, Outcome
from forkdecode.strategies.hypotheses import (
    CANCELLED,
    F64,
    Hypotheses,
    HypothesisBatch,
)
from forkdecode.strategies.policy import Decision, GroupRows, StopHits
from forkdecode.strategies.scoring import mean_logprob
from forkdecode.types import BestOf


class BestOfPolicy:
    """best_of samples, ranked by their cumulative or mean log-probability; ties to the one that
    finished in the earlier step, then to the lower sample.

    With first_finished = k, the step in which the k-th sample ends is the last: all that ended by
    then are ranked, the others are reported in `Decision.finished` as cancelled and not ranked.
    With a caller's scorer, and with "none", results() are all finished samples in their order, for
    the caller to score and rank; their score is then the cumulative log-probability until it has.
    A sample that nothing legal follows leaves, and is not ranked.
    """

    streams_candidates = True
    forced = None

    def __init__(self, strategy: BestOf) -> None:
        self._strategy = strategy
        self._draws = Draws(strategy)
        self._by_mean = strategy.rank_by == "mean_logprob"
        self._enough = strategy.first_finished or strategy.best_of
        self._ranks = not callable(strategy.rank_by) and strategy.rank_by != "none"
        self.max_rows = self._draws.count
        self.max_results = strategy.n if self._ranks else self.max_rows
        self._wanted = strategy.n if self._ranks else self._enough
        self._any_stuck = False
        self.hypotheses = Hypotheses(self.max_rows)

    @property
    def exhausted(self) -> bool:
        """Whether too few could finish."""
        return self._any_stuck and len(self.hypotheses) < self._wanted

    def choose(self, rows: GroupRows) -> Draw:
        """One draw per live sample."""
        return self._draws.choose(rows)

    def decide(self, result: SelectionResult, rows: GroupRows, stop: StopHits) -> Decision:
        """Samples that end leave the group; once enough have, the others are cancelled."""
        outcome = self._draws.outcome(result, rows, stop)
        ended, live = outcome.ended(), outcome.live()
        self._any_stuck |= len(outcome.stuck) > 0
        batch = outcome.hypotheses(ended, self._scores(outcome, ended), outcome.reason[ended])
        finished = self.hypotheses.add(batch)
        if len(self.hypotheses) < self._enough:
            return outcome.decision(live, finished)
        reason = np.full(len(live), CANCELLED, np.uint8)
        cancelled = outcome.hypotheses(live, self._scores(outcome, live), reason)
        return outcome.decision(live[:0], finished.concat(cancelled))

    def goes_on(self, result: SelectionResult, rows: GroupRows) -> int:
        """All, once they have forked."""
        return self._draws.goes_on(result, rows)

    def live_score(self, rows: GroupRows) -> F64:
        """[R] What the rows would be ranked by if they ended now."""
        return mean_logprob(rows.cumulative, max(rows.generated, 1)) if self._by_mean else rows.cumulative

    def results(self) -> HypothesisBatch:
        """The n best, best first; all in sample order where the caller is to rank them."""
        if self._ranks:
            return self.hypotheses.best(self._strategy.n)
        finished = self.hypotheses.best()
        return finished[np.argsort(finished.candidate, kind="stable")]

    def _scores(self, outcome: Outcome, ended: I64) -> F64:
        cumulative = outcome.cumulative[ended]
        return mean_logprob(cumulative, outcome.generated) if self._by_mean else cumulative
