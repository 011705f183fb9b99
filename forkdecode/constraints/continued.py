"""Constraints that hold for tokens already there: of a tree's path, which is decoded on."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from forkdecode.allowed import Allowed, AllowedLists, Constraint, ConstraintRows, Reading
from forkdecode.step import I64

Standing: TypeAlias = Literal["open", "complete", "broken"]
"""open: more may follow. complete: it ended with one of the tokens. broken: a token was not allowed,
or came after the last."""
_SAME = np.zeros(1, np.int32)


@dataclass(frozen=True, slots=True)
class Continued:
    """`constraint` where `tokens` [n], all of them allowed, are there."""

    constraint: Constraint
    tokens: I64

    def rows(self) -> ConstraintRows:
        """The state after them."""
        if isinstance(self.constraint, Reading):
            return self.constraint.after(self.tokens)
        rows = self.constraint.rows()
        for at in range(len(self.tokens)):
            rows = rows.next(_SAME, self.tokens[at : at + 1])
        return rows


def continued(constraint: Constraint, prompt: I64, start: int | None) -> Constraint:
    """What a request with this constraint_start is held to."""
    return constraint if start is None or start == len(prompt) else Continued(constraint, prompt[start:])


def standing(constraint: Constraint, tokens: I64, *, known: int = 0, ends: Container[int] = ()) -> Standing:
    """How the constraint stands after `tokens`, of which the first `known` are known to be allowed and to
    end nothing. ends: end-of-sequence ids. Raises GroupFailedError when the constraint fails; may wait."""
    return progress(constraint, tokens, known=known, ends=ends)[0]


def progress(
    constraint: Constraint, tokens: I64, *, known: int = 0, ends: Container[int] = ()
) -> tuple[Standing, int]:
    """standing(), and how many of the tokens come before the first that may not be where it is."""
    rows = Continued(constraint, tokens[:known]).rows()
    for at in range(known, len(tokens)):
        token = int(tokens[at])
        is_last = _ends(rows.allowed().get(), token)
        if is_last is None:
            return "broken", at
        if is_last or token in ends:
            return ("complete" if at + 1 == len(tokens) else "broken"), at + 1
        rows = rows.next(_SAME, tokens[at : at + 1])
    return "open", len(tokens)


def _ends(allowed: Allowed, token: int) -> bool | None:
    """Whether one row's candidate ends by taking the token; None where it may not take it."""
    if not isinstance(allowed, AllowedLists):
        word = int(allowed.words[0, token // 32]) if token // 32 < allowed.words.shape[1] else 0
        return False if word >> token % 32 & 1 else None
    start, stop = int(allowed.start[0]), int(allowed.stop[0])
    at = start + int(np.searchsorted(allowed.tokens[start:stop], token))
    if at < stop and allowed.tokens[at] == token:
        return allowed.ends is not None and bool(allowed.ends[at])
    if allowed.also is None or allowed.also_ids is None or not allowed.also[0]:
        return None
    return False if token in allowed.also_ids else None
