"""The bytes that each token id stands for in running text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from forkdecode.step import I32, I64
from forkdecode.text.special_tokens import special_ids

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\u2581"


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer, fast or slow."""

    @property
    def all_special_ids(self) -> list[int]: ...

    def get_vocab(self) -> Mapping[Any, int]: ...

    def decode(self, token_ids: Any, skip_special_tokens: bool = ..., **kwargs: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """Bytes of V token ids, end to end: id i has flat[offsets[i] : offsets[i] + lengths[i]].

    Special tokens and ids that mean nothing have none. `flat` is padded by one byte, so
    that offsets of ids without any point into it. strips_first_space: whether the tokenizer drops a
    space at the very beginning of a text (not between a prompt and what follows it).
    """

    flat: NDArray[np.uint8]
    offsets: I64
    lengths: I32
    strips_first_space: bool = False
    _seen: dict[int, bytes] = field(default_factory=dict, repr=False, compare=False)
    """Of ids that have been asked for: cutting them out of `flat` takes ten times as long."""

    @property
    def vocab_size(self) -> int:
        return len(self.lengths)

    def of(self, token_id: int) -> bytes:
        """One token's bytes; none for an id outside the vocabulary."""
        found = self._seen.get(token_id)
        if found is not None:
            return found
        if not 0 <= token_id < len(self.lengths):
            return b""
        start = int(self.offsets[token_id])
        found = self.flat[start : start + int(self.lengths[token_id])].tobytes()
        self._seen[token_id] = found
        return found

    @staticmethod
    def build(pieces: Sequence[bytes], *, strips_first_space: bool = False) -> TokenBytes:
        """From the bytes of ids 0 .. V - 1."""
        lengths = np.fromiter(map(len, pieces), np.int32, len(pieces))
        flat = np.frombuffer(b"".join(pieces) + b"\0", np.uint8)
        ends = np.cumsum(lengths, dtype=np.int64)
        return TokenBytes(flat, ends - lengths, lengths, strips_first_space)


def token_bytes(tokenizer: Tokenizer, vocab_size: int = 0) -> TokenBytes:
    """The table of a tokenizer, at least `vocab_size` ids long (a model's logits can be wider).

    Byte-level BPE, sentencepiece with byte fallback, and vocabularies that are bytes already are
    read from the vocabulary, mistral-common's tells its tokens' bytes. Any other tokenizer is asked to
    decode each token after another one; what such a tokenizer does across tokens beyond that (joining,
    cleaning up) is not reproduced.
    """
    if (told := _mistral_common(tokenizer)) is not None:
        return TokenBytes.build(told + [b""] * (vocab_size - len(told)))
    vocab = tokenizer.get_vocab()
    size = max(vocab_size, 1 + max(vocab.values(), default=-1))
    special = special_ids(tokenizer)
    steps = _decoder_steps(tokenizer)
    pieces = [b""] * size
    regular = [(token, i) for token, i in vocab.items() if i not in special]
    if steps is None:
        spelled: Iterable[bytes] = _probe(tokenizer, [i for _, i in regular])
    else:
        spelled = _spell([token for token, _ in regular], steps)
    for (_, i), piece in zip(regular, spelled, strict=True):
        pieces[i] = piece
    return TokenBytes.build(pieces, strips_first_space=_strips(steps or []))


def _mistral_common(tokenizer: Tokenizer) -> list[bytes] | None:
    """The bytes of each id, by the tokenizer within transformers' own for mistral-common, whose vocabulary
    names parts of characters all alike; None for other tokenizers."""
    inner: Any = tokenizer
    for name in ("tokenizer", "instruct_tokenizer", "tokenizer"):
        inner = getattr(inner, name, None)
    spelled = getattr(inner, "id_to_byte_piece", None)
    return None if spelled is None else [spelled(i) for i in range(inner.n_words)]


Step = Mapping[str, Any]


def _decoder_steps(tokenizer: Tokenizer) -> list[Step] | None:
    """The decoder as a list of steps that we know, or None."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return _slow_steps(tokenizer)
    if backend.decoder is None:
        return None
    spec = json.loads(backend.decoder.__getstate__())
    steps = spec["decoders"] if spec["type"] == "Sequence" else [spec]
    return steps if all(_known(step) for step in steps) else None


def _known(step: Step) -> bool:
    if step["type"] == "Replace":
        return "String" in step["pattern"]
    return step["type"] in {"ByteLevel", "ByteFallback", "Fuse", "Strip", "Metaspace"}


def _slow_steps(tokenizer: Tokenizer) -> list[Step] | None:
    """What a tokenizer written in Python does, told by the attributes its family has."""
    if hasattr(tokenizer, "byte_decoder"):
        return [{"type": "ByteLevel"}]
    if hasattr(tokenizer, "sp_model"):
        return [{"type": "ByteFallback"}, {"type": "Metaspace", "replacement": _SPACE}]
    if any(isinstance(token, bytes) for token in tokenizer.get_vocab()):
        return []
    return None


def _strips(steps: Sequence[Step]) -> bool:
    return any(
        (step["type"] == "Strip" and step["content"] == " " and step["start"] > 0)
        or (step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
        for step in steps
    )


def _spell(tokens: Sequence[str | bytes], steps: Sequence[Step]) -> list[bytes]:
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return [token if isinstance(token, bytes) else _byte_level(token) for token in tokens]
    replacements = [_replacement(s) for s in steps if s["type"] in {"Replace", "Metaspace"}]
    fallback = "ByteFallback" in kinds
    return [
        token if isinstance(token, bytes) else _sentencepiece(token, replacements, fallback)
        for token in tokens
    ]


def _replacement(step: Step) -> tuple[str, str]:
    if step["type"] == "Metaspace":
        return step["replacement"], " "
    return step["pattern"]["String"], step["content"]


def _sentencepiece(token: str, replacements: Sequence[tuple[str, str]], fallback: bool) -> bytes:
    if fallback and (match := _BYTE_TOKEN.fullmatch(token)):
        return bytes([int(match[1], 16)])
    for old, new in replacements:
        token = token.replace(old, new)
    return token.encode("utf-8", "surrogatepass")


def _byte_alphabet() -> dict[int, str]:
    """GPT-2's printable characters for bytes, back to chr(byte) (openai/gpt-2, `bytes_to_unicode`).
    Characters below 256 that stand for no byte become one that latin-1 cannot encode."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    table = dict.fromkeys(others, "\U0010ffff")
    table.update({b: chr(b) for b in printable})
    table.update({256 + n: chr(b) for n, b in enumerate(others)})
    return table


_ALPHABET = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    try:
        return token.translate(_ALPHABET).encode("latin-1")
    except UnicodeEncodeError:
        # An added token that is spelled as plain text.
        return token.encode("utf-8", "surrogatepass")


def _probe(tokenizer: Tokenizer, ids: Sequence[int]) -> list[bytes]:
    """Each token as what it adds after a word."""

    def text(*tokens: int) -> str:
        return str(
            tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    anchor = next((i for i in ids if text(i).strip().isalnum()), None)
    if anchor is None:
        return [text(i).encode() for i in ids]
    before = text(anchor)
    pieces = (text(anchor, i) for i in ids)
    return [(p.removeprefix(before) if p.startswith(before) else p).encode() for p in pieces]
