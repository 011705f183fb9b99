"""What a row of the matrix is: an option, a setting or a way to use results, and what shows its effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from forkdecode import (
    LLM,
    Beam,
    BestOf,
    Client,
    DecodeResult,
    DiverseBeam,
    Greedy,
    Sample,
    StochasticBeam,
    Strategy,
)
from tests.llm.models import PROMPT

Decoder: TypeAlias = LLM | Client
Check: TypeAlias = Callable[[Decoder, Any], None]
"""Decodes by a strategy and asserts that the option had its effect."""

STRATEGIES: dict[str, Strategy] = {
    "Greedy": Greedy(),
    "Sample": Sample(n=3, seed=11, temperature=0.8),
    "BestOf": BestOf(best_of=4, n=3, seed=12),
    "Beam": Beam(width=3),
    "DiverseBeam": DiverseBeam(width=4, groups=2),
    "StochasticBeam": StochasticBeam(width=3, seed=13),
}
BEAMS = ("Beam", "DiverseBeam", "StochasticBeam")
DRAWN = ("Sample", "BestOf", "StochasticBeam")
MAX = 6
NOT_THERE = "\N{EN DASH}"


@dataclass(frozen=True)
class Refusal:
    """A strategy refuses the row by InvalidRequestError that names `field`, because `why`."""

    field: str
    why: str


@dataclass(frozen=True)
class Row:
    """name: as the table shows it. only: the strategies that have such a setting. refused: by strategy.
    remote: why a client refuses it, if it does; None where it works by a server as it does in process."""

    name: str
    check: Check
    only: tuple[str, ...] = tuple(STRATEGIES)
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    remote: Refusal | None = None

    def cell(self, strategy: str) -> str:
        """What the table says."""
        if strategy not in self.only:
            return NOT_THERE
        return "refused" if strategy in self.refused else "yes"


def plain(llm: Decoder, strategy: Strategy, **options: Any) -> DecodeResult:
    """Of the one prompt, MAX tokens, whatever EOS ids come, unless options say otherwise."""
    return llm.decode(PROMPT, strategy, **{"max_tokens": MAX, "ignore_eos": True, **options})


def generated(result: DecodeResult) -> list[tuple[int, ...]]:
    """Each candidate's tokens."""
    return [c.token_ids for c in result.candidates]


def ngrams(tokens: tuple[int, ...], n: int) -> list[tuple[int, ...]]:
    """All there are, in order."""
    return [tokens[i : i + n] for i in range(len(tokens) - n + 1)]
