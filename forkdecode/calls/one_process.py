"""What is of one process, and of no child that is forked from it."""

from __future__ import annotations

import os

from forkdecode.errors import UnavailableError


class OneProcess:
    """The process of a thread that is waited for. A forked child has no such thread: what it waits for
    never comes, nor do locks become free that another thread held when it was forked."""

    def __init__(self) -> None:
        self._pid = os.getpid()

    def check(self) -> None:
        """Call before waiting. Raises UnavailableError in a forked child."""
        if os.getpid() != self._pid:
            raise UnavailableError(
                "this was begun before the process was forked, and goes on in the other alone: "
                "begin it in the process that waits for it"
            )
