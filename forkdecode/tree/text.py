"""The texts of nodes. Along a path they are the path's text: a character that one node's bytes begin and
another's complete is text of the latter."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forkdecode.results import FinishReason
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.step import I64
from forkdecode.text.stop import ROOT
from forkdecode.text.token_bytes import TokenBytes
from forkdecode.tree_types import NodeReason


@dataclass(frozen=True, slots=True)
class TextState:
    """Where a path's text stands: the bytes of a character that is not complete, and whether a space
    that comes next would be dropped. A function of the path alone."""

    pending: bytes
    strips_space: bool

    @staticmethod
    def empty(tokens: TokenBytes) -> TextState:
        """Before any token."""
        return TextState(b"", tokens.strips_first_space)

    def read(self, data: bytes) -> tuple[str, TextState]:
        """The characters that `data` completes, and the state after it. What is no UTF-8 is U+FFFD."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.setstate((self.pending, 0))
        text = decoder.decode(data)
        strips = self.strips_space and not text
        if self.strips_space:
            text = text.removeprefix(" ")
        return text, TextState(decoder.getstate()[0], strips)

    def read_tokens(self, tokens: TokenBytes, token_ids: I64) -> tuple[str, TextState]:
        """The same of tokens."""
        return self.read(b"".join(map(tokens.of, token_ids.tolist())))


class NodeText:
    """A node's text as it is generated. What push() returned is never taken back: see text.Detokenizer,
    which does the same for a whole text."""

    def __init__(
        self,
        tokens: TokenBytes,
        request: DecodeRequest,
        state: TextState,
        step: Sequence[str],
        step_ids: frozenset[int] = frozenset(),
    ) -> None:
        """request: its stop strings are those of the caller, then those of `step`. step_ids: special tokens
        that `step` names, which have no text."""
        stops = [text.encode() for text in request.options.stop]
        self._tokens = tokens
        self._state = state
        self._stops, self._steps = stops[: len(stops) - len(step)], stops[len(stops) - len(step) :]
        self._include_stop = request.options.include_stop
        self._automaton = request.automaton
        self._ends = frozenset(np.concatenate([request.eos_ids, request.stop_ids]).tolist())
        self._at = ROOT
        self._held = bytearray()
        self._last_len = 0
        self._step_ids = step_ids
        self._last: int | None = None

    def push(self, token: int) -> str:
        """The text that has become certain with the next token."""
        piece = self._tokens.of(token)
        self._last = token
        certain = len(self._held) + (0 if token in self._ends else len(piece))
        if self._automaton is not None:
            for end, byte in enumerate(piece, len(self._held) + 1):
                self._at = self._automaton.step(self._at, byte)
                if length := self._automaton.match_length(self._at):
                    certain = min(certain, end - length)
            certain = min(certain, len(self._held) + len(piece) - self._automaton.depth(self._at))
        self._held += piece
        self._last_len = len(piece)
        return self._emit(certain)

    def finish(self, reason: FinishReason) -> tuple[str, NodeReason, TextState]:
        """The rest of the text, why the node ended, and the state after all its tokens."""
        keep, why = self._end(reason)
        text = self._emit(keep)
        return text, why, self._state.read(bytes(self._held))[1]

    def _end(self, reason: FinishReason) -> tuple[int, NodeReason]:
        everything = len(self._held)
        if reason == "stop":
            if (match := self._match(self._stops)) is not None:
                return match[self._include_stop], "stop"
            if self._last in self._step_ids or self._match(self._steps) is not None:
                return everything, "step"
        if reason in {"eos", "stop"}:
            # An item's last token is text, one that is there to end is not.
            return everything - (self._last_len if self._last in self._ends else 0), reason
        return everything, reason

    def _match(self, texts: Sequence[bytes]) -> tuple[int, int] | None:
        """Where the first of them that the last token completes begins and ends; of those that end
        together the longest."""
        found = []
        for text in texts:
            begin = self._held.find(text, max(0, len(self._held) - self._last_len - len(text) + 1))
            if begin >= 0:
                found.append((begin + len(text), begin))
        return min(found)[::-1] if found else None

    def _emit(self, count: int) -> str:
        text, self._state = self._state.read(bytes(self._held[:count]))
        del self._held[:count]
        self._last_len = min(self._last_len, len(self._held))
        return text
