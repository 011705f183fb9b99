"""From what a caller names to a constraint for one model's tokens."""

from __future__ import annotations

from collections.abc import Sequence

from forkdecode.allowed import Constraint
from forkdecode.constraint_types import ConstraintSpec, FromCatalogue
from forkdecode.errors import InvalidRequestError, invalid
from forkdecode.text.token_bytes import TokenBytes


class ConstraintMaker:
    """Makes constraints for one model. Safe to call from several threads.

    tokens: the bytes of every token; None where the model has no tokenizer. eos_ids: the model's.
    """

    def __init__(self, tokens: TokenBytes | None, vocab_size: int, eos_ids: Sequence[int]) -> None:
        self._tokens = tokens
        self._vocab_size = vocab_size
        self._eos_ids = tuple(eos_ids)

    def of(self, spec: ConstraintSpec) -> Constraint:
        """Raises InvalidRequestError for one that can't be had, naming "constraint" or a part of it."""
        if ends_by_eos(spec) and not self._eos_ids:
            problem = "only an EOS id ends its candidates, and this model has none"
            raise invalid("constraint", problem, "a catalogue with end='item', or None")
        if isinstance(spec, FromCatalogue):
            raise _unknown(spec)
        if self._tokens is None:
            raise invalid("constraint", "this model has no tokenizer", "a catalogue, or None")
        raise _unknown(spec)


def ends_by_eos(spec: ConstraintSpec) -> bool:
    """Whether nothing but an end-of-sequence id ends what follows the constraint."""
    return not isinstance(spec, FromCatalogue) or spec.end == "eos"


def _unknown(spec: ConstraintSpec) -> InvalidRequestError:
    return invalid("constraint", f"{type(spec).__name__} is not served here", "None")
