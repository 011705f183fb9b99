"""The parity benchmark on a tiny model: a sample of it, going on where it stopped, and its gaps."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from benchmarks import parity
from forkdecode import Beam
from forkdecode.types import EarlyStopping
from tests.oracle.beam_rule import Hypothesis, Rule
from tests.oracle.generation import Generated, generate
from tests.oracle.test_random_models import random_llama
from tests.oracle.verdict import difference
from tests.tiny_model import save_tiny_llama

SAMPLE = 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_llama(tmp_path_factory.mktemp("model"), max_position_embeddings=4096)


def benchmark(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Its exit code."""
    monkeypatch.setattr(sys, "argv", ["parity", "--threads", "1", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        parity.main()
    return int(stop.value.code or 0)


def test_goes_on_from_its_record(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "parity.jsonl"
    arguments = ("--model", model, "--part", "stopping", "--record", file)
    assert benchmark(monkeypatch, *arguments, "--sample", SAMPLE - 2) == 0
    assert "0 already recorded" in capsys.readouterr().out
    assert benchmark(monkeypatch, *arguments, "--sample", SAMPLE) == 0
    out = capsys.readouterr().out
    assert f"{SAMPLE} cases, {SAMPLE - 2} already recorded" in out
    assert f"| all | {SAMPLE} | {SAMPLE} | 0 | 0 |" in out
    cases = [json.loads(line)["result"]["case"] for line in file.read_text().splitlines()]
    assert len(set(cases)) == len(cases) == SAMPLE


def test_a_difference_fails_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*arguments: object, **options: object) -> Generated:
        answer = generate(*arguments, **options)
        changed = [Hypothesis((*h.tokens[:-1], h.tokens[-1] ^ 1), h.score) for h in answer.hypotheses]
        return Generated(tuple(changed), answer.scores)

    monkeypatch.setattr(parity, "generate", wrong)
    assert benchmark(monkeypatch, "--model", model, "--part", "stopping", "--sample", 1) == 1


def test_the_cases_cover_every_setting() -> None:
    cases = parity.all_cases()
    assert len({case.key for case in cases}) == len(cases) == 240
    assert {case.beam.width for case in cases if case.part == "widths"} == {1, 2, 4, 8, 16}
    assert len({case.prompt.name for case in cases if case.part == "widths"}) == 24
    assert len({case.row for case in cases if case.part == "stopping"}) == 15


@pytest.mark.parametrize("early", [False, True, "never"])
@pytest.mark.parametrize("width", [1, 3])
def test_replay_is_the_search_of_generate(early: EarlyStopping, width: int) -> None:
    eos = frozenset({1, 2})
    model = random_llama(30, 4, 0.6, eos)
    for prompt in range(3, 9):
        rule = Rule.of(Beam(width=width, early_stopping=early, length_penalty=0.5), 12)
        theirs = generate(model, (prompt,), rule, eos)
        search = parity.replay(rule, theirs, eos)
        assert difference(search.hypotheses, theirs.hypotheses) is None
        assert 0 < search.gap < 1


def test_replay_of_a_search_that_stopped_early_has_its_gaps() -> None:
    model = random_llama(30, 4, 0.6)
    rule = Rule.of(Beam(width=2), 6)
    theirs = generate(model, (3,), rule, ())
    cut = dataclasses.replace(theirs, scores=theirs.scores[:3])
    assert parity.replay(rule, cut, frozenset()).gap < 1
