"""What calls come to in a forked child."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from forkdecode.errors import UnavailableError


def in_a_forked_child(*calls: Callable[[], object], seconds: int = 60) -> str:
    """A letter for each call: U for an error that says what to do, "-" for none. What is left out was never
    come to: a call waits for ever."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)
        for call in calls:
            try:
                call()
                os.write(write, b"-")
            except UnavailableError as error:
                os.write(write, b"U" if "forked" in str(error) and "'spawn'" in str(error) else b"?")
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with open(read, "rb") as file:
        return file.read().decode()
