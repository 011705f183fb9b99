"""What a constraint is to the scheduler and the sampler: which tokens each row may continue with.

Shapes: R rows, E entries, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class AllowedLists:
    """Row r may continue with tokens[start[r] : stop[r]], which ascend.

    tokens [E]: may be large, shared and mapped from a file; only the ranges are read. start, stop [R].
    ends [E]: a candidate that takes the entry is complete and ends there; None for none. also [R]: rows
    that may continue with any of also_ids [n] besides (end-of-sequence ids); None for none.
    """

    tokens: NDArray[np.int32]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    ends: NDArray[np.bool_] | None = None
    also: NDArray[np.bool_] | None = None
    also_ids: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class AllowedBits:
    """Row r may continue with token t if bit t % 32 of words[r, t // 32] is set. words [R, ceil(V / 32)]."""

    words: NDArray[np.uint32]


Allowed: TypeAlias = AllowedLists | AllowedBits


class AllowedSource(Protocol):
    """What is allowed in one step; it may still be in the making while the forward pass runs."""

    def get(self) -> Allowed:
        """Waits for it. Raises GroupFailedError when the constraint failed. Repeatable, any thread."""


@dataclass(frozen=True, slots=True)
class Ready:
    """An AllowedSource that is there already."""

    value: Allowed

    def get(self) -> Allowed:
        """What is allowed."""
        return self.value


class ConstraintRows(Protocol):
    """A constraint's state in each of a group's R rows. Immutable: a fork shares it."""

    def allowed(self) -> AllowedSource:
        """What each row may continue with."""

    def next(self, parents: NDArray[np.int32], tokens: NDArray[np.int64]) -> ConstraintRows:
        """The state of R' rows, of which row i continues row parents[i] with an allowed tokens[i]. Must
        not wait: what takes long is done elsewhere, and waited for by get()."""


@runtime_checkable
class Reading(Protocol):
    """A Constraint that reads many tokens better at once than by next()."""

    def after(self, tokens: NDArray[np.int64]) -> ConstraintRows:
        """rows() that have read tokens which are allowed."""


class Constraint(Protocol):
    """What one request's candidates must follow, from the first generated token on."""

    def rows(self) -> ConstraintRows:
        """The state of the one row that a group starts with."""
