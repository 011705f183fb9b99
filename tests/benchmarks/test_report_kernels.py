"""Tables of choices, products, plans and block tables; of records as the benchmarks write them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import control_plane, forest_plan, report_kernels, selection
from tests.benchmarks.test_report_tables import cells

Result = dict[str, Any]


def recorded(monkeypatch: pytest.MonkeyPatch, file: Path, command: str, run: Any) -> list[Result]:
    monkeypatch.setattr(sys, "argv", [*command.split(), "--record", str(file)])
    run()
    return [json.loads(line)["result"] for line in file.read_text().splitlines()]


def test_a_run_of_choices_is_a_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = "selection.py --rows 4 8 --groups 2 --vocab 5000 --only torch --rounds 1"
    found = recorded(monkeypatch, tmp_path / "r.jsonl", command, selection.main)
    assert [(r["rows"], r["seed"]) for r in found] == [(4, 0), (8, 0)]
    table = report_kernels.selection([found[1], found[0]])
    assert table.startswith("| option | 4 rows, 2 groups | 8 rows, 2 groups |")
    assert [row[0] for row in cells(table)] == list(selection.by_torch(torch.zeros(2, 60), 1))


def test_rows_that_do_not_make_whole_groups_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["selection.py", "--rows", "6", "--groups", "4"])
    with pytest.raises(SystemExit):
        selection.main()
    assert "--rows 6: not a multiple of --groups 4" in capsys.readouterr().err


def test_options_that_a_batch_lacks_are_empty() -> None:
    one = {"dtype": "float32", "rows": 512, "groups": 1, "microseconds": {"plain": 83.4, "beam": 40.2}}
    other = {"dtype": "bfloat16", "rows": 16, "groups": 16, "microseconds": {"plain": 1112.0}}
    table = report_kernels.selection([other, one])
    assert table.startswith("| option | 512 rows, 1 group | 16 rows, 16 groups, bfloat16 |")
    assert cells(table) == [["plain", "83", "1,112"], ["beam", "40", ""]]


def test_products_are_ratios_over_the_shapes() -> None:
    results = [
        {"dtype": "float32", "shape": shape, "rows": 16, "ms": {"oneDNN": dnn, "full": 1.0, "half": 0.5}}
        for shape, dnn in (("qkv", 1.2), ("down", 0.9), ("head", 1.5))
    ]
    assert cells(report_kernels.products(results)) == [
        ["16", "**0.9 to 1.2**", "1.5", "1.8 to 2.4", "3.0", "", ""]
    ]


def test_a_run_of_attention_plans_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forest_plan, "LISTERS", {"numpy": None, "compiled": None})
    name = "small"
    case = forest_plan.Case(name, lambda: forest_plan.groups(2, 3, 0))
    monkeypatch.setattr(forest_plan, "CASES", (case,))
    found = recorded(monkeypatch, tmp_path / "r.jsonl", "forest_plan.py --repeats 2", forest_plan.main)
    assert [(r["splits"], r["by"]) for r in found] == [
        (splits, by) for splits in ("fixed", "even") for by in ("numpy", "compiled", "alone")
    ]
    numpy, compiled, alone = (run["least_us"] for run in found[:3])
    usual = found[2]["median_us"]["fresh"]
    expected = [f"{us:,.0f}" for us in (numpy["fresh"], *compiled.values())]
    expected.insert(2, f"{alone['fresh']:,.0f} ({usual:,.0f})")
    assert cells(report_kernels.forest_plan(found)) == [[name, *expected]]


def test_a_run_of_block_tables_is_a_row_a_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = "control_plane.py --width 4 --prompts 40 20 --steps 64 --warmup 1"
    found = recorded(monkeypatch, tmp_path / "r.jsonl", command, control_plane.main)
    rows = cells(report_kernels.control_plane(found))
    assert [row[:2] for row in rows] == [["4", "20"], ["4", "40"]]
    assert rows[1][2] == f"{found[0]['median']:.0f}"
