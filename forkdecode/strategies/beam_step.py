"""What all beams have in common: whom a step takes on, who ends in it, and when a pool is enough."""

from __future__ import annotations

import numpy as np

from forkdecode.step import F32, I64, Bools, SelectionResult
from forkdecode.strategies.hypotheses import F64, U8, Hypotheses, HypothesisBatch
from forkdecode.strategies.policy import Decision, GroupRows
from forkdecode.strategies.scorers import Scores
from forkdecode.types import EarlyStopping

SORTED_AT_ONCE = 4
"""Of more than so many times the width, those that can't matter are left out before the rest is sorted."""


def best_first(ranking: F64, ends: Bools, width: int) -> I64:
    """Indices of candidates, best first, of equals the earlier: all that are at least as good as the
    width-th that goes on, or all."""
    if len(ranking) > SORTED_AT_ONCE * width:
        live = ranking[~ends]
        if len(live) > width:
            worst = np.partition(live, len(live) - width)[len(live) - width]
            kept: I64 = (ranking >= worst).nonzero()[0]
            return kept[np.argsort(-ranking[kept], kind="stable")]
    return np.argsort(-ranking, kind="stable")


def split(order: I64 | None, ends: Bools, width: int) -> tuple[I64, I64]:
    """The first `width` candidates that go on, and those of the first `width` that end. order: candidates
    from the best down, None for all as they are; what is returned are indices as in it."""
    if order is None:
        return (~ends).nonzero()[0][:width], ends[:width].nonzero()[0]
    ordered = ends[order]
    return order[(~ordered).nonzero()[0][:width]], order[ordered[:width].nonzero()[0]]


def finish(
    result: SelectionResult, rows: GroupRows, reason: U8, ended: I64, scores: Scores
) -> HypothesisBatch:
    """The candidates `ended` as hypotheses."""
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
        score=scores.of(selection, generated),
        reason=reason[ended],
        candidate=ended.astype(np.int32),
    )


def go_on(
    picks: I64, result: SelectionResult, rows: GroupRows, finished: HypothesisBatch, *, done: bool
) -> Decision:
    """The candidates `picks` as the next rows. finished: what entered a pool."""
    parents = result.rows[picks]
    return Decision(
        picks=picks,
        parents=parents,
        tokens=result.tokens[picks],
        lineage=rows.lineage[parents],
        candidate=np.arange(len(picks), dtype=np.int32),
        cumulative=rows.cumulative[parents] + result.logprobs[picks],
        selection=result.scores[picks],
        finished=finished,
        done=done,
    )


class Ending:
    """When a beam with a full pool is done: as early_stopping says. True at once, False when the best live
    row, scored at its present length, does not beat the worst kept, "never" when nothing that follows it
    could."""

    def __init__(self, early_stopping: EarlyStopping, scores: Scores, max_tokens: int) -> None:
        self._early = early_stopping
        self._scores = scores
        self._max_tokens = max_tokens

    def reached(self, pool: Hypotheses, live: F32, generated: int) -> bool:
        """Whether no live row can still matter. live [n]: their sums; generated: their length."""
        if not pool.full:
            return False
        if self._early is True:
            return True
        if self._early == "never":
            return not self._scores.hope(live.max(), generated, self._max_tokens) > pool.worst
        return not float(self._scores.of(live, generated).max()) > pool.worst
