"""Beam search: the W best continuations of a group's rows at each step, as transformers defines it."""

from __future__ import annotations

import numpy as np

from forkdecode.errors import GroupFailedError
from forkdecode.step import F32, I64, SelectionResult, TopK
from forkdecode.strategies.hypotheses import F64, LIVE, NO_HYPOTHESES, U8, Hypotheses, HypothesisBatch
from forkdecode.strategies.policy import Decision, GroupRows, StopHits
from forkdecode.strategies.scoring import beam_score
from forkdecode.types import Beam


class BeamPolicy:
    """The beam step. Of the K best candidates, ordered by score, then row, then token:

    - one that ends here becomes a hypothesis if its rank is below W, else it is dropped;
    - the first W that don't end are the next rows (fewer, if there are fewer).

    The pool keeps the best ceil(patience * W) hypotheses. Once it is full the search ends as
    `early_stopping` says: True at once, False when the best live row, scored at its present length,
    does not beat the worst kept, "never" when it could not even at the length that suits it best.

    Beams draw nothing, so a row's lineage stays its parent's; that of a row's own path is
    lineage.descend(root, its tokens), for whoever draws from a beam row later.
    """

    streams_candidates = False
    forced = None

    def __init__(self, beam: Beam, max_tokens: int, stop_ids: I64, *, ends_unforeseen: bool = False) -> None:
        """ends_unforeseen: whether a constraint may end candidates by any token."""
        self._beam = beam
        self._max_tokens = max_tokens
        self._stop_ids = stop_ids if len(stop_ids) else None
        self._k = max(2, 1 + len(stop_ids)) * beam.width
        self._ends_unforeseen = ends_unforeseen
        self._ran_dry = False
        self._numbers = np.arange(beam.width, dtype=np.int32)
        self.max_rows = beam.width
        self.hypotheses = Hypotheses(beam.pool_size)

    def choose(self, rows: GroupRows) -> TopK:
        """K = max(2, 1 + number of stop ids) * W leaves W live candidates whatever ends by an id;
        what ends by a stop string is told by the finishing mask, what a constraint ends is known where
        tokens are selected."""
        # In the last step every candidate ends: no larger k would leave more alive.
        last = rows.generated + 1 >= self._max_tokens
        finishing = None if last else rows.finishing
        counts = finishing is not None or (self._ends_unforeseen and not last)
        return TopK(
            k=self._k,
            base=rows.selection,
            live=0 if last else self._beam.width,
            finishing=finishing,
            finishing_ids=self._stop_ids if counts else None,
        )

    def decide(self, result: SelectionResult, rows: GroupRows, stop: StopHits) -> Decision:
        """The next W rows and the hypotheses that entered the pool.

        Raises GroupFailedError when nothing is legal any more and nothing has finished.
        """
        if not len(result.tokens) and not len(self.hypotheses):
            raise GroupFailedError(f"no legal token at generated token {rows.generated + 1}")
        ends = stop.reason != LIVE
        picks = (~ends).nonzero()[0][: self._beam.width]
        ended = ends[: self._beam.width].nonzero()[0]
        finished = NO_HYPOTHESES
        if len(ended):
            finished = self.hypotheses.add(self._finish(result, rows, stop.reason, ended))
        done = not len(picks) or self._finished(result.scores[picks[0]], rows.generated + 1)
        if done:
            # At max_tokens all candidates end, so that none is left says nothing; too few of them do.
            too_few = len(ends) < self._beam.width or rows.generated + 1 < self._max_tokens
            self._ran_dry = not len(picks) and too_few
            picks = picks[:0]
        parents = result.rows[picks]
        return Decision(
            picks=picks,
            parents=parents,
            tokens=result.tokens[picks],
            lineage=rows.lineage[parents],
            candidate=self._numbers[: len(picks)],
            cumulative=rows.cumulative[parents] + result.logprobs[picks],
            selection=result.scores[picks],
            finished=finished,
            done=done,
        )

    @property
    def exhausted(self) -> bool:
        """Whether fewer hypotheses finished than are wanted, with nothing legal left."""
        wanted = self._beam.num_return_sequences or self._beam.pool_size
        return self._ran_dry and len(self.hypotheses) < wanted

    def live_score(self, rows: GroupRows) -> F64:
        """[R] selection / generated ** length_penalty."""
        return self._score(rows.selection, max(rows.generated, 1))

    def results(self) -> HypothesisBatch:
        """The num_return_sequences best hypotheses, best first."""
        return self.hypotheses.best(self._beam.num_return_sequences)

    def _score(self, selection: F32, generated: int) -> F64:
        return beam_score(selection, generated, self._beam.length_penalty).astype(np.float64)

    def _finish(self, result: SelectionResult, rows: GroupRows, reason: U8, ended: I64) -> HypothesisBatch:
        parents, generated = result.rows[ended], rows.generated + 1
        logprob, selection = result.logprobs[ended], result.scores[ended]
        return HypothesisBatch(
            generated=np.full(len(ended), generated, np.int32),
            row=parents,
            pick=ended,
            token=result.tokens[ended],
            logprob=logprob,
            selection_logprob=result.selection_logprobs[ended],
            cumulative=rows.cumulative[parents] + logprob,
            selection=selection,
            score=self._score(selection, generated),
            reason=reason[ended],
            candidate=ended.astype(np.int32),
        )

    def _finished(self, best_live: np.float32, generated: int) -> bool:
        """Whether no live row can still matter, by the rule of `early_stopping`."""
        if not self.hypotheses.full:
            return False
        if self._beam.early_stopping is True:
            return True
        penalty = self._beam.length_penalty
        if self._beam.early_stopping == "never" and penalty > 0.0:
            generated = self._max_tokens
        best = beam_score(np.array([best_live], np.float32), generated, penalty)[0]
        return not float(best) > self.hypotheses.worst
