"""A beam of width 1, which is greedy decoding."""

from __future__ import annotations

import numpy as np

from forkdecode.step import Draw, SelectionResult
from forkdecode.strategies.draws import Draws
from forkdecode.strategies.hypotheses import F64, Hypotheses, HypothesisBatch
from forkdecode.strategies.policy import Decision, GroupRows, StopHits
from forkdecode.strategies.scorers import make_scores
from forkdecode.types import Beam, Greedy


class SingleBeamPolicy:
    """Greedy decoding with a beam's score.

    transformers' `generate` with num_beams=1 is greedy search: processors act on logits, not on
    log_softmax, and the first end is the end whatever `early_stopping` says. So is this.
    """

    exhausted = False
    streams_candidates = False
    forced = None
    max_rows = 1
    max_results = 1

    def __init__(self, beam: Beam) -> None:
        self._draws = Draws(Greedy())
        self._scores = make_scores(beam)
        self.hypotheses = Hypotheses(1)

    def choose(self, rows: GroupRows) -> Draw:
        """The most likely token."""
        return self._draws.choose(rows)

    def decide(self, result: SelectionResult, rows: GroupRows, stop: StopHits) -> Decision:
        """The row goes on until it ends."""
        outcome = self._draws.outcome(result, rows, stop)
        ended = outcome.ended()
        score = np.empty(0, np.float64)
        if len(ended):
            score = self._scores.of(outcome.selection[ended], outcome.generated)
        batch = outcome.hypotheses(ended, score, outcome.reason[ended])
        return outcome.decision(outcome.live(), self.hypotheses.add(batch))

    def goes_on(self, result: SelectionResult, rows: GroupRows) -> int:
        """All, once they have forked."""
        return self._draws.goes_on(result, rows)

    def live_score(self, rows: GroupRows) -> F64:
        """[R] What a hypothesis of the same sum and length scores."""
        return self._scores.of(rows.selection, max(rows.generated, 1))

    def results(self) -> HypothesisBatch:
        """The one hypothesis."""
        return self.hypotheses.best()
