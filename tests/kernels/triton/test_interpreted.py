"""The kernel tests, each file in a process where Triton interprets."""

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


def test_this_process_does_not_interpret() -> None:
    assert os.environ.get("TRITON_INTERPRET") != "1"


@pytest.mark.parametrize("name", FILES)
def test_interpreted(name: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", str(HERE / name)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
