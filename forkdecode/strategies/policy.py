"""What a strategy is to the scheduler: a policy that asks for candidates and decides which live on.

A policy belongs to one request. It sees scores and columns, never a block or a logit.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from forkdecode import lineage
from forkdecode.step import F32, I32, I64, U64, Choice, FinishMask, SelectionResult
from forkdecode.strategies.forced import ForcedTokens
from forkdecode.strategies.hypotheses import F64, U8, Hypotheses, HypothesisBatch
from forkdecode.strategies.pools import HypothesisPools


@dataclass(frozen=True, slots=True)
class GroupRows:
    """The R live rows of a group before a selection; all have the same length.

    generated: tokens generated so far. position: absolute position of the token to be chosen
    (prompt length + generated). lineage [R]: what each row's draws hang on. candidate [R]: which
    sample each row is. cumulative [R]: sums of raw log-probabilities. selection [R]: sequential
    float32 sums of processed ones. root: the lineage of the prompt. finishing: which tokens would
    complete a stop string, where the request has stop strings that may end a candidate now.
    """

    generated: int
    position: int
    lineage: U64
    candidate: I32
    cumulative: F64
    selection: F32
    root: np.uint64
    finishing: FinishMask | None = None

    @property
    def num_rows(self) -> int:
        return len(self.candidate)

    @staticmethod
    def prompt(prompt_len: int, seed: int) -> GroupRows:
        """The one row that every group starts with."""
        root = lineage.root(seed)
        return GroupRows(
            generated=0,
            position=prompt_len,
            lineage=np.full(1, root, np.uint64),
            candidate=np.zeros(1, np.int32),
            cumulative=np.zeros(1, np.float64),
            selection=np.zeros(1, np.float32),
            root=root,
        )


NO_ROWS: I32 = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class StopHits:
    """reason [N]: why each candidate of a SelectionResult ends here, by the codes of
    hypotheses.REASONS: 0 it does not, 1 eos, 2 stop, 3 length."""

    reason: U8


@dataclass(frozen=True, slots=True)
class Decision:
    """What a selection leads to: R' next rows, and hypotheses that leave.

    picks [R']: the candidates of the result that live on. parents, tokens [R']: the row each
    continues and the token it appends. lineage, candidate, cumulative, selection [R']: the next
    rows' columns. finished: what was accepted in this step; rows of a sample that are cut off early
    are among them as cancelled. done: nothing is to be decoded any more, and then R' = 0. stuck [K]: rows of
    samples that nothing legal follows, and which therefore end here and are no hypotheses.
    """

    picks: I64
    parents: I32
    tokens: I64
    lineage: U64
    candidate: I32
    cumulative: F64
    selection: F32
    finished: HypothesisBatch
    done: bool
    stuck: I32 = field(default_factory=lambda: NO_ROWS)

    def only(self, which: I64) -> Decision:
        """Without the next rows that are not among `which`."""
        return replace(
            self,
            picks=self.picks[which],
            parents=self.parents[which],
            tokens=self.tokens[which],
            lineage=self.lineage[which],
            candidate=self.candidate[which],
            cumulative=self.cumulative[which],
            selection=self.selection[which],
            done=self.done or not len(which),
        )

    def next_rows(self, rows: GroupRows, finishing: FinishMask | None = None) -> GroupRows:
        """The group's rows after this decision about `rows`."""
        return GroupRows(
            generated=rows.generated + 1,
            position=rows.position + 1,
            lineage=self.lineage,
            candidate=self.candidate,
            cumulative=self.cumulative,
            selection=self.selection,
            root=rows.root,
            finishing=finishing,
        )


class Policy(Protocol):
    """One request's strategy."""

    @property
    def max_rows(self) -> int:
        """The most rows that are ever live at once."""

    @property
    def max_results(self) -> int:
        """The most hypotheses that results() ever are."""

    @property
    def streams_candidates(self) -> bool:
        """Whether rows are candidates for good, so that their tokens can be streamed."""

    @property
    def forced(self) -> ForcedTokens | None:
        """Which tokens the rows are to follow, where logits decide nothing."""

    @property
    def exhausted(self) -> bool:
        """Whether results() are fewer than were asked for because nothing legal was left; of a group that
        is done."""

    @property
    def hypotheses(self) -> Hypotheses | HypothesisPools:
        """What has finished so far."""

    def choose(self, rows: GroupRows) -> Choice:
        """What to ask of the rows' next logits."""

    def decide(self, result: SelectionResult, rows: GroupRows, stop: StopHits) -> Decision:
        """What the answer leads to. `result` has no error and answers `choose(rows)`."""

    def goes_on(self, result: SelectionResult, rows: GroupRows) -> int:
        """Of a result in which no candidate ends: how many of its first candidates are the next rows, where
        decide() would make nothing else of it (see strategies.together); 0 where only decide() can tell."""

    def live_score(self, rows: GroupRows) -> F64:
        """[R] What each live row would score if it ended now, with what it has."""

    def results(self) -> HypothesisBatch:
        """What the request returns, in the order it returns them."""
