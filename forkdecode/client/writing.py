"""Writing to a stream that the server may end at any time."""

from __future__ import annotations

import contextlib
from typing import Any

import grpc
from google.protobuf.message import Message


async def write(call: Any, message: Message) -> None:
    """Sends a message over a stream of grpc.aio. Of a call that has ended, or ends meanwhile, nothing is
    raised: reading tells its status. Raises AioRpcError when there is no connection."""
    await call.wait_for_connection()
    if call.done():
        return
    core = getattr(call, "_cython_call", None)
    if core is None:
        await call.write(message)
        return
    # call.write() would take the failure of this batch for the call's end, INTERNAL, before the status that
    # the server sent is read (grpc/aio/_call.py, _write).
    with contextlib.suppress(grpc.aio.InternalError):
        await core.send_serialized_message(message.SerializeToString())
