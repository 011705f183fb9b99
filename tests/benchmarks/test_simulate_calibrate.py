"""The calibration: which work it reads off a plan, and a run on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import simulate_calibrate
from benchmarks.simulate_cost import StepWork
from forkdecode.step import BlockMoves, DecodeRows, QuerySegment, StepPlan
from tests.tiny_model import save_tiny_llama


def test_trunks_are_read_once_and_tails_by_row() -> None:
    none = np.empty(0, np.int64)
    groups = (
        DecodeRows(0, np.arange(3, dtype=np.int32), np.zeros((4, 2), np.int32), 75),
        DecodeRows(4, np.arange(0, dtype=np.int32), np.zeros((1, 1), np.int32), 9),
    )
    copies = BlockMoves(np.zeros(2, np.int32), np.ones(2, np.int32))
    plan = StepPlan(1, none, none, none, (), groups, np.arange(5), (), copies)
    expected = StepWork(5, 5, 48 + 4 * 27 + 9, 4 * 75 + 9, copied_tokens=32)
    assert simulate_calibrate.work_of(plan, 16) == expected


def test_a_prompt_reads_all_that_stands_before_each_of_its_tokens() -> None:
    none = np.empty(0, np.int64)
    chunk = QuerySegment(0, 4, 16, np.zeros(2, np.int32))
    plan = StepPlan(1, none, none, none, (chunk,), (), np.array([3]), (), BlockMoves.none())
    assert simulate_calibrate.work_of(plan, 16) == StepWork(4, 1, 20, 17 + 18 + 19 + 20)


def test_summary_is_a_geometric_mean_and_the_largest_factor_from_it() -> None:
    found = simulate_calibrate.summary([{"ratio": 1.0}, {"ratio": 4.0}])
    assert found == pytest.approx({"mean_ratio": 2.0, "spread": 2.0})


@pytest.mark.timeout(300)
def test_a_run_on_a_tiny_model(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulate_calibrate, "CHUNK", 1 << 16)
    monkeypatch.setattr(simulate_calibrate, "MATRIX", 64)
    model = save_tiny_llama(tmp_path_factory.mktemp("model"), max_position_embeddings=4096)
    file = tmp_path / "calibrate.jsonl"
    command = ["calibrate", "--model", str(model), "--steps", "4", "--workload", "beam4x16", "prefill512"]
    monkeypatch.setattr("sys.argv", [*command, "--record", str(file)])
    simulate_calibrate.main()
    full = json.loads(file.read_text())
    found = full["result"]
    assert full["seed"] == 1
    assert found["model"] == model.name
    assert found["bandwidth"] > 0 < found["flops"]
    decoded, read = found["workloads"]
    assert (decoded["rows"], read["rows"]) == (64, 512)
    for row in (decoded, read):
        assert row["ratio"] == pytest.approx(row["measured_ms"] / row["predicted_ms"])
    assert found["mean_ratio"] == pytest.approx((decoded["ratio"] * read["ratio"]) ** 0.5)
