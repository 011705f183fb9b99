"""What a streamed beam tells after each step: tokens that are final, and its best live hypotheses."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from forkdecode.scheduler.events import BeamStep, GroupEvent, TokensCommitted
from forkdecode.step import I32, I64
from forkdecode.strategies.history import SPAN, History
from forkdecode.strategies.hypotheses import F64, HypothesisBatch
from forkdecode.strategies.policy import GroupRows, Policy
from forkdecode.types import Options

_NONE = -1
"""The ancestor, at a level, of a hypothesis that no row of that level leads to: it ended there or before."""

ROWS_A_STEP = 65_536


class BeamStream:
    """The events of one group's steps: what has become common first, then what may yet change."""

    def __init__(self, options: Options) -> None:
        self._common = CommonPrefix()
        self._shown = ShownBeams(options.update_every, options.update_beams)
        self._tokens = ShownTokens()
        self._finished = 0

    @property
    def committed(self) -> int:
        """How many tokens have been told of as final."""
        return self._common.count

    def events(
        self,
        request_id: str,
        history: History,
        policy: Policy,
        parents: I32,
        finished: HypothesisBatch,
        rows: GroupRows,
    ) -> list[GroupEvent]:
        """After a step that leaves `rows`, at least one, which continue `parents`: the last of `history`, in
        which `finished` entered the pool."""
        events: list[GroupEvent] = []
        common = self._common.count
        before, self._finished = self._finished, len(policy.hypotheses)
        # A pool changes by what finishes; that of a stochastic beam also loses some to live rows.
        changed = len(finished) or self._finished < before
        returnable = policy.results() if changed else None
        if self._common.step(history, parents, finished, returnable):
            tokens = self._common.tokens(history, common)
            events.append(TokensCommitted(request_id, tokens))
        self._shown.move(parents)
        if self._shown.due(rows.generated):
            scores = policy.live_score(rows)
            best, numbers, shown = self._shown.show(scores, rows.generated)
            events.append(
                BeamStep(
                    request_id=request_id,
                    generated=rows.generated,
                    hypotheses=numbers,
                    parents=shown,
                    token_ids=self._tokens.of(history, rows.generated, best, shown, self._common.count),
                    scores=scores[best],
                    finished=len(policy.hypotheses),
                )
            )
        return events


class _Ended(NamedTuple):
    """P finished hypotheses: key [P] names each, step and row [P] say which row's next token ended it,
    ancestor [P] is the row at the open level that it goes back to."""

    key: I64
    step: I64
    row: I32
    ancestor: I32

    def of(self, index: I64) -> _Ended:
        return _Ended(self.key[index], self.step[index], self.row[index], self.ancestor[index])

    def and_also(self, other: _Ended) -> _Ended:
        return _Ended(
            np.concatenate([self.key, other.key]),
            np.concatenate([self.step, other.step]),
            np.concatenate([self.row, other.row]),
            np.concatenate([self.ancestor, other.ancestor]),
        )


_NO_ENDED = _Ended(np.empty(0, "i8"), np.empty(0, "i8"), np.empty(0, "i4"), np.empty(0, "i4"))


class CommonPrefix:
    """How many tokens all candidates that a beam can still return begin with.

    Those are the live rows, for any of them may lead to a result, and the hypotheses that the policy
    would return if nothing else finished: one that is ranked behind them never comes back. Neither
    set is ever joined by what does not begin like it, so the prefix only grows, and all of it is final.

    Kept is each candidate's ancestor at the open level, the first that is not common; it moves with the
    parents. What comes before is common, so the tokens of the ancestors tell whether that level is: rows
    of one parent differ in them, rows of different groups of a diverse beam may not. Only when all agree
    there is anybody's history walked. A hypothesis's last token is in no row: what ended it, whatever
    row it was, ends every row of the same tokens.
    """

    def __init__(self) -> None:
        self.count = 0
        """How many tokens are common."""
        self._live: I32 = np.empty(0, np.int32)
        self._ended = _NO_ENDED

    def step(
        self, history: History, parents: I32, finished: HypothesisBatch, returnable: HypothesisBatch | None
    ) -> bool:
        """After the last step of `history`, which led to rows of these parents and to `finished`:
        whether more is common now. returnable: what the policy would return, None for the same as before."""
        if returnable is not None:
            self._ended = self._join(finished, returnable)
        at_open_level = history.steps == self.count + 1
        self._live = np.arange(len(parents), dtype=np.int32) if at_open_level else self._live[parents]
        if (self._ended.ancestor == _NONE).any():
            return False
        if not _equal(history.step(self.count)[1][np.concatenate([self._live, self._ended.ancestor])]):
            return False
        self._grow(history)
        return True

    def tokens(self, history: History, start: int) -> I64:
        """The common tokens from `start` on. There must be a live row."""
        row = history.ancestors(history.steps, np.zeros(1, np.int32), self.count)
        tokens: I64 = history.tokens(self.count, row, start)[0]
        return tokens

    def _join(self, finished: HypothesisBatch, returnable: HypothesisBatch) -> _Ended:
        """The returnable hypotheses: each was so before this step, or has finished in it."""
        step = finished.generated.astype(np.int64) - 1
        begun = len(step) > 0 and int(step[0]) > self.count
        ancestor = self._live[finished.row] if begun else np.full(len(step), _NONE, np.int32)
        known = self._ended.and_also(_Ended(_key(finished), step, finished.row, ancestor))
        order = np.argsort(known.key)
        return known.of(order[np.searchsorted(known.key, _key(returnable), sorter=order)])

    def _grow(self, history: History) -> None:
        """The open level is common: finds the first that is not, and everyone's ancestor there."""
        live = len(self._live)
        steps = np.concatenate([np.full(live, history.steps), self._ended.step])
        rows = np.concatenate([np.arange(live, dtype=np.int32), self._ended.row])
        high = int(steps.min())
        at_high = _ancestors(history, steps, rows, high)
        self.count = _first_difference(history, np.unique(at_high), self.count + 1, high)
        if self.count < high:
            ancestors = history.ancestors(high, at_high, self.count + 1)
        else:
            reach = steps > high
            ancestors = np.full(len(rows), _NONE, np.int32)
            if reach.any():
                ancestors[reach] = _ancestors(history, steps[reach], rows[reach], high + 1)
        self._live = ancestors[:live]
        self._ended = self._ended._replace(ancestor=ancestors[live:])


def _first_difference(history: History, rows: I32, low: int, high: int) -> int:
    """How many tokens the rows, as after `high` steps, begin with alike: `low` they do, `high` they have."""
    while low < high:
        level = min(high, low + SPAN)
        tokens = history.tokens(level, history.ancestors(high, rows, level), low)
        alike = (tokens == tokens[0]).all(0)
        if not alike.all():
            return low + int(alike.argmin())
        low = level
    return high


def _equal(values: I64) -> bool:
    return bool((values == values[0]).all())


def _key(batch: HypothesisBatch) -> I64:
    """[N] One number for each hypothesis of a request."""
    return (batch.generated.astype(np.int64) << 32) + batch.pick


def _ancestors(history: History, steps: I64, rows: I32, level: int) -> I32:
    """[N] History.ancestors of rows that are each numbered as after their own of `steps`."""
    above = steps[steps > level]
    if not len(above):
        return rows
    found = rows.copy()
    for step, below in pairwise([*np.unique(above)[::-1].tolist(), level]):
        begun = steps >= step
        found[begun] = history.ancestors(step, found[begun], below)
    return found


class ShownBeams:
    """Which live hypotheses are shown after a step, and which of those shown last each continues.

    every: steps between two updates, 0 for none at all. beams: how many are shown, 0 for all. A
    hypothesis's number is generated * 65,536 + row + 1, as many as a beam may be wide.
    """

    def __init__(self, every: int, beams: int) -> None:
        self._every = every
        self._beams = beams
        self._numbers: I64 = np.zeros(1, np.int64)
        """[R] The number of the hypothesis shown last that each row goes back to, 0 for none."""

    def move(self, parents: I32) -> None:
        """A step has led to rows of these parents."""
        if self._every:
            self._numbers = self._numbers[parents]

    def due(self, generated: int) -> bool:
        """Whether there is an update after so many tokens."""
        return self._every > 0 and generated % self._every == 0

    def show(self, scores: F64, generated: int) -> tuple[I32, I64, I64]:
        """[N] The rows to show, best first and of equal scores the lower row first, their numbers, and
        the numbers of those shown last that they continue."""
        best = np.argsort(-scores, kind="stable")[: self._beams or None].astype(np.int32)
        numbers = best.astype(np.int64) + (generated * ROWS_A_STEP + 1)
        parents = self._numbers[best]
        self._numbers = np.zeros(len(scores), np.int64)
        self._numbers[best] = numbers
        return best, numbers, parents


class ShownTokens:
    """The tokens of the hypotheses shown last: those that continue them are told of without a walk."""

    def __init__(self) -> None:
        self._rows: I32 = np.empty(0, np.int32)
        self._tokens: I64 = np.empty((0, 0), np.int64)
        self._start = self._generated = 0

    def of(self, history: History, generated: int, rows: I32, parents: I64, start: int) -> I64:
        """[N, generated - start] What `rows`, to be shown after `generated` tokens, have after the first
        `start`. parents [N]: as ShownBeams.show names those shown last that they continue."""
        if len(self._rows) and (parents > 0).all():
            order = np.argsort(self._rows)
            places = order[np.searchsorted(self._rows[order], (parents - 1) % ROWS_A_STEP)]
            known = self._tokens[places, start - self._start :]
            since = history.tokens(generated, rows, max(start, self._generated))
            tokens = np.concatenate([known, since], axis=1)
        else:
            tokens = history.tokens(generated, rows, start)
        self._rows, self._tokens, self._start, self._generated = rows, tokens, start, generated
        return tokens
