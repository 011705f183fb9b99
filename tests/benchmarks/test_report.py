"""The report: the committed tables are what the committed records say, and the last record counts."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report
from benchmarks.report_tables import TABLES

DOCS = Path(report.__file__).parents[1] / "docs"
RECORDS = Path(report.__file__).parent / "records"


def memory_record(width: int, saving: float) -> dict[str, Any]:
    size = {"saving": saving, "blocks_over_ideal": 1.5, "waste": 0.1, "copied_tokens_per_token": 2.0}
    return {
        "benchmark": "memory",
        "result": {
            "model": "m", "trace": "alpaca", "kind": "beam", "width": width, "requests": 3, "pairing": 1.0,
            "saving": saving, "paper": [37.6, 55.2], "blocks_over_ideal": 1.5, "waste": 0.1,
            "copies_per_token": 0.25,
            "copied_bytes_per_token": 1500.0, "contiguous_over_ours": 1.75, "reserved_over_ours": 2.25,
            "block_sizes": {"16": size},
        },
    }  # fmt: skip


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    records, docs = tmp_path / "records", tmp_path / "docs"
    records.mkdir()
    docs.mkdir()
    lines = [
        memory_record(2, 0.4),
        memory_record(4, 0.1),
        memory_record(4, 0.5),
        {"benchmark": "x", "result": {}},
    ]
    (records / "memory.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (docs / "performance.md").write_text(
        "# Speed\n<!-- table: memory -->\nold\n<!-- end -->\nKept.\n<!-- table: growth -->\n<!-- end -->\n"
    )
    (docs / "capacity.md").write_text("# Capacity\n<!-- table: simulate -->\nold\n<!-- end -->\n")
    return records, docs


def run(monkeypatch: pytest.MonkeyPatch, folders: tuple[Path, Path], *more: str) -> str:
    records, docs = folders
    monkeypatch.setattr(sys, "argv", ["report", "--records", str(records), "--docs", str(docs), *more])
    report.main()
    return "".join((docs / page).read_text() for page in report.PAGES)


def test_tables_stand_between_their_marks(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match="not what the records say"):
        run(monkeypatch, folders, "--check")
    text = run(monkeypatch, folders, "--no-plots")
    assert "old" not in text
    assert "Kept." in text
    rows = [line for line in text.splitlines() if line.startswith("| Alpaca")]
    assert rows[1] == (
        "| Alpaca | beam | 4 | 3 | 1.00 | 50.0% | 37.6 to 55.2 % | 1.50 | 10.0% | 0.250 | 2 | 1.75 | 2.25 |"
    )
    assert len(rows) == 2
    assert "No record yet." in text
    assert run(monkeypatch, folders, "--check") == text == run(monkeypatch, folders, "--no-plots")


def test_an_unknown_table_is_named() -> None:
    with pytest.raises(KeyError, match="nothing"):
        report.filled("<!-- table: nothing -->\n<!-- end -->", {})


def committed() -> str:
    return "".join((DOCS / page).read_text() for page in report.PAGES)


def test_committed_tables_are_what_the_records_say() -> None:
    assert report.filled(committed(), report.read(RECORDS)) == committed()
    assert sorted(re.findall(r"<!-- table: (\w+) -->", committed())) == sorted([*TABLES, *report.OF_ALL])


def test_committed_plots_are_shown_and_there() -> None:
    shown = set(re.findall(r"\(plots/([\w.-]+\.svg)\)", committed()))
    assert shown == {file.name for file in (DOCS / "plots").glob("*.svg")}


def test_plots_of_the_committed_records(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.report_plots import plots

    results = report.read(RECORDS)
    drawn = plots(results, tmp_path)
    assert {file.name for file in drawn} == {file.name for file in (DOCS / "plots").glob("*.svg")}
    assert all("<svg" in file.read_text() for file in drawn)
    first = drawn[0].read_bytes()
    (again, *_) = plots({"memory": results["memory"]}, tmp_path)
    assert (again, again.read_bytes()) == (drawn[0], first)


def test_records_can_be_made_again_and_name_no_path() -> None:
    for file in RECORDS.glob("*.jsonl"):
        for line in file.read_text().splitlines():
            found = json.loads(line)
            assert re.match(r"\w+\.py", found["command"])
            assert "/" not in found["command"]
            assert found["versions"].keys() >= {"forkdecode", "torch", "transformers", "numpy"}
            assert found["machine"]["cpu"]
            assert found["time"].endswith("Z")
