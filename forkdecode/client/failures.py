"""What it means to a client that a call has failed."""

from __future__ import annotations

import grpc

from forkdecode.errors import CancelledError, ForkdecodeError, UnavailableError
from forkdecode.rpc.status import error_of, is_told


def failure_of(error: grpc.aio.AioRpcError) -> ForkdecodeError:
    """The exception, with its cause. `error` is of a call that this client did not cancel: who says that it
    was, without our details, has dropped it."""
    failure = error_of(error)
    if type(failure) is CancelledError and not is_told(error):
        failure = UnavailableError(f"the call was dropped on its way ({failure})")
    failure.__cause__ = error
    return failure


def unreadable(problem: object = "its bytes are no message of the protocol") -> ForkdecodeError:
    """An answer that is damaged, or of a server that is newer."""
    return ForkdecodeError(f"the answer cannot be read: {problem}")
