"""Tables of the engine's own work, cell by cell; two of them of records as the benchmarks write them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import beam_stream, engine_work, report_engine
from tests.benchmarks.test_report_tables import cells

Result = dict[str, Any]


def test_a_run_of_the_engine_s_own_work_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "engine_work.jsonl"
    command = "engine_work.py --steps 8 --rounds 1 --record"
    monkeypatch.setattr(sys, "argv", [*command.split(), str(file), "--workload", "16 x beam 4"])
    engine_work.main()
    full = json.loads(file.read_text())
    assert (full["seed"], full["result"]["groups"]) == (0, 16)
    r = full["result"]
    ((name, *spent, total, group),) = cells(report_engine.engine_work([r]))
    assert name == "16 x beam 4"
    assert spent == [f"{r[part]:,.0f}" for part in engine_work.PARTS]
    sums = sum(r[part] for part in engine_work.PARTS)
    assert (total, group) == (f"{sums:,.0f}", f"{sums / 16:,.0f}")


def test_runs_with_an_option_are_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "engine_work.jsonl"
    command = ["engine_work.py", "--steps", "2", "--rounds", "1", "--rows", "16", "32", "--options", "plain"]
    monkeypatch.setattr(sys, "argv", [*command, "--record", str(file)])
    engine_work.main()
    few, many = (json.loads(line)["result"] for line in file.read_text().splitlines())
    assert (few["rows"], many["rows"]) == (16, 32)
    ((name, *spent, all_many, all_few),) = cells(report_engine.engine_options([few, many]))
    assert name == "plain"
    assert spent == [f"{many[part]:,.1f}" for part in engine_work.OPTION_PARTS]
    for told, r in ((all_few, few), (all_many, many)):
        assert told == f"{sum(r[part] for part in engine_work.OPTION_PARTS):,.0f}"


def test_a_run_of_streamed_beams_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "beam_stream.jsonl"
    command = ["beam_stream.py", "--widths", "4", "--steps", "16", "--record", str(file)]
    monkeypatch.setattr(sys, "argv", command)
    beam_stream.main()
    full = json.loads(file.read_text())
    assert (full["seed"], full["command"]) == (0, "beam_stream.py --widths 4 --steps 16")
    assert set(report_engine.STREAMS) < set(beam_stream.WAYS)
    ((width, quiet, *ratios, text),) = cells(report_engine.beam_stream([full["result"]]))
    assert (width, float(quiet)) == ("4", round(full["result"]["quiet_median_us"]))
    assert ratios == [f"{full['result'][way]['mean']:.2f}" for way in report_engine.STREAMS]
    assert len(text.split(", ")) == 2


def test_a_step_s_parts_add_up_to_its_sum() -> None:
    ms = {"qkv": 10.0, "down": 5.5, "lm_head": 3.0, "commit": 0.25, "plan": 0.5, "embedding": 1.0}
    results = [{"workload": "w", "dtype": dtype, "ms": ms} for dtype in ("bfloat16", "float32")]
    first, second = cells(report_engine.step_profile(results))
    assert (first[:2], second[:2]) == (["w", "float32"], ["w", "bfloat16"])
    assert first[2:] == ["16", "3.0", *["0.0"] * 6, "0.8", "1.0", "20"]


def test_every_part_of_a_step_has_a_column() -> None:
    from benchmarks.step_profile import PARTS

    assert sorted(part for own in report_engine.STEP_PARTS.values() for part in own) == sorted(PARTS)


def test_scoring_is_told_by_what_transformers_does() -> None:
    r = {
        "dtype": "float32", "runs": 3, "largest_gap": 4.2e-5,
        "cpu_ratio": {"forward": 7.64, "cached": 1.8}, "ratio": {"forward": 9.1, "cached": 0.97},
        "ratio_range": {"forward": [8.0, 9.25], "cached": [0.9, 1.0]},
    }  # fmt: skip
    table = report_engine.score([r])
    forward, cached = cells(table)[:2]
    assert (forward[0], forward[2:]) == ("float32", ["7.6x", "9.1x", "8.0 to 9.2", "3"])
    assert cached[2:4] == ["1.8x", "1.0x"]
    assert table.endswith("at most 4.2e-05.")


def test_int8_is_told_by_time_and_by_quality() -> None:
    r = {
        "tokens": 24, "prompts": 8, "greedy": [0.88, 0.229], "ms": {"16": [145.2, 103.0, 1.49]},
        "documentation": [75.4, 78.31, 8192], "books": [25.5, 26.6, 1536],
    }  # fmt: skip
    found = cells(report_engine.int8([r]))
    assert found[0] == ["16", "145", "103", "1.5"]
    assert ["perplexity of this project's documentation", "75.4", "78.3"] in found
    assert found[-2:] == [
        ["greedy tokens equal, given the same tokens before (8 prompts, 24 tokens)", "", "88.0%"],
        ["until the first that differs, decoding freely", "", "22.9% of 24"],
    ]
