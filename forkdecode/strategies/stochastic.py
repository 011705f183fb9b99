"""Stochastic beam search: sequences sampled without replacement, the best by perturbed log-probability."""

from __future__ import annotations

import numpy as np

from forkdecode import lineage
from forkdecode.errors import NoLegalTokenError
from forkdecode.step import I64, GumbelTopK, SelectionResult
from forkdecode.strategies.hypotheses import F64, LIVE, NO_HYPOTHESES, U8, Hypotheses, HypothesisBatch
from forkdecode.strategies.policy import Decision, GroupRows, StopHits
from forkdecode.types import StochasticBeam


class StochasticBeamPolicy:
    """The top W of all sequences by perturbed log-probability (Kool et al. 2019, algorithm 1).

    Every prefix has a perturbed log-probability G, and the best of its continuations has the same. So at
    each step the W highest G among finished sequences and continuations of the live rows stay, of equals
    the finished first; what is not among them has no sequence below it that belongs to the result. The
    search ends when all of these W are finished, or nothing is left to go on with.

    A continuation's noise hangs on its row's lineage, which descends with each token: it depends on the
    path and the seed alone. Rows' log-probabilities in float64 and what they are worth are columns of the
    policy's own, in the order of the rows; what is reported are sequential float32 sums, as everywhere.
    """

    streams_candidates = False
    forced = None

    def __init__(self, strategy: StochasticBeam) -> None:
        self._strategy = strategy
        self._numbers = np.arange(strategy.width, dtype=np.int32)
        self._logprob: F64 = np.zeros(1, np.float64)
        self._gumbel: F64 = np.full(1, np.inf)
        self._done = False
        self.max_rows = self.max_results = strategy.width
        self.hypotheses = Hypotheses(strategy.width)

    @property
    def exhausted(self) -> bool:
        """Whether there were fewer sequences than W."""
        return self._done and len(self.hypotheses) < self._strategy.width

    def choose(self, rows: GroupRows) -> GumbelTopK:
        """W continuations: no more can stay, whatever of them ends."""
        s = self._strategy
        return GumbelTopK(
            k=s.width,
            logprob=self._logprob,
            gumbel=self._gumbel,
            lineage=rows.lineage,
            position=rows.position,
            temperature=s.temperature,
            top_k=s.top_k,
            top_p=s.top_p,
            min_p=s.min_p,
            typical_p=s.typical_p,
        )

    def decide(self, result: SelectionResult, rows: GroupRows, stop: StopHits) -> Decision:
        """The next rows, and what has finished and may be returned.

        Raises NoLegalTokenError when nothing is legal any more and nothing has finished.
        """
        if not len(result.tokens) and not len(self.hypotheses):
            raise NoLegalTokenError(f"no legal token at generated token {rows.generated + 1}")
        staying = self._staying(result)
        ends = stop.reason[:staying] != LIVE
        picks, ended = np.flatnonzero(~ends), np.flatnonzero(ends)
        parents, tokens = result.rows[picks], result.tokens[picks]
        finished = NO_HYPOTHESES
        if len(ended):
            finished = self.hypotheses.add(self._finish(result, rows, stop.reason, ended))
        self._logprob = self._logprob[parents] + result.selection_logprobs[picks].astype(np.float64)
        self._gumbel = result.scores[picks].astype(np.float64)
        self._done = not len(picks)
        return Decision(
            picks=picks,
            parents=parents,
            tokens=tokens,
            lineage=lineage.child(rows.lineage[parents], tokens),
            candidate=self._numbers[: len(picks)],
            cumulative=rows.cumulative[parents] + result.logprobs[picks],
            selection=rows.selection[parents] + result.selection_logprobs[picks],
            finished=finished,
            done=self._done,
        )

    def goes_on(self, result: SelectionResult, rows: GroupRows) -> int:
        """Always asked alone."""
        return 0

    def live_score(self, rows: GroupRows) -> F64:
        """[R] Perturbed log-probabilities: what a sequence that ends here, or the best below it, scores."""
        return self._gumbel

    def results(self) -> HypothesisBatch:
        """The finished ones of the best W, best first."""
        return self.hypotheses.best()

    def _staying(self, result: SelectionResult) -> int:
        """How many continuations are among the best W; finished hypotheses that no longer are go."""
        finished = self.hypotheses.best().score
        both = np.concatenate([finished, result.scores.astype(np.float64)])
        best = np.argsort(-both, kind="stable")[: self._strategy.width]
        staying = int((best >= len(finished)).sum())
        self.hypotheses.keep(len(best) - staying)
        return staying

    def _finish(self, result: SelectionResult, rows: GroupRows, reason: U8, ended: I64) -> HypothesisBatch:
        parents, logprob = result.rows[ended], result.logprobs[ended]
        return HypothesisBatch(
            generated=np.full(len(ended), rows.generated + 1, np.int32),
            row=parents,
            pick=ended,
            token=result.tokens[ended],
            logprob=logprob,
            selection_logprob=result.selection_logprobs[ended],
            cumulative=rows.cumulative[parents] + logprob,
            selection=rows.selection[parents] + result.selection_logprobs[ended],
            score=result.scores[ended].astype(np.float64),
            reason=reason[ended],
            candidate=ended.astype(np.int32),
        )
