"""What a search returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from forkdecode.search.branch import Branch
from forkdecode.search.budget import Limit, Spent

Ending: TypeAlias = Literal["policy"] | Limit
"""policy: it wanted nothing more. Else the bound of the budget that ended the search."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """finished: whole answers, in the policy's order, best first. unfinished: the open and cut branches that
    were left at the end, without those that were pruned or went on; never among the finished."""

    finished: tuple[Branch, ...]
    unfinished: tuple[Branch, ...]
    spent: Spent
    ended: Ending

    @property
    def best(self) -> Branch | None:
        """The best finished branch; None if none finished."""
        return self.finished[0] if self.finished else None
