"""The three standard streams of a process that was started without some of them."""

from __future__ import annotations

import os
import sys


def fill_streams() -> None:
    """Whatever of stdin, stdout and stderr is closed becomes the null device.

    Else the next file or socket that is opened would take its number, and get what is meant for it: an engine
    process writes to its parent's 2.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
        if getattr(sys, name) is None:
            stream = open(number, "w" if number else "r", closefd=False, encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, stream)
