"""A constraint given as a table, for the tests: an automaton over token ids."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from forkdecode.allowed import Allowed, AllowedBits, AllowedLists, AllowedSource, Ready
from forkdecode.step import I32, I64

Form: TypeAlias = Literal["lists", "bits"]
NOTHING = -1


@dataclass(frozen=True)
class Table:
    """moves [S, V]: the state that a token leads to, -1 where it may not follow. A row starts in state 0.

    ends: states in which a candidate is complete and ends. also [S] and also_ids: what besides may follow
    some states, and leads nowhere. form: how it is told what is allowed; bits can't tell of ends.
    """

    moves: I64
    form: Form = "lists"
    ends: frozenset[int] = frozenset()
    also: tuple[int, ...] = ()
    also_states: frozenset[int] = frozenset()
    asked: list[int] = field(default_factory=list, compare=False)
    """How many rows each question was about."""

    def rows(self) -> TableRows:
        return TableRows(self, np.zeros(1, np.int64))

    def accepts(self, tokens: tuple[int, ...]) -> bool:
        """Whether every token may follow the ones before it."""
        state = 0
        for i, token in enumerate(tokens):
            if token in self.also and state in self.also_states:
                return i + 1 == len(tokens)
            state = int(self.moves[state, token]) if state >= 0 else NOTHING
            if state == NOTHING or (state in self.ends and i + 1 < len(tokens)):
                return False
        return True

    def told(self, states: I64) -> Allowed:
        """What rows in these states may continue with."""
        may = self.moves[states] != NOTHING
        also = np.isin(states, list(self.also_states))
        if self.form == "bits":
            may[np.ix_(also, self.also)] = True
            padded = np.pad(may, ((0, 0), (0, -may.shape[1] % 32)))
            return AllowedBits(np.packbits(padded, axis=1, bitorder="little").view(np.uint32))
        row, token = np.nonzero(may)
        edges = np.searchsorted(row, np.arange(len(states) + 1)).astype(np.int64)
        ends = np.isin(self.moves[states[row], token], list(self.ends)) if self.ends else None
        ids = np.array(self.also, np.int64)
        return AllowedLists(token.astype(np.int32), edges[:-1], edges[1:], ends, also, ids)


@dataclass(frozen=True)
class TableRows:
    table: Table
    states: I64

    def allowed(self) -> AllowedSource:
        self.table.asked.append(len(self.states))
        return Ready(self.table.told(self.states))

    def next(self, parents: I32, tokens: I64) -> TableRows:
        before = self.states[parents]
        after = self.table.moves[before, tokens]
        over = np.isin(tokens, self.table.also) & np.isin(before, list(self.table.also_states))
        assert ((after != NOTHING) | over).all(), "a row continues with a token that is not allowed"
        return TableRows(self.table, np.where(after == NOTHING, 0, after))


def random_table(
    seed: int, vocab: int, states: int = 6, degree: int = 4, form: Form = "lists", **more: object
) -> Table:
    """Each state leads on by `degree` tokens."""
    rng = np.random.default_rng(seed)
    moves = np.full((states, vocab), NOTHING, np.int64)
    for state in range(states):
        tokens = rng.choice(vocab, degree, replace=False)
        moves[state, tokens] = rng.integers(0, states, degree)
    return Table(moves, form, **more)  # type: ignore[arg-type]


def items_table(items: list[tuple[int, ...]], vocab: int, eos: int | None = None) -> Table:
    """The sequences `items`: each ends with its last token, or where `eos` is given with that."""
    children: list[dict[int, int]] = [{}]
    complete: set[int] = set()
    for item in items:
        state = 0
        for token in item:
            if token not in children[state]:
                children[state][token] = len(children)
                children.append({})
            state = children[state][token]
        complete.add(state)
    moves = np.full((len(children), vocab), NOTHING, np.int64)
    for state, edges in enumerate(children):
        for token, child in edges.items():
            moves[state, token] = child
    if eos is None:
        return Table(moves, ends=frozenset(complete))
    return Table(moves, also=(eos,), also_states=frozenset(complete))
