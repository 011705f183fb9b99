"""Text from tokens as they come: whole characters, and nothing that a stop string may yet take back."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence

from forkdecode.results import FinishReason
from forkdecode.text.stop import ROOT, StopAutomaton
from forkdecode.text.token_bytes import TokenBytes

_Utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """One candidate's text: that of its generated tokens as the continuation of the prompt.

    What push() returned is never taken back. Held back until decided are: the bytes of an
    incomplete character, a possible beginning of a stop string, a complete one (it may come too
    early to count), and the text of a token in `ending_ids`. Bytes that are no UTF-8 become U+FFFD.
    Special tokens have no text.
    """

    def __init__(
        self,
        tokens: TokenBytes,
        prompt: Sequence[int] = (),
        *,
        stop: StopAutomaton | None = None,
        ending_ids: Collection[int] = (),
        include_stop: bool = False,
    ) -> None:
        self._tokens = tokens
        self._stop = stop
        self._ending_ids = ending_ids
        self._include_stop = include_stop
        self._state = ROOT
        self._decoder = _Utf8("replace")
        self._pending = bytearray()
        self._last_len = 0
        """How many of the pending bytes the last token brought."""
        self._last_ends = False
        """Whether that token is in ending_ids."""
        self._match: tuple[int, int] | None = None
        """Where in the pending bytes the first stop string stands that ended in the last token."""
        self._strip_space = tokens.strips_first_space and not any(tokens.of(i) for i in prompt)
        self._open = self._strip_space
        """Whether more than the next token's bytes decides on the next text; stop strings aside."""

    def copy(self) -> Detokenizer:
        """Another that has read the same and goes on by itself."""
        twin = object.__new__(Detokenizer)
        twin.__dict__.update(self.__dict__)
        twin._decoder = _Utf8("replace")
        twin._decoder.setstate(self._decoder.getstate())
        twin._pending = self._pending.copy()
        return twin

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that has become certain with `token_ids`; they may include the one that ends it,
        as the last."""
        if not len(token_ids):
            return ""
        if self._stop is None and not self._open and len(token_ids) == 1:
            # Nearly every token: whole characters of ASCII after whole characters.
            piece = self._tokens.of(token_ids[0])
            if piece.isascii() and token_ids[0] not in self._ending_ids:
                return piece.decode("ascii")
        for token in token_ids:
            self._read(self._tokens.of(int(token)))
        self._last_ends = token_ids[-1] in self._ending_ids
        text = self._emit(self._certain())
        self._open = bool(self._strip_space or self._pending or self._decoder.getstate()[0])
        return text

    def finish(self, reason: FinishReason) -> str:
        """The rest. After eos or stop without the EOS or stop token's text, if it was one that ended it and
        not an item's last; of a stop string nothing stays, or with include_stop all of it but nothing after
        it."""
        keep = len(self._pending)
        if reason == "stop" and self._match is not None:
            keep = self._match[self._include_stop]
        elif reason in {"eos", "stop"} and self._last_ends:
            keep -= self._last_len
        text = self._emit(keep, final=True)
        self._pending.clear()
        return text

    def _read(self, piece: bytes) -> None:
        self._match = None
        if self._stop is not None:
            for end, byte in enumerate(piece, len(self._pending) + 1):
                self._state = self._stop.step(self._state, byte)
                length = self._stop.match_length(self._state)
                if length and self._match is None:
                    self._match = (end - length, end)
        self._pending += piece
        self._last_len = len(piece)

    def _certain(self) -> int:
        """How many pending bytes are text whatever comes next."""
        count = len(self._pending)
        if self._last_ends:
            count -= self._last_len
        if self._stop is not None:
            count = min(count, len(self._pending) - self._stop.depth(self._state))
            if self._match is not None:
                count = min(count, self._match[0])
        return count

    def _emit(self, count: int, *, final: bool = False) -> str:
        text = self._decoder.decode(bytes(self._pending[:count]), final)
        del self._pending[:count]
        self._last_len = min(self._last_len, len(self._pending))
        if self._match is not None:
            self._match = (self._match[0] - count, self._match[1] - count)
        if self._strip_space and text:
            self._strip_space = False
            text = text.removeprefix(" ")
        return text
