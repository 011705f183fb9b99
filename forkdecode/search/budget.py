"""What a search may spend, and how expansions are made to fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from forkdecode.checks import check_float, check_int, keep
from forkdecode.search.work import Expand

Limit: TypeAlias = Literal["tokens", "nodes", "seconds"]


@dataclass(frozen=True, slots=True)
class Budget:
    """Upper bounds for one search; None: no bound. tokens: generated tokens over all branches. nodes:
    generated branches. seconds: after which running decodes are stopped where they are; a running verifier is
    awaited. The first two are never exceeded, not even by one."""

    tokens: int | None = None
    nodes: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "nodes"):
            if getattr(self, name) is not None:
                keep(self, name, check_int, 0)
        if self.seconds is not None:
            keep(self, "seconds", check_float, 0.0)


@dataclass(frozen=True, slots=True)
class Spent:
    """What a search has used. scored: branches that the verifier was asked about."""

    tokens: int = 0
    nodes: int = 0
    seconds: float = 0.0
    scored: int = 0


@dataclass(slots=True)
class Wanted:
    """What is left of an expansion. longest, least: the most tokens that one child can take, and the fewest
    that it must be allowed."""

    expand: Expand
    longest: int
    left: int
    least: int = 1


@dataclass(frozen=True, slots=True)
class Part:
    """So many children of the wanted expansion `index`, of at most so many tokens each."""

    index: int
    n: int
    tokens: int


def fit(wanted: Sequence[Wanted], budget: Budget, spent: Spent) -> list[Part]:
    """The next expansions, in order, that cannot exceed the budget even if every child takes all the tokens
    it may; `wanted` is reduced by them. When no child fits whole, one is given what is left. Empty: nothing
    is wanted, or what is left is too little."""
    tokens = math.inf if budget.tokens is None else budget.tokens - spent.tokens
    nodes = math.inf if budget.nodes is None else budget.nodes - spent.nodes
    parts: list[Part] = []
    for index, want in enumerate(wanted):
        if want.left == 0:
            continue
        n = int(min(want.left, nodes, tokens // want.longest))
        longest = want.longest
        if n == 0 and tokens < want.least:
            continue
        if n == 0 and not parts and nodes >= 1:
            n, longest = 1, int(tokens)
        if n == 0:
            break
        parts.append(Part(index, n, longest))
        want.left -= n
        tokens -= n * longest
        nodes -= n
        if want.left:
            break
    return parts


def exhausted(budget: Budget, spent: Spent) -> Limit | None:
    """The bound that has been reached, if one has."""
    if budget.seconds is not None and spent.seconds >= budget.seconds:
        return "seconds"
    if budget.nodes is not None and spent.nodes >= budget.nodes:
        return "nodes"
    if budget.tokens is not None and spent.tokens >= budget.tokens:
        return "tokens"
    return None
