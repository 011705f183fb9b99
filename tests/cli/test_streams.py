"""A process that was started without its standard streams."""

from __future__ import annotations

import io
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from forkdecode.cli.engine import show_capacity

FILLED = """
import os, sys
from forkdecode.cli.streams import fill_streams
fill_streams()
print("nobody reads this")
print("nor this", file=sys.stderr, flush=True)
sys.exit(0 if sys.stdin is not None and os.open(os.devnull, os.O_RDONLY) > 2 else 1)
"""


def run(*arguments: str, closed: str) -> subprocess.CompletedProcess[str]:
    """closed: as a shell writes it."""
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def test_what_is_closed_is_filled() -> None:
    assert run("-c", FILLED, closed="<&- >&- 2>&-").returncode == 0


@pytest.mark.parametrize(("closed", "printed"), [(">&-", False), ("2>&-", True)])
def test_a_command_runs_without_them(closed: str, printed: bool) -> None:
    ran = run("-m", "forkdecode", "--version", closed=closed)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("forkdecode 0.") is printed


def test_a_full_stderr_costs_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """The capacity is told there before anything is decoded."""
    llm: Any = SimpleNamespace(info=SimpleNamespace(name="model", dtype="float32"), capacity="4 blocks")
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr("sys.stderr", io.TextIOWrapper(full, write_through=True))
        show_capacity(llm)
        monkeypatch.undo()
