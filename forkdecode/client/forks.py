"""Where gRPC can be used: not in a process that was forked from one that uses it."""

from __future__ import annotations

import os

from forkdecode.errors import UnavailableError


class Birthplace:
    """The process in which gRPC was first used.

    Its threads and the state of its event loops are not in a forked child: what is opened there crashes
    or waits for ever, even when every channel of the parent had been closed.
    """

    def __init__(self) -> None:
        self._pid: int | None = None

    def check(self) -> None:
        """Call before gRPC is used. Raises UnavailableError in a child forked after it was."""
        pid = os.getpid()
        if self._pid is None:
            self._pid = pid
        if self._pid != pid:
            raise UnavailableError(
                "this process was forked from one that had used a client, which gRPC does not survive: "
                "start it by multiprocessing's 'spawn' or 'forkserver' method"
            )


GRPC = Birthplace()
"""Of gRPC in this process, which has one gRPC however many clients."""
