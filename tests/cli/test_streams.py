"""A process that was started without its standard streams."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
