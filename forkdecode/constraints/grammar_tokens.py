"""A model's tokens as llguidance wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from llguidance import LLTokenizer
from numpy.typing import NDArray

from forkdecode.step import I64
from forkdecode.text.token_bytes import TokenBytes

Words = NDArray[np.uint32]
_SPACE = b" "


@dataclass(frozen=True, slots=True)
class OpeningTokens:
    """The first token of a text whose first space is dropped: "\u2581Hello" reads "Hello" there.

    The tokenizer has each token that begins with a space a second time without it, at id `shift` + its own.
    consumed [V]: the id that stands for a token there; -1 where nothing is left of it. spaced, alone:
    tokens that begin with a space, and that are nothing else.
    """

    shift: int
    consumed: I64
    spaced: Words
    alone: Words

    def allowed(self, mask: Words) -> Words:
        """[R, W] What may come first, of the masks [R, 2 W] of both kinds of tokens."""
        width = self.shift // 32
        return (mask[:, :width] & ~self.spaced) | mask[:, width : 2 * width] | self.alone


@dataclass(frozen=True, slots=True)
class GrammarTokens:
    """One vocabulary. width: the words of 32 bits of a mask over its ids; full_width: of one over all ids
    of the tokenizer, which begin with them. eos: words with the bits of all EOS ids."""

    tokenizer: LLTokenizer
    width: int
    full_width: int
    eos: Words
    opening: OpeningTokens | None = None


class _Vocabulary:
    """What LLTokenizer reads. Special tokens are never part of a text, nor are those without bytes."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, pieces: Sequence[bytes], special: Mapping[int, bytes], eos_id: int) -> None:
        self.tokens = [special.get(i, piece) for i, piece in enumerate(pieces)]
        self.special_token_ids = sorted(special)
        self.eos_token_id = eos_id

    def __call__(self, text: object) -> list[int]:
        # Grammars are compiled with no_forcing: no text is ever tokenized.
        raise NotImplementedError("a grammar's text is not tokenized")


def grammar_tokens(
    tokens: TokenBytes,
    vocab_size: int,
    eos_ids: Sequence[int],
    names: Mapping[int, str] | None = None,
    *,
    opening: bool = False,
) -> GrammarTokens:
    """The first `vocab_size` tokens. EOS ids are special whatever bytes they have.

    names: of tokens without bytes, by which grammars may ask for them. opening: whether the generated text
    begins the whole text, so that its first space is dropped.
    """
    names = names or {}
    pieces = [tokens.of(i) for i in range(vocab_size)]
    for eos in eos_ids:
        pieces[eos] = b""
    special = {eos: f"<|{eos}|>".encode() for eos in eos_ids}
    special |= {i: name.encode() for i, name in names.items() if i < vocab_size and not pieces[i]}
    width = -(-vocab_size // 32)
    first = None
    if opening:
        first = _opening(pieces, width)
        pieces += [b""] * (first.shift - vocab_size)
        pieces += [p[1:] if p.startswith(_SPACE) else b"" for p in pieces[:vocab_size]]
    tokenizer = LLTokenizer(_Vocabulary(pieces, special, eos_ids[0]), eos_token=list(eos_ids))  # type: ignore[arg-type]
    return GrammarTokens(tokenizer, width, -(-len(pieces) // 32), bits(eos_ids, width), first)


def bits(ids: Sequence[int] | I64, width: int) -> Words:
    """[width] Words with the bits of `ids` set."""
    words = np.zeros(width, np.uint32)
    chosen = np.asarray(ids, np.int64)
    np.bitwise_or.at(words, chosen // 32, np.uint32(1) << (chosen % 32).astype(np.uint32))
    return words


def _opening(pieces: Sequence[bytes], width: int) -> OpeningTokens:
    shift = 32 * width
    consumed = np.arange(len(pieces), dtype=np.int64)
    spaced = np.array([i for i, piece in enumerate(pieces) if piece.startswith(_SPACE)], np.int64)
    alone = np.array([i for i, piece in enumerate(pieces) if piece == _SPACE], np.int64)
    consumed[spaced] += shift
    consumed[alone] = -1
    return OpeningTokens(shift, consumed, bits(spaced, width), bits(alone, width))
