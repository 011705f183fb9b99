"""Merging records: each to its benchmark's file, once, without places of the machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report
from benchmarks.report_merge import merge


def line(command: str, **result: Any) -> str:
    return json.dumps({"benchmark": "b", "result": result, "command": command}) + "\n"


def test_records_go_to_the_file_of_their_script_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, file = tmp_path / "records", tmp_path / "run.jsonl"
    folder.mkdir()
    (folder / "tree.jsonl").write_text("before\n")
    made = line("tree.py --model /there/m --pairs 1 --record /there/r.jsonl", model="m", ratio=2.0)
    file.write_text(made + line("growth.py --seed 1", model=None) + made)
    command = ["report", "--records", str(folder), "--merge", str(file), "--model", "named"]
    monkeypatch.setattr(sys, "argv", command)
    report.main()
    assert capsys.readouterr().out == "tree.jsonl: 1 records\ngrowth.jsonl: 1 records\n"
    before, added = (folder / "tree.jsonl").read_text().splitlines()
    assert before == "before"
    found = json.loads(added)
    assert found["command"] == "tree.py --model named --pairs 1"
    assert found["result"] == {"model": "named", "ratio": 2.0}
    assert json.loads((folder / "growth.jsonl").read_text())["result"] == {"model": None}
    assert merge(file, folder, "named") == {"tree.jsonl": 0, "growth.jsonl": 0}


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("no json\n", "run.jsonl:2 is no record"),
        ("[1]\n", "run.jsonl:2 is no record"),
        (json.dumps({"result": {}}) + "\n", "run.jsonl:2 is no record.*command"),
        (line("python -m benchmarks.tree"), "does not begin with a script"),
        (line("tree.py", deep=[{"model": "/there/m"}]), "run.jsonl:2: the result names '/there/m'"),
    ],
    ids=["no json", "a list", "no command", "no script", "a path"],
)
def test_nothing_is_merged_of_a_file_with_a_bad_line(tmp_path: Path, bad: str, why: str) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text(line("tree.py") + bad)
    with pytest.raises(ValueError, match=why):
        merge(file, tmp_path)
    assert not (tmp_path / "tree.jsonl").exists()


def test_a_simulated_model_keeps_its_name(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    told = json.loads(line("simulate.py --model 70b", model="70b")) | {"benchmark": "simulate"}
    file.write_text(json.dumps(told) + "\n")
    merge(file, tmp_path, "named")
    found = json.loads((tmp_path / "simulate.jsonl").read_text())
    assert (found["command"], found["result"]["model"]) == ("simulate.py --model 70b", "70b")
