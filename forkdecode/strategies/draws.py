"""Rows that each draw their own next token: what sampling and best-of have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from forkdecode import lineage
from forkdecode.step import F32, I32, I64, U64, Draw, SelectionResult
from forkdecode.strategies.hypotheses import F64, LIVE, NO_HYPOTHESES, U8, HypothesisBatch
from forkdecode.strategies.policy import NO_ROWS, Decision, GroupRows, StopHits
from forkdecode.types import BestOf, Greedy, Sample


@dataclass(frozen=True, slots=True)
class Outcome:
    """One selection's N draws, each column [N]: draw i is what sample `candidate[i]` goes on with. stuck [K]:
    rows before it that nothing legal follows."""

    generated: int
    parents: I32
    tokens: I64
    logprobs: F32
    selection_logprobs: F32
    lineage: U64
    candidate: I32
    cumulative: F64
    selection: F32
    reason: U8
    stuck: I32 = field(default_factory=lambda: NO_ROWS)

    def ended(self) -> I64:
        """Indices of the draws that end their sample."""
        return self.reason.nonzero()[0]

    def live(self) -> I64:
        """Indices of the others."""
        live: I64 = (self.reason == LIVE).nonzero()[0]
        return live

    def hypotheses(self, ended: I64, score: F64, reason: U8) -> HypothesisBatch:
        """The samples `ended` as hypotheses; score, reason: one for each of them."""
        if not len(ended):
            return NO_HYPOTHESES
        return HypothesisBatch(
            generated=np.full(len(ended), self.generated, np.int32),
            row=self.parents[ended],
            pick=ended,
            token=self.tokens[ended],
            logprob=self.logprobs[ended],
            selection_logprob=self.selection_logprobs[ended],
            cumulative=self.cumulative[ended],
            selection=self.selection[ended],
            score=score,
            reason=reason,
            candidate=self.candidate[ended],
        )

    def decision(self, picks: I64, finished: HypothesisBatch) -> Decision:
        """The samples `picks` go on; without any the group is done."""
        return Decision(
            picks=picks,
            parents=self.parents[picks],
            tokens=self.tokens[picks],
            lineage=self.lineage[picks],
            candidate=self.candidate[picks],
            cumulative=self.cumulative[picks],
            selection=self.selection[picks],
            finished=finished,
            done=not len(picks),
            stuck=self.stuck,
        )


class Draws:
    """The draws of n samples. They fork once, from the prompt's row, in the first selection.

    Sample i draws by lineage child(root, i) for good: the position is the counter, so its tokens
    don't depend on n, on which others still live, or on anything else in the batch.
    """

    def __init__(self, strategy: Greedy | Sample | BestOf) -> None:
        self.count = _count(strategy)
        self._params = _params(strategy)
        self._samples = np.arange(self.count, dtype=np.int32)
        self._lineage: U64 | None = None

    def choose(self, rows: GroupRows) -> Draw:
        """One draw per sample: from the prompt's row at first, from its own afterwards."""
        lineages, candidate = self._children(rows)
        first = rows.generated == 0
        source = np.zeros(self.count, np.int32) if first else self._samples[: len(candidate)]
        return Draw(source, lineages, rows.position, *self._params)

    def outcome(self, result: SelectionResult, rows: GroupRows, stop: StopHits) -> Outcome:
        """What `result` makes of `rows`."""
        lineages, candidate = self._children(rows)
        parents, stuck = result.rows, NO_ROWS
        if len(parents) < len(candidate):  # before they have forked, all or none
            stuck = np.setdiff1d(np.arange(rows.num_rows, dtype=np.int32), parents)
            goes_on = parents if rows.generated else self._samples[:0]
            lineages, candidate = lineages[goes_on], candidate[goes_on]
        return Outcome(
            generated=rows.generated + 1,
            parents=parents,
            tokens=result.tokens,
            logprobs=result.logprobs,
            selection_logprobs=result.selection_logprobs,
            lineage=lineages,
            candidate=candidate,
            cumulative=rows.cumulative[parents] + result.logprobs,
            selection=rows.selection[parents] + result.selection_logprobs,
            reason=stop.reason,
            stuck=stuck,
        )

    def goes_on(self, result: SelectionResult, rows: GroupRows) -> int:
        """See Policy: all, once they have forked, unless one is stuck."""
        count = len(result.tokens)
        return count if rows.generated and count == len(rows.candidate) else 0

    def _children(self, rows: GroupRows) -> tuple[U64, I32]:
        if rows.generated:
            return rows.lineage, rows.candidate
        if self._lineage is None:
            self._lineage = lineage.child(rows.root, self._samples)
        return self._lineage, self._samples


def _count(strategy: Greedy | Sample | BestOf) -> int:
    if isinstance(strategy, Greedy):
        return 1
    return strategy.n if isinstance(strategy, Sample) else strategy.best_of


def _params(strategy: Greedy | Sample | BestOf) -> tuple[float, int, float, float, float]:
    if isinstance(strategy, Greedy):
        return 0.0, 0, 1.0, 0.0, 1.0
    return strategy.temperature, strategy.top_k, strategy.top_p, strategy.min_p, strategy.typical_p
