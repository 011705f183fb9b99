"""Health as load balancers ask for it; that it follows the engine is test_state's."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from forkdecode.engine.log import json_logger
from forkdecode.server.app import Server
from forkdecode.server.auth import Caller, TokenBook
from forkdecode.server.settings import ServerSettings
from tests.server.puppet import Puppet
from tests.server.servers import LOOPBACK, Log, serving

LONG = 60.0
Status = health_pb2.HealthCheckResponse


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def header(name: bytes, value: bytes) -> bytes:
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


@contextmanager
def deaf_watcher(port: int) -> Iterator[None]:
    """HTTP/2 by hand: a window of 0 bytes, Health/Watch of "" without a token; and a Check behind it, which
    is answered once the watcher's call is there."""
    headers = [
        b"".join(
            header(name, value)
            for name, value in (
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":path", b"/grpc.health.v1.Health/" + method),
                (b":authority", b"localhost"),
                (b"content-type", b"application/grpc"),
                (b"te", b"trailers"),
            )
        )
        for method in (b"Watch", b"Check")
    ]
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, struct.pack(">HI", 4, 0)))
        for number, block in zip((1, 3), headers, strict=True):
            sock.sendall(frame(1, 4, number, block) + frame(0, 1, number, bytes(5)))
        with sock.makefile("rb") as answers:
            heard = set()
            while not {1, 3} <= heard:  # the headers of both answers; their messages find no window
                size = int.from_bytes(answers.read(3), "big")
                kind, _, stream = struct.unpack(">BBI", answers.read(6))
                answers.read(size)
                heard |= {stream} if kind == 1 else set()
        yield


@pytest.mark.parametrize("when", ["start", "drain", "change"])
def test_a_watcher_that_takes_nothing_holds_up_nobody(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forkdecode.server.app._LAST_WORDS", 0.05)

    async def check() -> None:
        puppet, tokens = Puppet(), TokenBook({b"x" * 32: Caller("somebody")})
        settings = ServerSettings(listen=LOOPBACK, tokens=tokens)
        server = Server(settings, json_logger(Log()), loading_patience=600)
        address = server.bind()
        await server.open()
        try:
            if when != "start":
                await server.start(puppet.backend())
            deaf = deaf_watcher(address.port)
            await asyncio.to_thread(deaf.__enter__)
            async with asyncio.timeout(LONG):
                if when == "start":
                    await server.start(puppet.backend())
                elif when == "drain":
                    await server.drain(LONG)
                else:
                    await seen_down(str(address), puppet)
            deaf.__exit__(None, None, None)
        finally:
            await server.stop()

    asyncio.run(check())


async def seen_down(address: str, puppet: Puppet) -> None:
    """Another watcher hears that the engine is down."""
    async with grpc.aio.insecure_channel(address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == Status.SERVING
        puppet.become("down")
        assert (await watch.read()).status == Status.NOT_SERVING
        watch.cancel()


def test_services_that_there_are_not() -> None:
    async def check() -> None:
        async with (
            serving(Puppet().backend()) as server,
            grpc.aio.insecure_channel(server.address) as channel,
        ):
            stub = health_pb2_grpc.HealthStub(channel)
            unknown = health_pb2.HealthCheckRequest(service="nobody.Knows")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Check(unknown, timeout=LONG)
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
            watch = stub.Watch(unknown, timeout=LONG)
            assert (await watch.read()).status == Status.SERVICE_UNKNOWN
            watch.cancel()

    asyncio.run(check())


def test_a_server_that_drains_is_not_serving_whatever_its_engine_does() -> None:
    async def check() -> None:
        puppet = Puppet()
        async with (
            serving(puppet.backend()) as server,
            grpc.aio.insecure_channel(server.address) as channel,
        ):
            server.server._health.shut_down()
            puppet.become("down")
            puppet.become("serving")
            await asyncio.sleep(0)
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert answer.status == Status.NOT_SERVING

    asyncio.run(check())
