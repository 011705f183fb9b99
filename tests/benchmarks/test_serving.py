"""The load test, short and on a tiny model: a real server process, every kind of client, a killed engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.load.measure import growth, percentiles
from benchmarks.serving import parse, run
from tests.tiny_model import save_tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_llama(tmp_path_factory.mktemp("model")))


def test_faults_of_every_kind_leave_a_server_whole(model: str) -> None:
    args = ["soak", "--model", model, "--seconds", "6", "--streams", "8", "--words", "40", "--threads", "1"]
    found = run(parse(args))
    assert found["faults"] == []
    assert found["idle"]
    assert found["requests"] >= 8


def test_a_killed_engine_is_followed_by_another(model: str, tmp_path: Path) -> None:
    args = ["kill", "--model", model, "--times", "1", "--streams", "4", "--words", "40", "--threads", "1"]
    found = run(parse(args))
    assert found["faults"] == []
    assert found["kills"] == len(found["seconds_until_it_serves"]) == 1


def test_percentiles_and_growth() -> None:
    assert percentiles([None]) == {}
    assert percentiles([0.1 * i for i in range(100)])["p90"] == pytest.approx(9.0)
    assert growth([5, 5, 1, 1, 2, 2, 2, 2]) == 2.0
    assert growth([]) == 1.0
