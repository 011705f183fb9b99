"""Paths of tokens that share what they have in common, and the KV blocks that they refer to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from forkdecode.constraint_types import ConstraintSpec
from forkdecode.step import F32, I64


@dataclass(frozen=True, slots=True)
class Begun:
    """A constraint that holds for the tokens of a path after the first `start`; checked: that it allows them
    is known, not only said."""

    constraint: ConstraintSpec
    start: int
    checked: bool = True


class Path:
    """The tokens before + ids. Never changes; split() only says the same in two pieces.

    logprobs: one a token of `ids`, or None where they were given. begun: the constraint that `ids`, and
    maybe tokens before them, follow. holders: how many pieces that follow, and nodes whose KV ends here,
    refer to its blocks; ends: how many of these are nodes.
    """

    __slots__ = ("before", "begun", "ends", "holders", "ids", "logprobs", "start")

    def __init__(
        self, before: Path | None, ids: I64, logprobs: F32 | None = None, begun: Begun | None = None
    ) -> None:
        self.before = before
        self.ids = ids
        self.logprobs = logprobs
        self.begun = begun
        self.start = 0 if before is None else before.length
        self.holders = 0
        self.ends = 0

    @property
    def length(self) -> int:
        """Tokens in all."""
        return self.start + len(self.ids)

    def token_ids(self, start: int = 0) -> I64:
        """All but the first `start`."""
        pieces = [piece.ids[max(0, start - piece.start) :] for piece in self._pieces(start)]
        return np.concatenate(pieces[::-1]) if pieces else np.empty(0, np.int64)

    def token_logprobs(self, start: int = 0) -> list[float]:
        """Those of token_ids(start); 0 where the tokens were given."""
        found: list[float] = []
        for piece in reversed(list(self._pieces(start))):
            own = np.zeros(len(piece.ids), np.float32) if piece.logprobs is None else piece.logprobs
            found += own[max(0, start - piece.start) :].tolist()
        return found

    def last_begun(self) -> tuple[Begun | None, int]:
        """The last constraint on the path, and how many tokens there are up to the last of its own: all of
        them where it goes on; 0 without one."""
        piece: Path | None = self
        while piece is not None and piece.begun is None:
            piece = piece.before
        return (None, 0) if piece is None else (piece.begun, piece.length)

    def up_to(self, length: int) -> Path:
        """The first `length` tokens, at least 1, as a path that shares them with this one."""
        piece = self
        while piece.before is not None and piece.start >= length:
            piece = piece.before
        return piece if piece.length == length else piece._split(length)

    def _split(self, length: int) -> Path:
        at = length - self.start
        logprobs = None if self.logprobs is None else self.logprobs[:at]
        first = Path(self.before, self.ids[:at], logprobs, self.begun)
        first.holders = 1 if self.holders else 0
        self.before, self.start, self.ids = first, length, self.ids[at:]
        if self.logprobs is not None:
            self.logprobs = self.logprobs[at:]
        return first

    def _pieces(self, start: int) -> Iterator[Path]:
        """From the last one back to the one that has token `start`."""
        piece: Path | None = self
        while piece is not None and piece.length > start:
            yield piece
            piece = piece.before


class BlockCount:
    """How many blocks of S tokens those paths refer to that are held, each block once."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self.total = 0

    def hold(self, path: Path) -> None:
        """One holder more."""
        path.ends += 1
        if path.ends == 1:
            self.total += self._open_end(path)
        piece: Path | None = path
        while piece is not None:
            piece.holders += 1
            if piece.holders > 1:
                break
            self.total += self._full(piece)
            piece = piece.before

    def release(self, path: Path) -> None:
        """One holder less."""
        path.ends -= 1
        if not path.ends:
            self.total -= self._open_end(path)
        piece: Path | None = path
        while piece is not None:
            piece.holders -= 1
            if piece.holders:
                break
            self.total -= self._full(piece)
            piece = piece.before

    def cost(self, paths: Iterable[Path]) -> int:
        """How many blocks more hold() of all of them would count."""
        found, ends, seen = 0, set[Path](), set[Path]()
        for path in paths:
            if not path.ends and path not in ends:
                found += self._open_end(path)
                ends.add(path)
            piece: Path | None = path
            while piece is not None and not piece.holders and piece not in seen:
                found += self._full(piece)
                seen.add(piece)
                piece = piece.before
        return found

    def most(self, length: int, tokens: int) -> int:
        """Blocks that `tokens` more tokens after `length` can take, the copy of a partial one included."""
        return -(-(length % self._size + tokens) // self._size) + 1

    def _full(self, piece: Path) -> int:
        return piece.length // self._size - piece.start // self._size

    def _open_end(self, path: Path) -> int:
        return 1 if path.length % self._size else 0
