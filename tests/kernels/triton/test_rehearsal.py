"""The script for a machine with a GPU runs end to end, in the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


def test_gpu_check_rehearses(tmp_path: Path) -> None:
    script = Path(__file__).parents[3] / "benchmarks/gpu_check.py"
    out = tmp_path / "check.json"
    run = subprocess.run(
        [sys.executable, script, "--rehearse", "--json", out],
        env={key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    result = json.loads(out.read_text())
    assert result["rehearsal"]
    assert all(case["ok"] and case["bytes_gain"] >= 1 for case in result["attention"])
