"""Tokens that change while a server runs."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import grpc
import pytest

from forkdecode import AuthenticationError, InvalidRequestError
from forkdecode.engine.log import json_logger
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.rpc.v1.decode_pb2_grpc import DecodeServiceStub
from forkdecode.server.auth import TokenBook
from forkdecode.server.token_file import TokenFile
from tests.server.puppet import Puppet
from tests.server.servers import Log, running_server


def put(path: Path, *names: str) -> None:
    """A file with a token for each name, in the place of what was there."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"tokens": [{"name": name, "token": f"token-of-{name}"} for name in names]}))
    os.replace(fresh, path)


def known(book: TokenBook, *names: str) -> list[str]:
    found = []
    for name in names:
        try:
            found.append(book.identify([("authorization", f"Bearer token-of-{name}")]).name)
        except AuthenticationError:
            continue
    return found


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    async def look() -> None:
        path, log = tmp_path / "tokens.json", Log()
        logger = json_logger(log)
        put(path, "a", "b")
        file = TokenFile(path)
        book = file.book
        assert known(book, "a", "b", "c") == ["a", "b"]
        put(path, "b", "c")
        await file.look(logger)
        assert known(book, "a", "b", "c") == ["b", "c"]
        assert log.lines("tokens_read", 1)[-1]["callers"] == 2
        for wrong in ("{", json.dumps({"tokens": []}), None):
            path.unlink() if wrong is None else path.write_text(wrong)
            await file.look(logger)
            assert known(book, "a", "b", "c") == ["b", "c"]
        await file.look(logger)
        assert len(log.lines("tokens_not_read", 3)) == 3
        put(path, "a")
        await file.look(logger)
        assert known(book, "a", "b", "c") == ["a"]

    asyncio.run(look())


def test_whoever_is_told_to_look_looks(tmp_path: Path) -> None:
    async def watched() -> None:
        path, log, told = tmp_path / "tokens.json", Log(), asyncio.Event()
        put(path, "a")
        file = TokenFile(path)
        watch = asyncio.ensure_future(file.watch(told, json_logger(log)))
        for _ in range(2):  # an unchanged file, too
            told.set()
            while told.is_set():
                await asyncio.sleep(0)
        assert len(log.lines("tokens_read", 2)) == 2
        watch.cancel()

    asyncio.run(watched())


def test_a_first_file_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="can't be read"):
        TokenFile(tmp_path / "nothing.json")


def test_a_server_asks_for_the_new_ones(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    put(path, "a")
    file = TokenFile(path)
    with running_server(Puppet().backend(), tokens=file.book) as server, server.channel() as channel:
        stub: Any = DecodeServiceStub(channel)

        def answers(name: str) -> bool:
            try:
                metadata = [("authorization", f"Bearer token-of-{name}")]
                return bool(stub.GetModel(pb.GetModelRequest(), timeout=60, metadata=metadata).name)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
                    raise
                return False

        assert (answers("a"), answers("b")) == (True, False)
        put(path, "b")
        server.begin(file.look(json_logger(server.log))).result(60)
        assert (answers("a"), answers("b")) == (False, True)
