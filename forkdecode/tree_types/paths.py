"""A node of a tree as a plain record that can be stored anywhere and imported into another session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from forkdecode.checks import check_float, check_int, check_token_ids, check_unicode, keep, shown
from forkdecode.constraint_types import CONSTRAINTS, ConstraintSpec, check_constraint
from forkdecode.errors import invalid
from forkdecode.types import MAX_SEED

MAX_COUNTED_SEED = 2**32
"""Seeds below are counted through, one for each draw that names none; those above are only names."""
PATH_REASONS = ("eos", "stop", "step", "length", "cancelled", "failed")


@dataclass(frozen=True, slots=True)
class NodePath:
    """Everything that a node's further results depend on.

    node, parent: numbers in the session that exported it. token_ids: the whole path. start: number of its
    tokens before the node's own; text, logprobs and cumulative_logprob are of its own tokens, with one
    logprob per token or none at all. lineage: the value its random draws are derived from. finished: nothing
    is decoded from it. constraint: the last one under which tokens of the path were decoded: those from
    constraint_start up to, but not including, constraint_end. If that is the end of the path, the constraint
    continues. item: the key of the catalogue item that it has completed.
    """

    model: str
    node: int
    parent: int | None
    token_ids: tuple[int, ...]
    start: int
    text: str
    lineage: int
    next_seed: int = 0
    finished: bool = False
    finish_reason: str | None = None
    cumulative_logprob: float = 0.0
    logprobs: tuple[float, ...] = ()
    constraint: ConstraintSpec | None = None
    constraint_start: int = 0
    constraint_end: int = 0
    item: str | None = None

    def __post_init__(self) -> None:
        keep(self, "model", check_unicode)
        keep(self, "node", check_int, 0)
        if self.parent is not None:
            keep(self, "parent", check_int, 0)
        keep(self, "token_ids", check_token_ids)
        if not self.token_ids:
            raise invalid("token_ids", "are none", "at least one")
        keep(self, "start", check_int, 0, len(self.token_ids))
        keep(self, "text", check_unicode)
        keep(self, "lineage", check_int, 0, MAX_SEED)
        keep(self, "next_seed", check_int, 0, MAX_COUNTED_SEED)
        keep(self, "cumulative_logprob", check_float)
        if not isinstance(self.finished, bool):
            raise invalid("finished", f"{shown(self.finished)} is not a boolean", "True or False")
        if self.finish_reason is not None and self.finish_reason not in PATH_REASONS:
            raise invalid(
                "finish_reason", f"{shown(self.finish_reason)} is unknown", f"None, {', '.join(PATH_REASONS)}"
            )
        numbers = tuple(check_float("logprobs", number) for number in self.logprobs)
        if numbers and len(numbers) != len(self.token_ids) - self.start:
            raise invalid("logprobs", f"are {len(numbers)}", "one for each of the node's own tokens, or none")
        object.__setattr__(self, "logprobs", numbers)
        if self.constraint is not None:
            keep(self, "constraint", check_constraint)
        if self.item is not None:
            keep(self, "item", check_unicode)
        lowest, highest = (0, 0) if self.constraint is None else (1, len(self.token_ids))
        keep(self, "constraint_start", check_int, lowest, max(lowest, highest - 1))
        keep(self, "constraint_end", check_int, self.constraint_start + lowest, highest)

    def to_json(self) -> dict[str, Any]:
        """A value that json.dumps accepts."""
        plain = asdict(self) | {"token_ids": list(self.token_ids), "logprobs": list(self.logprobs)}
        if self.constraint is not None:
            plain["constraint"] = {"kind": type(self.constraint).__name__, **asdict(self.constraint)}
        return plain

    @staticmethod
    def of_json(plain: Mapping[str, Any]) -> NodePath:
        """Restores what to_json returned. Raises InvalidRequestError naming the field at fault."""
        if not isinstance(plain, Mapping):
            raise invalid("paths", f"{shown(plain)} is no exported node", "what to_json returned")
        names = {f.name for f in fields(NodePath)}
        unknown = sorted(map(str, set(plain) - names))
        if unknown:
            raise invalid(unknown[0], "is not a field of an exported node", ", ".join(sorted(names)))
        try:
            return NodePath(**{**plain, "constraint": _constraint_of(plain.get("constraint"))})
        except TypeError as error:
            raise invalid(
                "paths", f"an exported node is incomplete: {error}", ", ".join(sorted(names))
            ) from error


def _constraint_of(plain: object) -> ConstraintSpec | None:
    """Raises InvalidRequestError, and TypeError for fields that it does not have."""
    if plain is None:
        return None
    kinds = {kind.__name__: kind for kind in CONSTRAINTS}
    kind = kinds.get(str(plain.get("kind"))) if isinstance(plain, Mapping) else None
    if kind is None or not isinstance(plain, Mapping):
        raise invalid("constraint", f"{shown(plain)} is no exported constraint", "what to_json returned")
    return kind(**{name: value for name, value in plain.items() if name != "kind"})
