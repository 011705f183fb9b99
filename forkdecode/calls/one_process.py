"""What is of one process, and of no child that is forked from it."""

from __future__ import annotations

import os

from forkdecode.errors import UnavailableError

BEGUN = (
    "this was begun before the process was forked, and goes on in the other alone: "
    "begin it in the process that waits for it"
)
ENGINE = (
    "this process was forked from the one in which the engine runs, and has none of its threads: "
    "start it by multiprocessing's 'spawn' or 'forkserver' method, and make an engine there"
)


class OneProcess:
    """The process of a thread that is waited for. A forked child has no such thread: what it waits for
    never comes, nor do locks become free that another thread held when it was forked. problem: what a child
    is told."""

    def __init__(self, problem: str = BEGUN) -> None:
        self._pid = os.getpid()
        self._problem = problem

    @property
    def left(self) -> bool:
        """Whether this is a child, in which what ends anything must do nothing: it would be the parent's."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Call before waiting. Raises UnavailableError in a forked child."""
        if self.left:
            raise UnavailableError(self._problem)
