"""How likely given continuations of a prompt are: every row's tokens are known beforehand."""

from __future__ import annotations

import numpy as np

from forkdecode.step import Gather, SelectionResult
from forkdecode.strategies.draws import Outcome
from forkdecode.strategies.forced import ForcedTokens
from forkdecode.strategies.hypotheses import F64, LENGTH, LIVE, Hypotheses, HypothesisBatch
from forkdecode.strategies.policy import Decision, GroupRows, StopHits
from forkdecode.types import Continuations


class ScorePolicy:
    """One row a continuation, forked from the prompt's row. One that is through leaves; EOS and stop
    tokens end none. results() are in the order of the continuations; a score is the cumulative
    log-probability."""

    exhausted = False
    streams_candidates = True

    def __init__(self, continuations: Continuations) -> None:
        self.forced = ForcedTokens(continuations.token_ids)
        self.max_rows = self.max_results = len(self.forced)
        self.hypotheses = Hypotheses(self.max_rows)
        self._all = np.arange(self.max_rows, dtype=np.int32)

    def choose(self, rows: GroupRows) -> Gather:
        """The log-probability of each row's next token; at first of all continuations' first ones."""
        if rows.generated == 0:
            return Gather(np.zeros_like(self._all), self.forced.following(self._all, 0, 1)[:, 0])
        tokens = self.forced.following(rows.candidate, rows.generated, 1)[:, 0]
        return Gather(self._all[: rows.num_rows], tokens)

    def decide(self, result: SelectionResult, rows: GroupRows, stop: StopHits) -> Decision:
        """Rows go on until their continuation ends."""
        candidate = rows.candidate if rows.generated else self._all
        generated, parents = rows.generated + 1, result.rows
        outcome = Outcome(
            generated=generated,
            parents=parents,
            tokens=result.tokens,
            logprobs=result.logprobs,
            selection_logprobs=result.selection_logprobs,
            lineage=rows.lineage[parents],
            candidate=candidate,
            cumulative=rows.cumulative[parents] + result.logprobs,
            selection=rows.selection[parents] + result.selection_logprobs,
            reason=np.where(self.forced.lengths[candidate] == generated, LENGTH, LIVE).astype(np.uint8),
        )
        ended = outcome.ended()
        batch = outcome.hypotheses(ended, outcome.cumulative[ended], outcome.reason[ended])
        return outcome.decision(outcome.live(), self.hypotheses.add(batch))

    def goes_on(self, result: SelectionResult, rows: GroupRows) -> int:
        """Always asked alone."""
        return 0

    def live_score(self, rows: GroupRows) -> F64:
        """[R] The cumulative log-probability of what has been read."""
        return rows.cumulative

    def results(self) -> HypothesisBatch:
        """Every continuation, in the order they were given."""
        finished = self.hypotheses.best()
        return finished[np.argsort(finished.candidate, kind="stable")]
