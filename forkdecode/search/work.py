"""Ask and tell: what a policy asks for, and the results it receives. A policy does nothing itself."""

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
    """How children are made. whole: to their end, instead of one step. after: a text given first, such as a
    request to try again, with which a finished branch can be continued too. sample: replaces the search's."""

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
    """A request for n children of a branch. score: which of them the verifier is asked about."""

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
    """Everything requested next, done together; without expansions the search is over. prune: branches that
    the policy will not ask about again, nor about their descendants."""

    expand: tuple[Expand, ...] = ()
    prune: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Expanded:
    """The result of an expansion: its children, fewer than requested if the budget or the longest allowed
    path left no room. is_stuck: no token is legal after the branch, or after the text given to it: it will
    have no more children by this expansion."""

    expand: Expand
    children: tuple[Branch, ...]
    is_stuck: bool = False


class Policy(Protocol):
    """A search strategy: deterministic, with no input or output of its own.

    begin(root), then ask(), tell(), ask(), ... until ask() requests nothing. One object may run one search
    after another.
    """

    def begin(self, root: Branch) -> None:
        """Forgets everything, and starts from `root`."""

    def ask(self) -> Work:
        """What to do next."""

    def tell(self, results: Sequence[Expanded]) -> None:
        """Receives the results of all expansions of the last ask(), in its order."""

    def ranked(self) -> Sequence[Branch]:
        """The finished branches found so far, best first. At any time."""


def children_of(results: Sequence[Expanded]) -> list[Branch]:
    """Those of all expansions, in order."""
    return [child for result in results for child in result.children]
