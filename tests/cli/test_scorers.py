"""Scorers from flags and from lines of JSON."""

from __future__ import annotations

from typing import Any

import pytest

from forkdecode.cli.requests import Defaults
from forkdecode.cli.scorers import read_scorer
from forkdecode.errors import InvalidRequestError
from forkdecode.types import Beam, Contrastive, DiverseBeam, LengthNormalised


@pytest.mark.parametrize(
    ("value", "scorer"),
    [
        (None, None),
        ("length_normalised", LengthNormalised()),
        ('{"length_normalised": {"alpha": 1}}', LengthNormalised(1.0)),
        ({"length_normalised": {}}, LengthNormalised()),
        ({"contrastive": {"baseline": [-1, -2.5]}}, Contrastive((-1.0, -2.5))),
        (' {"contrastive": {"baseline": [-1], "weight": 0.5}}', Contrastive((-1.0,), 0.5)),
    ],
)
def test_names_and_settings(value: Any, scorer: Any) -> None:
    assert read_scorer(value) == scorer


@pytest.mark.parametrize(
    ("value", "field", "problem"),
    [
        ("magic", "scorer", "is not a scorer"),
        (3, "scorer", "is not a scorer"),
        ({}, "scorer", "is not a scorer"),
        ({"contrastive": {"baseline": [-1]}, "length_normalised": {}}, "scorer", "is not a scorer"),
        ({"length_normalised": 0.6}, "scorer", "is not a scorer"),
        ({"length_normalised": {"beta": 0.6}}, "scorer", "'beta' is not a setting"),
        ("contrastive", "baseline", "is not given"),
        ({"contrastive": {"baseline": []}}, "baseline", "is empty"),
        ("{", "scorer", "is not JSON"),
        ({"length_normalised": {"alpha": "high"}}, "alpha", "is not a number"),
    ],
)
def test_what_is_wrong_is_named(value: Any, field: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem) as caught:
        read_scorer(value)
    assert caught.value.field == field


def test_a_line_of_json() -> None:
    line = {"strategy": "beam", "width": 4, "widths": [4, 2], "scorer": {"length_normalised": {"alpha": 1.0}}}
    assert Defaults({}).build(line)[0] == Beam(4, widths=(4, 2), scorer=LengthNormalised(1.0))
    diverse = {"strategy": "diverse-beam", "width": 4, "groups": 4}
    assert Defaults({}).build(diverse)[0] == DiverseBeam(4, 4)
