"""The command line. `forkdecode` starts here."""

from __future__ import annotations

import sys

from forkdecode.cli.run import run_command
from forkdecode.cli.streams import fill_streams

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process and exit with its code."""
    fill_streams()
    sys.exit(run_command(sys.argv[1:]))
