"""Answers that are damaged are told as that, whatever was asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from forkdecode import Client, ForkdecodeError
from forkdecode.rpc.v1 import decode_pb2 as pb

OPENED = pb.TreeEvent(
    changes=[
        pb.TreeChange(
            opened=pb.TreeOpened(
                tree="t", model="m", nodes=[pb.Node(node=0, state=pb.NODE_STATE_STOPPED, token_ids=[1])]
            )
        )
    ]
)


def fork(client: Client) -> object:
    tree = client.tree("a")
    return tree.fork(tree.root)


class Damaged(grpc.GenericRpcHandler):
    """Answers whatever is asked with bytes that are no message; `before` is sent first."""

    def __init__(self, before: list[bytes]) -> None:
        self._before = before

    def service(self, handler_call_details: Any) -> Any:
        def answer(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
            for message in self._before:
                next(requests)
                yield message
            next(requests)
            yield b"\xff\xff"

        return grpc.stream_stream_rpc_method_handler(answer)


@pytest.mark.parametrize(
    ("before", "ask"),
    [
        ([], lambda client: client.decode("a")),
        ([], lambda client: list(client.stream("a"))),
        ([], lambda client: client.score("a", ["b"])),
        ([], lambda client: client.stats()),
        ([], lambda client: client.tree("a")),
        ([OPENED.SerializeToString()], fork),
    ],
)
def test_bytes_that_are_no_message_are_told_as_such(
    before: list[bytes], ask: Callable[[Client], object]
) -> None:
    server = grpc.server(ThreadPoolExecutor(4), handlers=[Damaged(before)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with (
        Client(f"127.0.0.1:{port}") as client,
        pytest.raises(
            ForkdecodeError, match=r"the answer cannot be read: its bytes are no message"
        ) as caught,
    ):
        ask(client)
    assert type(caught.value) is ForkdecodeError
    server.stop(0).wait()
