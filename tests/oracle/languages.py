"""Constraints as their definitions: which tokens may follow which, in plain sets."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from tests.oracle.beam_rule import Path


@dataclass(frozen=True)
class Items:
    """A catalogue. ends: what ends a candidate behind an item; none where an item ends by itself. least: of
    shorter items none is in the language."""

    items: frozenset[Path]
    ends: frozenset[int]
    least: int = 0

    def allowed(self, path: Path) -> Collection[int]:
        begun = [item for item in self._long_enough() if item[: len(path)] == path]
        follow = {item[len(path)] for item in begun if len(item) > len(path)}
        return follow | self.ends if path in self._long_enough() else follow

    def complete(self, path: Path) -> bool:
        return not self.ends and path in self._long_enough()

    def _long_enough(self) -> frozenset[Path]:
        return frozenset(item for item in self.items if len(item) >= self.least)


@dataclass(frozen=True)
class RandomFunction:
    """A caller's function: what it allows is drawn anew for each prompt and path, and never nothing."""

    seed: int
    vocab: int
    prompt: Path

    def allowed(self, path: Path) -> Collection[int]:
        return self.of((*self.prompt, *path))

    def of(self, tokens: Sequence[int]) -> list[int]:
        """At least one, each as likely as not."""
        digest = hashlib.sha256(repr((self.seed, list(tokens))).encode()).digest()
        kept = [t for t in range(self.vocab) if digest[t] % 2]
        return kept or [digest[-1] % self.vocab]

    def function(self, batch_id: int, input_ids: torch.Tensor) -> list[int]:
        """What transformers calls prefix_allowed_tokens_fn."""
        assert batch_id == 0
        return self.of(input_ids.tolist())

    def complete(self, path: Path) -> bool:
        return False


@dataclass(frozen=True)
class Texts:
    """A regular expression that matches so many texts, in bytes; tokens stand for `pieces`. ends: EOS and
    stop ids, which end a whole text and are no part of one, whatever they stand for."""

    texts: frozenset[bytes]
    pieces: tuple[bytes, ...]
    ends: frozenset[int]

    def allowed(self, path: Path) -> Collection[int]:
        read = b"".join(self.pieces[t] for t in path)
        follow = {
            token
            for token, piece in enumerate(self.pieces)
            if piece and token not in self.ends and any(text.startswith(read + piece) for text in self.texts)
        }
        return follow | self.ends if read in self.texts else follow

    def complete(self, path: Path) -> bool:
        return False
