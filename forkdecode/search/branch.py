"""A node of a tree as a search sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from forkdecode.tree_types import NodeReason

BranchState: TypeAlias = Literal["open", "finished", "cut"]
"""finished: the model ended it, by EOS or a stop text. open: it can go on. cut: it cannot, for it has as many
tokens as a path may have or the model has positions for, or none is legal after them ("failed"), and yet it
is not finished."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A path from the search's root, and what is known about it. id, parent: numbers of the tree's nodes; the
    parent of the search's root is None, whatever it is in the tree.

    text, token_ids, logprob: its own, after its parent; logprob is the sum over its tokens. completion: the
    text generated since the root, or since the last text given on the way. transcript: all text after the
    root. path_tokens, path_logprob: of everything generated after the root. item: the key of the catalogue
    item that it completes, if it was decoded under one. scores: the verifier's scores along the path, from
    the first node it was asked about; the last is this branch's own if `is_scored`.
    """

    id: int
    parent: int | None
    depth: int
    state: BranchState
    text: str = ""
    completion: str = ""
    transcript: str = ""
    token_ids: tuple[int, ...] = ()
    path_tokens: int = 0
    logprob: float = 0.0
    path_logprob: float = 0.0
    finish_reason: NodeReason | None = None
    scores: tuple[float, ...] = ()
    is_scored: bool = False
    item: str | None = None

    @property
    def is_finished(self) -> bool:
        """Whether it is a whole answer."""
        return self.state == "finished"

    @property
    def score(self) -> float | None:
        """The verifier's score of this branch; None if it was not asked."""
        return self.scores[-1] if self.is_scored else None
