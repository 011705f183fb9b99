"""Running a command: its exit code, and one line on stderr for whatever went wrong.

Codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from forkdecode.cli.app import app
from forkdecode.errors import ForkdecodeError, InvalidRequestError

FAILED, USAGE, INTERRUPTED = 1, 2, 130


def run_command(arguments: Sequence[str]) -> int:
    """Run `forkdecode ARGUMENTS` and return its exit code. A traceback only with --debug."""
    try:
        code = app(list(arguments), prog_name="forkdecode", standalone_mode=False)
        sys.stdout.flush()  # here, where a closed pipe is still ours to handle
    except BrokenPipeError:
        # The reader went away (`| head`). What is left in the buffer must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (Exception, KeyboardInterrupt) as error:
        if "--debug" in arguments and not isinstance(error, (KeyboardInterrupt, typer.TyperException)):
            raise
        message, code = _verdict(error)
        if message:  # empty where help was printed instead
            typer.echo(f"forkdecode: {' '.join(message.split())}", err=True)
    return code if isinstance(code, int) else 0


def _verdict(error: BaseException) -> tuple[str, int]:
    """What to say of an error, and the exit code."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", INTERRUPTED
    if isinstance(error, typer.TyperException):
        return error.format_message(), error.exit_code
    if isinstance(error, InvalidRequestError):
        return str(error), USAGE
    if isinstance(error, (ForkdecodeError, OSError)):
        return str(error), FAILED
    return f"{type(error).__name__}: {error} (--debug shows where)", FAILED
