"""A grammar's state in each of a group's rows: one matcher a row, moved on beside the forward pass.

A row's matcher is worth keeping apart: a copy costs time and memory that grow with the text it has read.
So rows that are continued give their matchers away, and a matcher is copied only where a row has several
children. Rows are immutable none the less: those that have given theirs away read the tokens again, from
the compiled grammar on, in the rare case that they are continued once more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from llguidance import LLExecutor, LLMatcher
from numpy.typing import NDArray

from forkdecode.allowed import Allowed, AllowedBits
from forkdecode.checks import told
from forkdecode.constraints.grammar_tokens import GrammarTokens, Words, bits
from forkdecode.errors import GroupFailedError
from forkdecode.step import I32, I64

MANY_ROWS = 8
"""From so many on, masks are computed by several threads."""
_FIRST = np.zeros(1, np.int32)
DEAD_END = "NoExtension"
"""How the error of a matcher begins that no token can continue."""


@dataclass(frozen=True, slots=True)
class Workers:
    """The threads of all grammars of a model. rows: None where one thread does."""

    jobs: ThreadPoolExecutor
    rows: LLExecutor | None


@dataclass(frozen=True, slots=True)
class Compiled:
    """A grammar that is ready. root: only ever copied. first: [1, full_width] what it may begin with."""

    root: LLMatcher
    first: Words
    tokens: GrammarTokens
    plain_error: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class GrammarConstraint:
    """One request's. stop_ids: allowed, like EOS ids, where the grammar is complete and nowhere else."""

    compiled: Compiled
    workers: Workers
    stop_ids: I64

    def rows(self) -> GrammarRows:
        """The one row that a group starts with."""
        tokens = self.compiled.tokens
        first = self.compiled.first
        words = first[:, : tokens.width] if tokens.opening is None else tokens.opening.allowed(first)
        done: Future[Allowed] = Future()
        done.set_result(AllowedBits(self.with_stops(words.copy())))
        return GrammarRows(self, None, done)

    def after(self, tokens: I64) -> GrammarRows:
        """That row when it has read tokens which are allowed: a worker reads them all, and makes one mask."""
        path: _Path | None = None
        for at in range(len(tokens)):
            path = _Path(path, _FIRST, tokens[at : at + 1])
        if path is None:
            return self.rows()
        rows = GrammarRows(self, path, Future())
        rows.submit(rows.begin)
        return rows

    def with_stops(self, words: Words) -> Words:
        """[R, width] In place: stop ids wherever EOS ids are allowed."""
        if len(self.stop_ids):
            tokens = self.compiled.tokens
            stops = bits(self.stop_ids, tokens.width)
            complete = (words & tokens.eos).any(axis=1)
            words &= ~stops
            words[complete] |= stops
        return words


@dataclass(frozen=True, slots=True)
class _Path:
    """How rows came to be: row i continues row parents[i] of `before` with tokens[i]."""

    before: _Path | None
    parents: I32
    tokens: I64

    def of(self, row: int) -> list[int]:
        """The tokens of a row."""
        path, found = self, []
        while True:
            found.append(int(path.tokens[row]))
            row = int(path.parents[row])
            if path.before is None:
                return found[::-1]
            path = path.before


class GrammarRows:
    """R rows after the same number of tokens; none of them has ended."""

    def __init__(self, constraint: GrammarConstraint, path: _Path | None, words: Future[Allowed]) -> None:
        self._constraint = constraint
        self._path = path
        self._words = words
        self._lock = threading.Lock()
        self._matchers: list[LLMatcher] | None = None
        """None while they are not made yet, and from when they were given away."""

    def allowed(self) -> GrammarRows:
        """These rows: what they allow is worked out once."""
        return self

    def get(self) -> Allowed:
        """Waits for the worker. Raises GroupFailedError when a matcher failed."""
        try:
            return self._words.result()
        except CancelledError:
            raise _closed() from None

    def next(self, parents: NDArray[np.int32], tokens: NDArray[np.int64]) -> GrammarRows:
        """Rows whose matchers and masks a worker makes."""
        parents, tokens = np.array(parents, np.int32), np.array(tokens, np.int64)
        moved = GrammarRows(self._constraint, _Path(self._path, parents, tokens), Future())
        moved.submit(partial(moved.go_on, self, parents, tokens))
        return moved

    def submit(self, make: Callable[[], list[LLMatcher]]) -> None:
        """A worker is to make the matchers, and then the masks."""
        try:
            self._constraint.workers.jobs.submit(self._work, make)
        except RuntimeError:  # the executor was shut down
            self._words.set_exception(
                GroupFailedError("constraint: the engine was closed", field="constraint")
            )

    def begin(self) -> list[LLMatcher]:
        """The matchers of rows that are the first of their group."""
        return self._again(_FIRST)

    def go_on(self, before: GrammarRows, parents: I32, tokens: I64) -> list[LLMatcher]:
        """The matchers of rows that continue others."""
        # What those have given their matchers for was begun earlier by a worker: waiting for it ends.
        before.get()
        matchers = before._take(parents)
        self._consume(matchers, tokens, first=before._path is None)
        return matchers

    def _work(self, make: Callable[[], list[LLMatcher]]) -> None:
        try:
            matchers = make()
            words = self._masks(matchers)
            with self._lock:
                self._matchers = matchers
            self._words.set_result(AllowedBits(words))
        except Exception as error:
            self._words.set_exception(error)
        except BaseException as error:  # a panic of llguidance, which must not end who waits for it
            self._words.set_exception(GroupFailedError(f"constraint: {told(error)}", field="constraint"))

    def _take(self, parents: I32) -> list[LLMatcher]:
        """A matcher for each child, that nobody else has."""
        with self._lock:
            own, self._matchers = self._matchers, None
        if own is None:
            return self._again(parents)
        left: list[LLMatcher | None] = list(own)
        taken: list[LLMatcher] = []
        for parent in parents[::-1].tolist():  # the last child is the first here, and copies none
            matcher = left[parent]
            taken.append(own[parent].deep_copy() if matcher is None else matcher)
            left[parent] = None
        return taken[::-1]

    def _again(self, parents: I32) -> list[LLMatcher]:
        root = self._constraint.compiled.root
        if self._path is None:
            return [root.deep_copy() for _ in parents]
        made: dict[int, LLMatcher] = {}
        for parent in set(parents.tolist()):
            made[parent] = root.deep_copy()
            self._read(made[parent], self._path.of(parent), first=True)
        return [made[parent].deep_copy() for parent in parents.tolist()]

    def _consume(self, matchers: Sequence[LLMatcher], tokens: I64, *, first: bool) -> None:
        for matcher, token in zip(matchers, tokens.tolist(), strict=True):
            self._read(matcher, [token], first=first)

    def _read(self, matcher: LLMatcher, path: list[int], *, first: bool) -> None:
        compiled = self._constraint.compiled
        opening = compiled.tokens.opening
        if first and opening is not None:
            head = int(opening.consumed[path[0]])
            path = path[1:] if head < 0 else [head, *path[1:]]
        if path and not matcher.consume_tokens(path):
            raise failed(compiled, matcher)

    def _masks(self, matchers: Sequence[LLMatcher]) -> Words:
        constraint = self._constraint
        words = masks(constraint.compiled, matchers, constraint.workers.rows)
        return constraint.with_stops(np.ascontiguousarray(words[:, : constraint.compiled.tokens.width]))


def masks(compiled: Compiled, matchers: Sequence[LLMatcher], rows: LLExecutor | None = None) -> Words:
    """[R, full_width] What each matcher allows: EOS ids where it accepts and there alone, and nothing where
    it can't go on. Raises GroupFailedError when one failed."""
    tokens = compiled.tokens
    words: Words = np.zeros((len(matchers), tokens.full_width), np.uint32)
    size = words.itemsize * tokens.full_width
    if rows is not None and len(matchers) >= MANY_ROWS:
        each = [(matcher, i) for i, matcher in enumerate(matchers)]
        rows.unsafe_compute_mask_ptr(each, words.ctypes.data, size, len(matchers))
    else:
        for i, matcher in enumerate(matchers):
            matcher.unsafe_compute_mask_ptr(words.ctypes.data + i * size, size)
    # A matcher that failed, or that nothing can continue, has EOS ids alone, and so does one that ends.
    ids = words[:, : tokens.width]
    for i in np.flatnonzero((ids & tokens.eos).any(axis=1)).tolist():
        matcher = matchers[i]
        if matcher.is_error() and not matcher.get_error().startswith(DEAD_END):
            raise failed(compiled, matcher)
        if matcher.is_error() or not matcher.is_accepting():
            ids[i] &= ~tokens.eos
    return words


def _closed() -> GroupFailedError:
    return GroupFailedError("constraint: the engine was closed", field="constraint")


def failed(compiled: Compiled, matcher: LLMatcher) -> GroupFailedError:
    """The error of a matcher, in plain words."""
    return GroupFailedError(f"constraint: {compiled.plain_error(matcher.get_error())}", field="constraint")
