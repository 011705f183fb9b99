"""`forkdecode replay` on journals of the toy model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forkdecode.types import Beam, Sample
from tests.cli.conftest import Cli
from tests.engine.journals import changed, journaled
from tests.scheduler.engines import request, run


@pytest.fixture
def journal(tmp_path: Path) -> str:
    engine = journaled(tmp_path / "steps.journal", num_blocks=64)
    engine.submit(request("a", range(3, 12), Beam(width=3), max_tokens=6))
    engine.submit(request("b", range(3, 12), Sample(n=4, seed=1), max_tokens=6))
    engine.step()
    engine.cancel("b")
    run(engine)
    engine.close()
    return str(tmp_path / "steps.journal")


def flip(journal: str) -> None:
    def change(found: list[list[Any]]) -> None:
        plan = [record for record in found if record[0] == "plan"][2]
        plan[3]["decodes"][0]["tails"][1, 0] += 1

    changed(Path(journal), change)


def test_a_clean_journal_is_summed_up(cli: Cli, journal: str) -> None:
    ran = cli("replay", journal)
    assert (ran.code, ran.err) == (0, "")
    assert "run 1: forkdecode 0, no model, started 20" in ran.out
    assert ", closed\n" in ran.out
    assert "2 requests (1 cancelled)" in ran.out
    assert "of 64 blocks of 4 tokens held" in ran.out
    assert ran.out.endswith("every decision repeats\n")


def test_a_break_is_code_1_and_says_where(cli: Cli, journal: str) -> None:
    flip(journal)
    ran = cli("replay", journal)
    assert (ran.code, ran.err) == (1, "")
    assert "BREAKS in step 3 of run 1: the plan differs from the recorded one" in ran.out
    assert "decodes[0].tails[1, 0]: expected " in ran.out
    assert "requests: a" in ran.out
    assert "every decision repeats" not in ran.out


def test_until_and_json(cli: Cli, journal: str) -> None:
    flip(journal)
    ran = cli("replay", journal, "--until", "2", "--json")
    assert ran.code == 0
    found = json.loads(ran.out)
    assert (found["ok"], found["broken"], found["runs"][0]["steps"]) == (True, None, 2)
    ran = cli("replay", journal, "--json")
    assert ran.code == 1
    found = json.loads(ran.out)
    assert found["broken"]["step"] == 3
    assert found["broken"]["requests"] == ["a"]
    assert found["broken"]["expected"] == found["broken"]["got"] + 1


def test_a_cut_off_journal_replays_as_far_as_it_goes(cli: Cli, journal: str) -> None:
    path = Path(journal)
    path.write_bytes(path.read_bytes()[:-5])
    ran = cli("replay", journal)
    assert ran.code == 0
    assert ", cut off\n" in ran.out
    assert "end of file: the last " in ran.out


def test_no_journal_is_wrong_usage(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hello")
    ran = cli("replay", str(tmp_path / "x"))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("forkdecode: journal: this file is no step journal")
    ran = cli("replay", str(tmp_path / "nowhere"))
    assert ran.code == 2
