"""Ask and tell: what a policy wants done, and what came of it. A policy does nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from forkdecode.checks import check_bool, check_int, check_unicode, keep, shown
from forkdecode.errors import invalid
from forkdecode.search.branch import Branch
from forkdecode.types import MAX_COUNT, Sample

Scored: TypeAlias = Literal["all", "finished", "none"]


@dataclass(frozen=True, slots=True)
class How:
    """How children are made. whole: to their end; else by one step. after: a text given first, such as a
    request to try again: a finished branch can then go on too. sample: in place of the search's."""

    whole: bool = False
    after: str = ""
    sample: Sample | None = None

    def __post_init__(self) -> None:
        keep(self, "whole", check_bool)
        keep(self, "after", check_unicode)
        if self.sample is not None and not isinstance(self.sample, Sample):
            raise invalid("sample", f"{shown(self.sample)} is no Sample", "Sample(...) or None")


@dataclass(frozen=True, slots=True)
class Expand:
    """Wanted: n children of a branch. score: which of them the verifier is asked about."""

    node: int
    n: int = 1
    how: How = field(default_factory=How)
    score: Scored = "all"

    def __post_init__(self) -> None:
        keep(self, "node", check_int, 0)
        keep(self, "n", check_int, 1, MAX_COUNT)
        if self.score not in ("all", "finished", "none"):
            raise invalid("score", f"{shown(self.score)} is unknown", "'all', 'finished' or 'none'")


@dataclass(frozen=True, slots=True)
class Work:
    """All that is wanted next, done together; without expansions the search is over. prune: branches that
    the policy will not ask about again, nor about what comes after them."""

    expand: tuple[Expand, ...] = ()
    prune: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Expanded:
    """What came of an expansion: its children, fewer than wanted where the budget or the longest path that
    is allowed left no room."""

    expand: Expand
    children: tuple[Branch, ...]


class Policy(Protocol):
    """A search strategy: the same answers for the same results, no input or output of its own.

    begin(root), then ask(), tell(), ask(), ... until ask() wants nothing. One object may run one search
    after another.
    """

    def begin(self, root: Branch) -> None:
        """Forgets all, and starts from `root`."""

    def ask(self) -> Work:
        """What to do next."""

    def tell(self, results: Sequence[Expanded]) -> None:
        """The results of all expansions of the last ask(), in its order."""

    def ranked(self) -> Sequence[Branch]:
        """The finished branches found so far, best first. At any time."""


def children_of(results: Sequence[Expanded]) -> list[Branch]:
    """Those of all expansions, in order."""
    return [child for result in results for child in result.children]
