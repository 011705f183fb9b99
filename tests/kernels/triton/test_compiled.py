"""Kernels compile for GPUs that are not here, without spills: a few of those that ship.

benchmarks/aot_report.py does all of them. It runs in a process of its own, without the interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_compiles_for(target: str, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, ROOT / "benchmarks/aot_report.py", "--quick", "--targets", target, "--json", out],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    records = json.loads(out.read_text())["records"]
    assert len(records) >= 5
    assert all(r["registers"] > 0 and r["occupancy"] > 0 and not r["faults"] for r in records)
    assert all(r["wide"] > 0 for r in records if r["kernel"].startswith("node_attention"))
