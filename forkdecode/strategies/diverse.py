"""Diverse beam search: groups of beams that take turns and avoid what those before them have just taken."""

from __future__ import annotations

import itertools

import numpy as np

from forkdecode.errors import NoLegalTokenError
from forkdecode.step import I64, RowTopK, SelectionResult
from forkdecode.strategies.beam_step import Ending, best_first, finish, go_on, split
from forkdecode.strategies.hypotheses import F64, LIVE, NO_HYPOTHESES, Hypotheses, HypothesisBatch
from forkdecode.strategies.policy import Decision, GroupRows, StopHits
from forkdecode.strategies.pools import HypothesisPools
from forkdecode.strategies.scorers import make_scores
from forkdecode.types import DiverseBeam


class DiverseBeamPolicy:
    """Algorithm 1 of Vijayakumar et al. 2016 with Hamming diversity: G groups of W' = W / G beams.

    At each step the groups choose in turn. A group's candidates are ordered by score - penalty * n, n
    being how many beams of the groups before it have taken the same token in this step, then by row,
    then by score and token (float64). Then it is a beam step of width W' (see BeamPolicy), with the group's
    own pool of W' hypotheses. A beam has taken a token that it goes on with, or ends with as one of the
    group's first W'. A group that ends, by early_stopping or because it has no rows left, takes no more.

    Each row's first K candidates decide all of this. Let t be a token of a row that is not listed, so that
    K better ones of that row are. At most P tokens are penalised, and a token that is not stays ahead of
    t, for what t scores only falls. With K - P >= W' there are W' before t, so that t does not end as one
    of the first W'; and if as many of those go on, t is not taken. By ids alone at most n_stop of a row's
    tokens end, and P of the others is W - W' at most, as each group goes on with W' at most: K = W + n_stop.
    What else may end (stop strings, items of a catalogue) depends on the row, so that what one group has
    ended with may go on in another: P is up to 2 (W - W'), K = 2 W - W' + n_stop, and selection is asked
    for 2 W - W' that go on in each row, where there are so many.
    """

    streams_candidates = False
    forced = None

    def __init__(
        self, strategy: DiverseBeam, max_tokens: int, stop_ids: I64, *, ends_unforeseen: bool = False
    ) -> None:
        """ends_unforeseen: whether a constraint may end candidates by any token."""
        self._strategy = strategy
        self._width = strategy.width // strategy.groups
        self._max_tokens = max_tokens
        self._stop_ids = stop_ids if len(stop_ids) else None
        self._num_stops = len(stop_ids)
        self._ends_unforeseen = ends_unforeseen
        self._ran_dry = False
        self._scores = make_scores(strategy)
        self._ending = Ending(strategy.early_stopping, self._scores, max_tokens)
        self._sizes: I64 | None = None
        """[G] How many rows each group has; None while all start from the prompt's."""
        self.max_rows = strategy.width
        self.max_results = strategy.num_return_sequences or strategy.pool_size
        self.hypotheses = HypothesisPools(self._width)

    def choose(self, rows: GroupRows) -> RowTopK:
        """The first K of each row."""
        # In the last step every candidate ends: no larger k would leave more alive.
        last = rows.generated + 1 >= self._max_tokens
        finishing = None if last else rows.finishing
        counts = finishing is not None or (self._ends_unforeseen and not last)
        width = self._strategy.width
        live = 2 * width - self._width if counts else width
        ids = self._stop_ids if counts else None
        return RowTopK(live + self._num_stops, rows.selection, 0 if last else live, finishing, ids)

    def decide(self, result: SelectionResult, rows: GroupRows, stop: StopHits) -> Decision:
        """The next rows, group by group, and the hypotheses that entered the pools.

        Raises NoLegalTokenError when nothing is legal any more and nothing has finished.
        """
        if not len(result.tokens) and not len(self.hypotheses):
            raise NoLegalTokenError(f"no legal token at generated token {rows.generated + 1}")
        taken = np.zeros(int(result.tokens.max(initial=0)) + 1, np.float64)
        picks, finished = [], []
        for group, (first, last) in enumerate(self._candidates(result)):
            own, ended = self._first_of_group(result, stop, first, last, taken)
            pool = self.hypotheses.of(group)
            if len(ended):
                finished.append(pool.add(finish(result, rows, stop.reason, ended, self._scores)))
            own = self._going_on(pool, own, result, rows.generated + 1)
            np.add.at(taken, result.tokens[own], 1.0)
            np.add.at(taken, result.tokens[ended], 1.0)
            picks.append(own)
        self._sizes = np.array([len(p) for p in picks], np.int64)
        chosen = np.concatenate(picks)
        entered = HypothesisBatch.joined([NO_HYPOTHESES, *finished])
        return go_on(chosen, result, rows, entered, done=not len(chosen))

    @property
    def exhausted(self) -> bool:
        """Whether fewer hypotheses finished than are wanted, a group having had nothing legal left."""
        return self._ran_dry and len(self.hypotheses) < self.max_results

    def goes_on(self, result: SelectionResult, rows: GroupRows) -> int:
        """Always asked alone."""
        return 0

    def live_score(self, rows: GroupRows) -> F64:
        """[R] What a hypothesis of the same sum and length scores."""
        return self._scores.of(rows.selection, max(rows.generated, 1))

    def results(self) -> HypothesisBatch:
        """The num_return_sequences best hypotheses of all groups, best first."""
        return self.hypotheses.best(self._strategy.num_return_sequences)

    def _candidates(self, result: SelectionResult) -> list[tuple[int, int]]:
        """Where each group's candidates are in the result: they come row after row, as groups do."""
        if self._sizes is None:
            return [(0, len(result.rows))] * self._strategy.groups
        rows = np.concatenate([np.zeros(1, np.int64), np.cumsum(self._sizes)])
        edges = np.searchsorted(result.rows, rows).tolist()
        return list(itertools.pairwise(edges))

    def _first_of_group(
        self, result: SelectionResult, stop: StopHits, first: int, last: int, taken: F64
    ) -> tuple[I64, I64]:
        """Which of the candidates first .. last the group would go on with, and which end as one of its
        first W'. taken: how many beams of the groups before have taken each token."""
        tokens = result.tokens[first:last]
        ranking = result.scores[first:last] - self._strategy.diversity_penalty * taken[tokens]
        ends = stop.reason[first:last] != LIVE
        own, ended = split(best_first(ranking, ends, self._width), ends, self._width)
        return own + first, ended + first

    def _going_on(self, pool: Hypotheses, own: I64, result: SelectionResult, generated: int) -> I64:
        """What the group goes on with: nothing once it has ended."""
        if not len(own):
            self._ran_dry |= not pool.full
            return own
        return own[:0] if self._ending.reached(pool, result.scores[own], generated) else own
