"""A seeded stream of requests: prompts of many lengths, all strategies, candidates from 1 to 8."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.prompts import PASSAGES
from forkdecode import Beam, BestOf, Greedy, Sample, Strategy

MAX_TOKENS = (8, 64)
WORDS = (5, 150)


@dataclass(frozen=True)
class Ask:
    """One request. options: keywords of Client.stream."""

    prompt: str
    strategy: Strategy
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return type(self.strategy).__name__


def traffic(
    seed: int, max_tokens: tuple[int, int] = MAX_TOKENS, words: tuple[int, int] = WORDS
) -> Iterator[Ask]:
    """Endless; equal for equal seeds. max_tokens, words (of prompts): least and most."""
    draw = random.Random(seed)
    while True:
        text = draw.choice(PASSAGES).split()
        start = draw.randrange(len(text) // 2)
        prompt = " ".join(text[start : start + draw.randint(*words)])
        options: dict[str, Any] = {"max_tokens": draw.randint(*max_tokens)}
        if draw.random() < 0.2:
            options["stop"] = ["."]
        if draw.random() < 0.2:
            options["logprobs"] = draw.choice((0, 3))
        if draw.random() < 0.2:
            options["repetition_penalty"] = 1.1
        yield Ask(prompt, _strategy(draw), options)


def _strategy(draw: random.Random) -> Strategy:
    seed = draw.randrange(2**32)
    return draw.choice(
        (
            Greedy,
            lambda: Sample(n=draw.randint(1, 8), temperature=0.8, top_p=0.95, seed=seed),
            lambda: BestOf(best_of=draw.randint(2, 8), seed=seed),
            lambda: Beam(width=draw.randint(2, 8)),
        )
    )()
