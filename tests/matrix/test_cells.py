"""Every cell of the matrix: the option has its effect, or is refused by the name of the field at fault; in
process and by a server alike."""

from __future__ import annotations

from dataclasses import fields

import pytest

from forkdecode import LLM, Beam, Client, InvalidRequestError
from forkdecode.types import OPTION_NAMES, STRATEGY_NAMES
from tests.llm.models import settle
from tests.matrix.rows import STRATEGIES, Decoder, Row
from tests.matrix.table import ROWS, TABLES


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_cell(decoder: Decoder, row: Row, strategy: str) -> None:
    if strategy not in row.only:
        setting = row.name.split(":")[0]
        assert setting not in {f.name for f in fields(STRATEGIES[strategy])}
        return
    refusal = row.refused.get(strategy) or (row.remote if isinstance(decoder, Client) else None)
    if refusal is None:
        row.check(decoder, STRATEGIES[strategy])
        return
    steps = decoder.stats().steps
    with pytest.raises(InvalidRequestError) as caught:
        row.check(decoder, STRATEGIES[strategy])
    assert decoder.stats().steps == steps, "it is refused before anything is computed"
    assert caught.value.field == refusal.field
    assert refusal.field in str(caught.value)


@pytest.mark.parametrize("row", TABLES["option"], ids=lambda row: row.name)
def test_a_beam_of_one(engine: LLM, row: Row) -> None:
    """It is greedy decoding by another way."""
    row.check(engine, Beam(width=1))
    settle(engine)


def test_no_option_and_no_strategy_is_left_out() -> None:
    named = {row.name.split(":")[0] for row in TABLES["option"]}
    assert named == set(OPTION_NAMES)
    assert ", ".join(STRATEGIES) == STRATEGY_NAMES


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_setting_is_left_out(strategy: str) -> None:
    named = {row.name.split(":")[0] for row in TABLES["setting"] if strategy in row.only}
    assert named == {f.name for f in fields(STRATEGIES[strategy])}
