"""Stop strings, matched on token bytes while decoding."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from forkdecode.errors import invalid
from forkdecode.step import I32, I64, Bools, FinishMask
from forkdecode.text.token_bytes import TokenBytes

ROOT = 0
MAX_KEPT_STATES = 64
MAX_KEPT_AUTOMATA = 64


class StopAutomaton:
    """Finds any of several stop strings in streams of tokens, byte by byte.

    Aho and Corasick, "Efficient string matching" (1975), made deterministic: state = the longest
    suffix of what was read that begins a stop string, ROOT = none. A match ends anywhere in a
    token, and may have begun tokens before. After a match reading goes on, so a match that does
    not count (min_tokens) loses nothing.
    """

    def __init__(self, stops: Sequence[str | bytes], tokens: TokenBytes) -> None:
        patterns = [s.encode() if isinstance(s, str) else s for s in stops]
        if not patterns or not all(patterns):
            raise invalid("stop", "an empty stop string ends everything", "non-empty texts")
        self._tokens = tokens
        self._next, self._depth, self._match = _compile(patterns)
        self._accepts: Bools = self._match > 0
        self._table: Bools = np.empty((0, tokens.vocab_size), np.bool_)
        self._rows: I64 = np.full(len(self._match), -1, np.int64)
        self._from_root: tuple[I64, Bools] | None = None

    @property
    def tokens(self) -> TokenBytes:
        """The vocabulary that it reads."""
        return self._tokens

    @property
    def num_states(self) -> int:
        return len(self._match)

    def advance(self, states: I64, tokens: I64) -> tuple[I64, Bools]:
        """states, tokens [N] -> the states after each token, and in which of them a match ended."""
        if self._from_root is None:
            self._from_root = self._scan_from_root()
        root_states, root_hits = self._from_root
        after, hit = root_states[tokens], root_hits[tokens]
        own = np.flatnonzero(self._differs(states, tokens))
        if len(own):
            after[own], hit[own] = self._scan(states[own], tokens[own])
        return after, hit

    def step(self, state: int, byte: int) -> int:
        """The state after one byte."""
        return int(self._next[state, byte])

    def depth(self, state: int) -> int:
        """How many of the last bytes may be the beginning of a stop string, or are one."""
        return int(self._depth[state])

    def match_length(self, state: int) -> int:
        """Length of the longest stop string that ends in `state`, 0 if none does."""
        return int(self._match[state])

    def finish_table(self, states: I64) -> FinishMask:
        """Which tokens would complete a stop string, for rows in `states` [R].

        The table's rows are of distinct states and are kept, so that a state costs its pass over
        the vocabulary once. A mask that was handed out stays as it is.
        """
        missing = np.unique(states[self._rows[states] < 0])
        if len(missing) and len(self._table) + len(missing) > MAX_KEPT_STATES:
            missing = np.unique(states)
            self._table = self._table[:0]
            self._rows.fill(-1)
        if len(missing):
            first = len(self._table)
            new = np.stack([self._completions(int(state)) for state in missing])
            self._table = np.concatenate([self._table, new])
            self._rows[missing] = np.arange(first, len(self._table))
        return FinishMask(self._table, self._rows[states])

    def _completions(self, state: int) -> Bools:
        """[V] Which tokens complete a stop string from `state`."""
        everything = np.arange(self._tokens.vocab_size)
        return self.advance(np.full(len(everything), state), everything)[1]

    def _differs(self, states: I64, tokens: I64) -> Bools:
        """[N] Where a token leads elsewhere than from the root: decided by its first byte, since
        equal states go on equally. A token of no bytes leads nowhere."""
        table = self._tokens
        first = table.flat[table.offsets[tokens]]
        differs: Bools = self._next[states, first] != self._next[ROOT, first]
        empty: Bools = table.lengths[tokens] == 0
        return differs | empty

    def _scan_from_root(self) -> tuple[I64, Bools]:
        """[V] Each token's state and match from the root; only tokens in which a stop string's first
        byte occurs leave it."""
        table = self._tokens
        begins = self._next[ROOT] != ROOT
        count = np.zeros(len(table.flat) + 1, np.int64)
        np.cumsum(begins[table.flat], out=count[1:])
        tokens = np.flatnonzero(count[table.offsets + table.lengths] > count[table.offsets])
        states: I64 = np.zeros(table.vocab_size, np.int64)
        hit: Bools = np.zeros(table.vocab_size, np.bool_)
        states[tokens], hit[tokens] = self._scan(states[tokens], tokens)
        return states, hit

    def _scan(self, states: I64, tokens: I64) -> tuple[I64, Bools]:
        """advance(), byte by byte. Few tokens are long: longest first, each byte's pass is over a
        prefix."""
        table = self._tokens
        order = np.argsort(-table.lengths[tokens], kind="stable")
        lengths, start = table.lengths[tokens][order], table.offsets[tokens][order]
        longest = int(lengths[0]) if len(lengths) else 0
        reading = np.searchsorted(-lengths, -np.arange(longest), side="left")
        state, hit = states[order], np.zeros(len(tokens), np.bool_)
        for i, n in enumerate(reading.tolist()):
            state[:n] = self._next[state[:n], table.flat[start[:n] + i]]
            hit[:n] |= self._accepts[state[:n]]
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return state[back], hit[back]


class StopAutomata:
    """One vocabulary's automata, shared between requests of the same stop strings: each keeps what it
    has worked out."""

    def __init__(self, tokens: TokenBytes) -> None:
        self._tokens = tokens
        self._known: dict[tuple[str, ...], StopAutomaton] = {}

    def of(self, stop: tuple[str, ...]) -> StopAutomaton:
        """The automaton of these stop strings. Raises InvalidRequestError for an empty one."""
        automaton = self._known.get(stop)
        if automaton is None:
            if len(self._known) >= MAX_KEPT_AUTOMATA:
                self._known.clear()
            automaton = self._known[stop] = StopAutomaton(stop, self._tokens)
        return automaton


def _compile(patterns: Sequence[bytes]) -> tuple[I64, I32, I32]:
    """Transitions [states, 256], depth and longest match [states]."""
    children: list[dict[int, int]] = [{}]
    depth, match = [0], [0]
    for pattern in patterns:
        state = ROOT
        for byte in pattern:
            if byte not in children[state]:
                children[state][byte] = len(children)
                children.append({})
                depth.append(depth[state] + 1)
                match.append(0)
            state = children[state][byte]
        match[state] = len(pattern)
    count = len(children)
    moves: I64 = np.zeros((count, 256), np.int64)
    fail = [ROOT] * count
    queue = deque([ROOT])
    while queue:
        state = queue.popleft()
        if state != ROOT:
            moves[state] = moves[fail[state]]
            # A state's own pattern is longer than any that ends in its suffixes.
            match[state] = match[state] or match[fail[state]]
        for byte, child in children[state].items():
            fail[child] = ROOT if state == ROOT else int(moves[fail[state], byte])
            moves[state, byte] = child
            queue.append(child)
    return moves, np.array(depth, np.int32), np.array(match, np.int32)
