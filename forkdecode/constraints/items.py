"""Which item of a catalogue a candidate is, and how long it must be to be one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from forkdecode.allowed import Constraint
from forkdecode.constraints.catalogue_rows import CatalogueConstraint
from forkdecode.constraints.continued import Continued
from forkdecode.errors import invalid


def item_key(constraint: Constraint | None, token_ids: Sequence[int]) -> str | None:
    """The key of the item that a candidate of these generated tokens has completed. None where it has
    completed none, or is held to no catalogue."""
    if isinstance(constraint, Continued):
        return item_key(constraint.constraint, (*constraint.tokens.tolist(), *token_ids))
    return constraint.key(token_ids) if isinstance(constraint, CatalogueConstraint) else None


def catalogue_digest(constraint: Constraint | None) -> str | None:
    """Of the catalogue that a constraint is of, if it is of one."""
    if isinstance(constraint, Continued):
        return catalogue_digest(constraint.constraint)
    return constraint.catalogue.info.digest if isinstance(constraint, CatalogueConstraint) else None


def without_short_items(constraint: Constraint, min_tokens: int) -> Constraint:
    """The constraint of a request that generates min_tokens tokens or more after those that it has read: of a
    catalogue only items that are so long are left."""
    if isinstance(constraint, Continued):
        inner = without_short_items(constraint.constraint, min_tokens and len(constraint.tokens) + min_tokens)
        return constraint if inner is constraint.constraint else replace(constraint, constraint=inner)
    if not isinstance(constraint, CatalogueConstraint) or min_tokens <= constraint.catalogue.info.shortest:
        return constraint
    constraint.catalogue.heights()  # here, where nobody waits for a step
    return replace(constraint, least=min_tokens)


def check_lengths(constraint: Constraint, min_tokens: int, max_tokens: int) -> None:
    """Raises InvalidRequestError where no item of a catalogue has a length that the request allows, so that
    nothing could come of it."""
    if not isinstance(constraint, CatalogueConstraint):
        return
    info, by_eos = constraint.catalogue.info, constraint.end == "eos"
    needed = info.shortest + by_eos
    if max_tokens < needed:
        problem = (
            f"{max_tokens} is below the {needed} tokens of the shortest item{' and EOS' if by_eos else ''}"
        )
        raise invalid("max_tokens", problem, f"at least {needed} with this catalogue")
    # Before min_tokens EOS is masked, and so are the last tokens of items that would end there.
    if min_tokens > info.depth:
        problem = f"{min_tokens} is above the {info.depth} tokens of the longest item"
        raise invalid("min_tokens", problem, f"at most {info.depth} with this catalogue")
