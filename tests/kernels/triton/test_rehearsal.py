"""The script for a machine with a GPU runs end to end, in the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[3]


def test_gpu_check_rehearses(tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_check", "--rehearse", "--json", out],
        env={key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    result = json.loads(out.read_text())
    assert result["rehearsal"]
    assert all(part["ok"] for part in result["parts"].values())
    attention = [part for name, part in result["parts"].items() if name.startswith("attention")]
    assert len(attention) == 2
    assert all(part["bytes_gain"] >= 1 for part in attention)
    assert len(result["goals"]) == 5
    for name in result["parts"]:
        assert run.stdout.count(f"| {name} |") == 2  # when it ended, and in the summary
    assert "unreadable" not in run.stdout
