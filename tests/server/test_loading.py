"""A server whose model is not there yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from forkdecode import UnavailableError
from forkdecode.engine.log import json_logger
from forkdecode.rpc.status import error_of
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.rpc.v1.decode_pb2_grpc import DecodeServiceStub
from forkdecode.server.app import Server
from forkdecode.server.auth import OPEN, Caller, TokenBook
from forkdecode.server.loading import LOADING_RETRY
from forkdecode.server.methods import SERVICE
from forkdecode.server.settings import ServerSettings
from tests.server.puppet import Puppet
from tests.server.servers import LOOPBACK, Log

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@asynccontextmanager
async def opened(
    tokens: TokenBook = OPEN, patience: float = 600.0
) -> AsyncIterator[tuple[Server, grpc.aio.Channel, Log]]:
    log = Log()
    settings = ServerSettings(listen=LOOPBACK, tokens=tokens)
    server = Server(settings, json_logger(log), loading_patience=patience)
    address = server.bind()
    await server.open()
    try:
        async with grpc.aio.insecure_channel(str(address)) as channel:
            yield server, channel, log
    finally:
        await server.stop()


async def failure(channel: grpc.aio.Channel, method: str) -> grpc.aio.AioRpcError:
    call = channel.stream_stream(f"/{SERVICE.full_name}/{method}")(iter([b""]), timeout=60)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    return caught.value


async def health(channel: grpc.aio.Channel, service: str = "") -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    return int((await health_pb2_grpc.HealthStub(channel).Check(request, timeout=60)).status)


def test_calls_wait_until_it_serves() -> None:
    async def check() -> None:
        async with opened() as (server, channel, log):
            await channel.channel_ready()
            early = DecodeServiceStub(channel).GetModel(pb.GetModelRequest())
            late = DecodeServiceStub(channel).GetModel(pb.GetModelRequest(), timeout=0.2)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await late
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert not early.done()
            await server.start(Puppet().backend())
            assert (await early).name == "puppet"
            assert [line["status"] for line in log.lines("request")].count("OK") == 1

    asyncio.run(check())


def test_who_does_not_wait_to_the_end_is_told_of() -> None:
    async def check() -> None:
        async with opened() as (_, channel, log):
            stub = DecodeServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError):
                await stub.GetModel(pb.GetModelRequest(), timeout=0.1)
            await asyncio.to_thread(log.lines, "request", 1)
        [line] = log.lines("request")
        assert (line["method"], line["caller"]) == ("GetModel", "anonymous")
        assert line["status"] == "DEADLINE_EXCEEDED"

    asyncio.run(check())


def test_who_waits_in_vain_is_told_and_health_says_so_until_it_serves() -> None:
    async def check() -> None:
        async with opened(patience=0.0) as (server, channel, log):
            for name in SERVICE.methods_by_name:
                error = error_of(await failure(channel, name))
                assert type(error) is UnavailableError
                assert "loaded" in str(error)
                assert error.retry_after == LOADING_RETRY
            assert len(log.lines("request")) == len(SERVICE.methods)
            assert [await health(channel, name) for name in ("", SERVICE.full_name)] == [NOT_SERVING] * 2
            await server.start(Puppet().backend())
            assert [await health(channel, name) for name in ("", SERVICE.full_name)] == [SERVING] * 2
            assert (await DecodeServiceStub(channel).GetModel(pb.GetModelRequest())).name == "puppet"

    asyncio.run(check())


def test_who_is_unknown_is_told_no_more_than_that() -> None:
    async def check() -> None:
        async with opened(TokenBook({b"x" * 32: Caller("somebody")})) as (_, channel, __):
            assert (await failure(channel, "GetModel")).code() is grpc.StatusCode.UNAUTHENTICATED

    asyncio.run(check())
