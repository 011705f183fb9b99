"""Constraints along paths: where one began that goes on, and what ends it."""

from __future__ import annotations

import numpy as np

from forkdecode.constraint_types import ConstraintSpec, FromCatalogue
from forkdecode.constraints.continued import Standing, standing
from forkdecode.constraints.maker import needs_eos
from forkdecode.errors import InvalidRequestError, invalid
from forkdecode.requests.prepare import RequestMaker
from forkdecode.step import I64
from forkdecode.tree.node import TreeNode
from forkdecode.tree.path import Begun, Path

_NONE = np.empty(0, np.int64)


class Constraints:
    """Those of one session's paths."""

    def __init__(self, requests: RequestMaker) -> None:
        self._requests = requests

    def begun(self, node: TreeNode, constraint: ConstraintSpec | None) -> Begun | None:
        """Where it begins for what is decoded from the node: where it did on the node's path, if what was
        decoded under it there is not complete, else at the node's end. Raises InvalidRequestError for a
        path that it does not allow any more."""
        if constraint is None:
            return None
        begun, length = node.path.begun, node.path.length
        if begun is None or begun.constraint != constraint:
            return Begun(constraint, length)
        how = self._standing(begun, node.path, _NONE)
        if how == "broken":
            problem = f"does not allow how node {node.number} goes on after its first {begun.start} tokens"
            raise invalid("constraint", f"{problem}, where it began", "one that does, or another one")
        return Begun(constraint, begun.start if how == "open" else length)

    def after(self, path: Path, given: I64) -> Begun | None:
        """What goes on after given tokens of the constraint at the path's end: all of it if it allows them,
        else nothing."""
        begun = path.begun
        if begun is None:
            return None
        try:
            how = self._standing(begun, path, given)
        except InvalidRequestError:  # of a catalogue that is gone
            return None
        return Begun(begun.constraint, begun.start) if how == "open" else None

    def _standing(self, begun: Begun, path: Path, given: I64) -> Standing:
        ids = path.token_ids(begun.start)
        # A catalogue may have been exchanged since, and an imported path may be anything.
        known = len(ids) if begun.checked and not isinstance(begun.constraint, FromCatalogue) else 0
        if known == len(ids) + len(given):
            return "open"
        constraint = self._requests.constraint(begun.constraint, path.token_ids()[: begun.start])
        ends = self._requests.info.eos_ids if needs_eos(begun.constraint) else ()
        return standing(constraint, np.concatenate([ids, given]), known=known, ends=ends)
