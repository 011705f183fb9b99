"""The kernel tests where Triton interprets: in one process for all files, since each would import torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernels.triton.conftest import UNINTERPRETED_FILES

pytest.importorskip("triton")

HERE = Path(__file__).parent
FILES = sorted(path.name for path in HERE.glob("test_*.py") if path.name not in UNINTERPRETED_FILES)
COMMAND = [sys.executable, "-m", "pytest", "-q", "-rpfE", "-p", "no:cacheprovider", "-o", "addopts="]


def test_this_process_does_not_interpret() -> None:
    assert os.environ.get("TRITON_INTERPRET") != "1"


@pytest.fixture(scope="module")
def told() -> str:
    """What pytest said of all files: a line for each test with its outcome, and why it failed."""
    run = subprocess.run(
        [*COMMAND, *(str(HERE / name) for name in FILES)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return run.stdout + run.stderr


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", FILES)
def test_interpreted(name: str, told: str) -> None:
    outcomes = {line.split()[0] for line in told.splitlines() if f"triton/{name}" in line.partition(" - ")[0]}
    assert "PASSED" in outcomes, told
    assert not outcomes & {"FAILED", "ERROR"}, told
