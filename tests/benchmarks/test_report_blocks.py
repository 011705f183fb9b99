"""The table of block sizes, of records as the benchmarks write them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks import control_plane, forest_plan
from benchmarks.report_blocks import block_sizes
from tests.benchmarks.test_report_kernels import recorded
from tests.benchmarks.test_report_tables import cells

Result = dict[str, Any]


def test_a_size_is_a_row_of_what_each_benchmark_found() -> None:
    table = {"width": 512, "prompt": 2500, "block_size": 4, "copies_mean": 87.4, "mean": 301.2}
    table |= {"slots_mean": 10_000.0, "waste": 0.031}
    plan = {"width": 512, "block_size": 4, "splits": "fixed", "by": "alone", "plan_bytes": 100}
    plan |= {"paged_bytes": 1710, "least_us": {"fresh": 240.2}, "median_us": {"fresh": 260.0}}
    step = {"part": "wide", "width": 512, "block_size": 4, "block_bytes": 187e6, "waste": 0.2}
    step |= {"step_ms": {"total": 2049.0, "blocks": 7.42}}
    found = block_sizes(
        {
            "control_plane": [table, table | {"prompt": 250}, table | {"block_size": 16}],
            "forest_plan": [plan, plan | {"splits": "even"}, plan | {"width": None, "block_size": 16}],
            "catalogue": [step, step | {"width": 4}, {"part": "trie"}],
        }
    )
    held = ["10,000", "3.1%", "1.31"]
    first, second = cells(found)
    assert first == [
        "4", "87", "350", "301", "240 (260)", "17.1x", *held, "2,049", "7.4", "187", "20.0%"
    ]  # fmt: skip
    assert second == ["16", "87", "1,398", "301", "", "", *held, "", "", "", ""]
    assert block_sizes({}) == "No record yet."


def test_runs_of_several_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = "control_plane.py --width 5 --prompts 40 --block-size 1 4 --steps 64 --warmup 2"
    one, four = recorded(monkeypatch, tmp_path / "c.jsonl", command, control_plane.main)
    assert (one["block_size"], four["block_size"]) == (1, 4)
    assert (one["copies_mean"], one["waste"]) == (0, 0)
    assert four["copies_mean"] > 0
    # A copied block holds again what was in the one it comes from.
    assert 40 < one["slots_mean"] < four["slots_mean"] * (1 - four["waste"])

    monkeypatch.setattr(forest_plan, "LISTERS", {"numpy": None, "compiled": None})
    monkeypatch.setattr(forest_plan, "walked", partial(_small, forest_plan.walked))
    command = "forest_plan.py --repeats 1 --block-size 1 4"
    found = recorded(monkeypatch, tmp_path / "p.jsonl", command, forest_plan.main)
    assert [(r["block_size"], r["width"]) for r in found] == [(1, 512)] * 6 + [(4, 512)] * 6
    # A block of one token is shared by all that read it; of four, each row has its own from its last fork on.
    assert found[0]["plan_bytes"] < found[0]["paged_bytes"]
    assert found[0]["paged_bytes"] == found[6]["paged_bytes"]


def _small(walked: Any, width: int, prompt: int, tokens: int, size: int) -> Any:
    return walked(5, 40, 7, size)
