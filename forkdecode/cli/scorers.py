"""Scorers of hypotheses as flags and lines of JSON name them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from forkdecode.checks import shown
from forkdecode.errors import invalid
from forkdecode.types import Contrastive, HypothesisScorer, LengthNormalised

SCORERS: Mapping[str, type[LengthNormalised] | type[Contrastive]] = {
    "length_normalised": LengthNormalised,
    "contrastive": Contrastive,
}
"""As the protocol names them."""
_ALLOWED = 'length_normalised, {"length_normalised": {"alpha": 0.6}} or {"contrastive": {"baseline": [...]}}'


def read_scorer(value: Any) -> HypothesisScorer | None:
    """`value` is a name, for the defaults; or {name: {setting: value}}, which may be its JSON text.

    Raises InvalidRequestError.
    """
    if value is None:
        return None
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise invalid("scorer", f"is not JSON ({error})", _ALLOWED) from None
    named = {value: {}} if isinstance(value, str) else value
    if not isinstance(named, Mapping) or len(named) != 1:
        raise invalid("scorer", f"{shown(value)} is not a scorer", _ALLOWED)
    [(name, settings)] = named.items()
    kind = SCORERS.get(name)
    if kind is None or not isinstance(settings, Mapping):
        raise invalid("scorer", f"{shown(value)} is not a scorer", _ALLOWED)
    known = {field.name for field in fields(kind)}
    for setting in settings:
        if setting not in known:
            raise invalid("scorer", f"{shown(setting)} is not a setting of {name}", ", ".join(sorted(known)))
    if kind is Contrastive and "baseline" not in settings:
        raise invalid("baseline", "is not given", "a list of numbers")
    return kind(**settings)
