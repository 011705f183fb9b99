"""Beam search: the W best continuations of a group's rows at each step, as transformers defines it."""

from __future__ import annotations

import numpy as np

from forkdecode.errors import NoLegalTokenError
from forkdecode.step import I64, Bools, RowTopK, SelectionResult, TopK
from forkdecode.strategies.beam_step import Ending, best_first, finish, go_on, split
from forkdecode.strategies.hypotheses import F64, LIVE, NO_HYPOTHESES, Hypotheses, HypothesisBatch
from forkdecode.strategies.policy import Decision, GroupRows, StopHits
from forkdecode.strategies.scorers import make_scores
from forkdecode.types import Beam


class BeamPolicy:
    """The beam step, W being the width of this step. Of all candidates, ordered by score, then row, then
    token:

    - one that ends here becomes a hypothesis if its rank is below W, else it is dropped;
    - the first W that don't end are the next rows (fewer, if there are fewer).

    The pool keeps the best ceil(patience * W) hypotheses, W being the last step's. Once it is full the
    search ends as `early_stopping` says: see Ending.

    With a sibling penalty the order is by score less penalty * rank among the continuations of the same
    row, then row, then rank (float64). A row's own order stays as it is.

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
        self._num_stops = len(stop_ids)
        self._ends_unforeseen = ends_unforeseen
        self._ran_dry = False
        self._scores = make_scores(beam)
        self._ending = Ending(beam.early_stopping, self._scores, max_tokens)
        self.max_rows = beam.width
        self.max_results = beam.num_return_sequences or beam.pool_size
        self.hypotheses = Hypotheses(beam.pool_size)

    def choose(self, rows: GroupRows) -> TopK | RowTopK:
        """As many candidates as leave W live ones whatever ends by an id: all beyond change nothing.

        Of R rows at most R * stops end by an id, so K = max(2 W, W + stops * max(R, W)) do: that is the
        max(2, 1 + stops) * W of a beam of constant width. Of one row W + stops do. What ends by a stop
        string is told by the finishing mask, what a constraint ends is known where tokens are selected.
        """
        beam = self._beam
        width = beam.width_at(rows.generated) if beam.widths else beam.width
        # In the last step every candidate ends: no larger k would leave more alive.
        last = rows.generated + 1 >= self._max_tokens
        finishing = None if last else rows.finishing
        counts = finishing is not None or (self._ends_unforeseen and not last)
        live, ids = 0 if last else width, self._stop_ids if counts else None
        if beam.sibling_penalty:
            return RowTopK(width + self._num_stops, rows.selection, live, finishing, ids)
        k = max(2 * width, width + self._num_stops * max(width, rows.num_rows))
        return TopK(k, rows.selection, live, finishing, ids)

    def decide(self, result: SelectionResult, rows: GroupRows, stop: StopHits) -> Decision:
        """The next W rows and the hypotheses that entered the pool.

        Raises NoLegalTokenError when nothing is legal any more and nothing has finished.
        """
        if not len(result.tokens) and not len(self.hypotheses):
            raise NoLegalTokenError(f"no legal token at generated token {rows.generated + 1}")
        width, generated = self._beam.width_at(rows.generated), rows.generated + 1
        ends = stop.reason != LIVE
        picks, ended = split(self._order(result, ends, width), ends, width)
        finished = NO_HYPOTHESES
        if len(ended):
            finished = self.hypotheses.add(finish(result, rows, stop.reason, ended, self._scores))
        done = not len(picks) or self._ending.reached(self.hypotheses, result.scores[picks], generated)
        if done:
            # At max_tokens all candidates end, so that none is left says nothing; too few of them do.
            too_few = len(ends) < width or generated < self._max_tokens
            self._ran_dry = not len(picks) and too_few
            picks = picks[:0]
        return go_on(picks, result, rows, finished, done=done)

    def goes_on(self, result: SelectionResult, rows: GroupRows) -> int:
        """The first W, while the search is not over."""
        beam = self._beam
        if beam.sibling_penalty:
            return 0
        width = beam.width_at(rows.generated) if beam.widths else beam.width
        count = min(len(result.tokens), width)
        if count and self.hypotheses.full:
            over = self._ending.reached(self.hypotheses, result.scores[:count], rows.generated + 1)
            return 0 if over else count
        return count

    @property
    def exhausted(self) -> bool:
        """Whether fewer hypotheses finished than are wanted, with nothing legal left."""
        return self._ran_dry and len(self.hypotheses) < self.max_results

    def live_score(self, rows: GroupRows) -> F64:
        """[R] What a hypothesis of the same sum and length scores."""
        return self._scores.of(rows.selection, max(rows.generated, 1))

    def results(self) -> HypothesisBatch:
        """The num_return_sequences best hypotheses, best first."""
        return self.hypotheses.best(self._beam.num_return_sequences)

    def _order(self, result: SelectionResult, ends: Bools, width: int) -> I64 | None:
        """Candidates from the best down; None where they come like that."""
        penalty = self._beam.sibling_penalty
        if not penalty:
            return None
        # Candidates come row by row, best first: its place less that of its row's first is its rank.
        first = np.searchsorted(result.rows, np.arange(int(result.rows[-1]) + 1 if len(result.rows) else 0))
        rank = np.arange(len(result.rows)) - first[result.rows]
        return best_first(result.scores.astype(np.float64) - penalty * rank, ends, width)
