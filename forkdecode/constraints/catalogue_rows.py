"""A catalogue as a constraint: where in the trie each of a group's rows stands.

A step is some microseconds for hundreds of rows: less than handing it to another thread would take, so
nothing of it is computed ahead while the forward pass runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from forkdecode.allowed import AllowedLists, ConstraintRows, Ready
from forkdecode.constraints.catalogue import Catalogue
from forkdecode.errors import GroupFailedError


@dataclass(frozen=True, slots=True, eq=False)
class CatalogueConstraint:
    """The generated tokens are an item, followed by one of eos_ids [n] where `end` is "eos". least: items of
    fewer tokens are left out."""

    catalogue: Catalogue
    end: Literal["eos", "item"]
    eos_ids: NDArray[np.int64]
    least: int = 0

    def rows(self) -> ConstraintRows:
        """One row, at the root."""
        return CatalogueRows(self, np.zeros(1, np.int64), 0)

    def key(self, tokens: Sequence[int]) -> str | None:
        """The key of the item that a candidate consists of, None where it is none, or not a whole one."""
        ended = self.end == "eos" and len(tokens) > 0 and tokens[-1] in self.eos_ids.tolist()
        return self.catalogue.key(tokens[:-1] if ended else tokens)


@dataclass(frozen=True, slots=True, eq=False)
class CatalogueRows:
    """nodes [R] int64: where each row stands; -1 where it has ended. depth: tokens that each has read."""

    constraint: CatalogueConstraint
    nodes: NDArray[np.int64]
    depth: int

    def allowed(self) -> Ready:
        """The children of each row's node, where they lie in the catalogue: nothing is copied, except while
        items of too few tokens are left out."""
        told = self._children()
        too_few = self.constraint.least - self.depth
        return Ready(told if too_few <= 0 else self._long_enough(told, too_few))

    def _children(self) -> AllowedLists:
        catalogue, end = self.constraint.catalogue, self.constraint.end
        at = np.maximum(self.nodes, 0)
        start = catalogue.offsets[at].astype(np.int64)
        # A row that has ended stands nowhere: its range is empty.
        stop = np.where(self.nodes < 0, start, catalogue.offsets[at + 1])
        if end == "item":
            return AllowedLists(catalogue.tokens, start, stop, ends=catalogue.complete)
        also = catalogue.complete[at] & (self.nodes >= 0)
        eos = self.constraint.eos_ids
        return AllowedLists(catalogue.tokens, start, stop, also=also, also_ids=eos)

    def _long_enough(self, told: AllowedLists, missing: int) -> AllowedLists:
        """Of what `told` has, copied, the children with which an item goes on for `missing` tokens or more;
        none ends here."""
        catalogue = self.constraint.catalogue
        count = told.stop - told.start
        edges = np.cumsum([0, *count])
        at = np.arange(edges[-1]) + np.repeat(told.start - edges[:-1], count)
        kept = catalogue.heights()[at] >= missing - 1
        edges, at = np.concatenate([[0], np.cumsum(kept)])[edges], at[kept]
        return AllowedLists(
            catalogue.tokens[at],
            edges[:-1],
            edges[1:],
            None if told.ends is None else catalogue.complete[at],
            None if told.also is None else np.zeros_like(told.also),
            told.also_ids,
        )

    def next(self, parents: NDArray[np.int32], tokens: NDArray[np.int64]) -> CatalogueRows:
        """See ConstraintRows. Raises GroupFailedError for a token that is not allowed."""
        # Here, because the front end of a service makes constraints but seldom moves them, and numba is big.
        from forkdecode_kernels.trie import step_down

        catalogue = self.constraint.catalogue
        nodes = step_down(catalogue.tokens, catalogue.offsets, self.nodes, parents, tokens)
        gone = np.flatnonzero(nodes < 0)
        if len(gone) and not self._end(self.nodes[parents[gone]], tokens[gone]):
            problem = f"one of the tokens {tokens[gone].tolist()} continues no item"
            raise GroupFailedError(problem, field="constraint")
        return CatalogueRows(self.constraint, nodes, self.depth + 1)

    def _end(self, nodes: NDArray[np.int64], tokens: NDArray[np.int64]) -> bool:
        """Whether each of these tokens ends an item that is complete at its node."""
        if self.constraint.end == "item" or bool((nodes < 0).any()):
            return False
        return bool(
            self.constraint.catalogue.complete[nodes].all() & np.isin(tokens, self.constraint.eos_ids).all()
        )
