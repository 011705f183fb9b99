"""Vocabularies for tests of grammars, and what a state of rows allows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forkdecode.allowed import Allowed, AllowedBits, Constraint, ConstraintRows
from forkdecode.constraints.grammar import Grammars
from forkdecode.step import I64, Bools
from forkdecode.text.token_bytes import TokenBytes

PIECES = [bytes([b]) for b in range(256)] + [
    b"ab",
    b"abc",
    b"bc",
    b" a",
    b" ",
    b"\xc3\xa9",
    b'{"',
    b'":',
    b"",
    b"",
    b"",
]
"""All bytes, some tokens of several, a space twice, three without text."""
EOS, SECOND_EOS, NO_TEXT = 264, 265, 266
VOCAB = len(PIECES)
TOKENS = TokenBytes.build(PIECES)
STRIPPING = TokenBytes.build(PIECES, strips_first_space=True)
_ONE = np.zeros(1, np.int32)


def grammars(**settings: float) -> Grammars:
    """A compiler with both EOS ids."""
    return Grammars(TOKENS, VOCAB, (EOS, SECOND_EOS), {NO_TEXT: "<|call|>"}, **settings)


def may(allowed: Allowed) -> Bools:
    """[R, 32 * W] What each row may continue with."""
    assert isinstance(allowed, AllowedBits)
    return np.unpackbits(allowed.words.view(np.uint8), axis=1, bitorder="little").astype(np.bool_)


def ids_of(rows: ConstraintRows, row: int = 0) -> set[int]:
    """The tokens that one row may continue with."""
    return set(np.flatnonzero(may(rows.allowed().get())[row]).tolist())


def after(constraint: Constraint, tokens: Sequence[int]) -> ConstraintRows:
    """The one row's state after allowed tokens."""
    rows = constraint.rows()
    for token in tokens:
        assert token in ids_of(rows), f"{PIECES[token]!r} is not allowed"
        rows = rows.next(_ONE, np.array([token], np.int64))
    return rows


def spelled(text: str) -> list[int]:
    """A text byte by byte."""
    return list(text.encode())


def texts_of(tokens: I64 | Sequence[int]) -> bytes:
    """What tokens stand for."""
    return b"".join(PIECES[int(token)] for token in tokens)
