"""Results for people, on wide terminals and on narrow ones."""

from __future__ import annotations

import io
from dataclasses import fields

import pytest
from rich.console import Console

from forkdecode import Candidate, DecodeResult, Greedy
from forkdecode.cli.render import NARROW, candidates_shown
from forkdecode.results import Usage

USAGE = Usage(**{field.name: 0 for field in fields(Usage)})


@pytest.mark.parametrize("width", [20, NARROW - 1, NARROW, 200])
def test_no_width_loses_a_result(width: int) -> None:
    found = (
        Candidate(0, (1, 2, 3), "one two three", "eos", -12.345, -12.5, -4.167, item="shoe"),
        Candidate(1, (4,), "[four]", "length", -7.5, -7.5, -7.5, item="hat"),
    )
    result = DecodeResult("r", (1,), Greedy(), 0, found, USAGE, exhausted=True)
    out = io.StringIO()
    console = Console(file=out, width=width)
    console.print(candidates_shown(result, console.width))
    printed = out.getvalue().split()
    for one in found:
        assert one.item is not None
        for said in (
            *one.text.split(),
            one.finish_reason,
            one.item,
            f"{one.score:.3f}",
            str(len(one.token_ids)),
        ):
            assert said in [word.strip(",:") for word in printed]
    assert "requested." in printed
    assert max(map(len, out.getvalue().splitlines())) <= width
