"""Exhaustive top-N: the most likely complete sequences, best first, with a certificate. No input or
output."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from forkdecode.checks import check_int
from forkdecode.results import FinishReason
from forkdecode.types import MAX_COUNT

Tokens: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """Wanted: what follows the prefix `after`, which is known, and `token` after it; None: the next children
    of `after` itself. skip: its children that are known already. last: no longer sequence is wanted."""

    after: Tokens
    token: int | None
    skip: Tokens = ()
    last: bool = False

    @property
    def tokens(self) -> Tokens:
        """The prefix that is looked at."""
        return self.after if self.token is None else (*self.after, self.token)


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of expanding a prefix. ended: why the sequence is complete, None if it is not; a complete
    one has no children. children: (token, log-probability), most likely first. rest: a bound on the
    log-probability of further children; -inf if there are none."""

    ended: FinishReason | None = None
    children: tuple[tuple[int, float], ...] = ()
    rest: float = -math.inf


@dataclass(frozen=True, slots=True)
class Complete:
    """A complete sequence. score: the sum of its tokens' log-probabilities."""

    token_ids: Tokens
    score: float
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True, order=True)
class _Entry:
    """In the queue: what can come to -cost at best. kind 0: complete; 1: not looked at yet; 2: more of a
    prefix's children than those `known`, the prefix itself at -base."""

    cost: float
    kind: int
    tokens: Tokens
    base: float = 0.0
    known: Tokens = ()
    ended: FinishReason = "eos"


class TopN:
    """Uniform-cost search (Dijkstra 1959; Russell and Norvig, "Artificial intelligence", section 3.4) over
    prefixes: a prefix is at least as likely as everything that begins with it, so a complete sequence that
    leaves the queue first is the most likely of all that have not left it. Exact, whatever the model.

    ask(), tell(), ask(), ... until ask() requests nothing. batch: how many prefixes are expanded together;
    those after the most likely one may be wasted work. max_tokens: longer sequences don't count.
    """

    def __init__(self, n: int, *, max_tokens: int = 64, batch: int = 16) -> None:
        self._n = check_int("n", n, 1, MAX_COUNT)
        self._max_tokens = check_int("max_tokens", max_tokens, 1)
        self._batch = check_int("batch", batch, 1, MAX_COUNT)
        self._queue: list[_Entry] = [_Entry(0.0, 2, ())]
        self._asked: list[tuple[_Entry, Look]] = []
        self._certain: list[Complete] = []

    @property
    def certain(self) -> tuple[Complete, ...]:
        """The most likely sequences, best first: none that is missing is more likely than one of them."""
        return tuple(self._certain)

    @property
    def pending(self) -> tuple[Complete, ...]:
        """Complete sequences that are found but not certain, best first; as many as are still wanted."""
        found = sorted(entry for entry in self._queue if entry.kind == 0)
        return tuple(map(_complete, found[: self._n - len(self._certain)]))

    @property
    def exact(self) -> bool:
        """Whether `certain` are the n most likely sequences, or all there are."""
        return not self._asked and (len(self._certain) == self._n or not self._queue)

    @property
    def bound(self) -> float:
        """No sequence apart from `certain` is more likely than this; -inf if there is none."""
        open_ = [self._queue[0].cost] if self._queue else []
        return -min([*open_, *(entry.cost for entry, _ in self._asked)], default=math.inf)

    def ask(self, most: int | None = None) -> tuple[Look, ...]:
        """What to look at next, at most so many."""
        assert not self._asked, "told first"
        while self._queue and self._queue[0].kind == 0 and len(self._certain) < self._n:
            self._certain.append(_complete(heapq.heappop(self._queue)))
        wanted = self._n - len(self._certain)
        if not wanted:
            return ()
        # Nothing behind as many complete ones as are wanted can be one of them.
        passed: list[_Entry] = []
        limit = self._batch if most is None else min(most, self._batch)
        while self._queue and len(self._asked) < limit and len(passed) < wanted:
            entry = heapq.heappop(self._queue)
            if entry.kind == 0:
                passed.append(entry)
            else:
                self._asked.append((entry, self._look(entry)))
        for entry in passed:
            heapq.heappush(self._queue, entry)
        return tuple(look for _, look in self._asked)

    def tell(self, seen: Sequence[Seen | None]) -> None:
        """What came of the last ask(), in its order. None: not looked at, and it may be asked for again."""
        asked, self._asked = self._asked, []
        for (entry, look), found in zip(asked, seen, strict=True):
            if found is None:
                heapq.heappush(self._queue, entry)
            elif found.ended is not None:
                heapq.heappush(self._queue, _Entry(entry.cost, 0, look.tokens, ended=found.ended))
            elif not look.last:
                self._queue_children(entry, look, found)

    def _look(self, entry: _Entry) -> Look:
        if entry.kind == 2:
            return Look(entry.tokens, None, entry.known)
        return Look(entry.tokens[:-1], entry.tokens[-1], last=len(entry.tokens) == self._max_tokens)

    def _queue_children(self, entry: _Entry, look: Look, found: Seen) -> None:
        base = entry.base if entry.kind == 2 else entry.cost
        for token, logprob in found.children:
            child = _Entry(base - min(0.0, logprob), 1, (*look.tokens, token))
            heapq.heappush(self._queue, child)
        if found.rest > -math.inf:
            known = look.skip + tuple(token for token, _ in found.children)
            heapq.heappush(self._queue, _Entry(base - min(0.0, found.rest), 2, look.tokens, base, known))


def _complete(entry: _Entry) -> Complete:
    return Complete(entry.tokens, -entry.cost, entry.ended)
