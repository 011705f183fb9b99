"""Cancelling, closing, dropping, forking; many threads; connections with tokens and TLS."""

from __future__ import annotations

import asyncio
import copy
import gc
import hashlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from forkdecode import (
    LLM,
    AsyncClient,
    AuthenticationError,
    CancelledError,
    Client,
    EngineClosedError,
    Greedy,
    InvalidRequestError,
    Sample,
    Started,
    Tls,
    UnavailableError,
)
from forkdecode.client.loop_thread import LoopThread
from forkdecode.server.auth import Caller, TokenBook
from forkdecode.server.tls import TlsFiles
from tests.client.scripted import hangs, scripted
from tests.llm.models import PROMPT, outcome, settle
from tests.server.servers import Running, running_server

PEM = b"-----BEGIN CERTIFICATE-----"
LONG: dict[str, Any] = {"max_tokens": 450, "ignore_eos": True}


@pytest.mark.parametrize("how", ["close", "with", "drop"])
def test_a_stream_that_is_given_up_ends_its_request(client: Client, llm: LLM, how: str) -> None:
    stream: Any = client.stream(PROMPT, **LONG)
    assert isinstance(next(stream), Started)
    if how == "close":
        stream.close()
        assert list(stream) == []
    elif how == "with":
        with stream:
            next(stream)
    else:
        del stream
        gc.collect()
    client.decode("a", max_tokens=1)  # behind what was given up, which may only just arrive
    settle(llm)


def test_handles(client: Client, llm: LLM) -> None:
    handle = client.submit(PROMPT, request_id="mine", **LONG)
    assert handle.request_id == "mine"
    with pytest.raises(TimeoutError, match="not done after 0 s"):
        handle.result(0)
    handle.cancel()
    with pytest.raises(CancelledError) as caught:
        handle.result(60)
    assert caught.value.request_id == "mine"
    handle.cancel()
    done = client.submit(PROMPT, max_tokens=3, stream=True)
    events = list(done)
    assert done.done
    assert done.result() == events[-1].result  # type: ignore[union-attr]
    done.cancel()
    client.decode("a", max_tokens=1)  # behind what was given up, which may only just arrive
    settle(llm)


def test_the_first_error_of_a_list_ends_the_others(client: Client, llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="stop_token_ids"):
        client.decode(["a", [1] * 20, "b"], **LONG, stop_token_ids=[9999])
    client.decode("a", max_tokens=1)  # behind what was given up, which may only just arrive
    settle(llm)


def test_many_threads(client: Client, llm: LLM) -> None:
    expected = outcome(llm.decode(PROMPT, Sample(n=2, seed=1), max_tokens=6))
    found = []

    def work() -> None:
        for _ in range(3):
            found.append(outcome(client.decode(PROMPT, Sample(n=2, seed=1), max_tokens=6)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 24


def test_closing_ends_what_runs(server: Running, llm: LLM) -> None:
    client = Client(server.address)
    handle = client.submit(PROMPT, **LONG)
    stream = client.stream(PROMPT, **LONG)
    next(stream)
    client.close()
    client.close()
    with pytest.raises(EngineClosedError):
        handle.result(60)
    with pytest.raises(EngineClosedError):
        list(stream)
    for call in (lambda: client.decode("a"), client.stats, lambda: client.submit("a")):
        with pytest.raises(EngineClosedError, match="closed"):
            call()
    settle(llm)


def test_a_result_that_was_taken_is_no_cancelled_request(server: Running) -> None:
    names = [f"taken-{i}" for i in range(20)]
    with Client(server.address) as client:
        for name in names:
            assert client.decode("a", max_tokens=2, request_id=name).candidates
    assert [server.ended(name)["status"] for name in names] == ["OK"] * len(names)


def test_a_dropped_client_closes_itself(server: Running) -> None:
    before = set(threading.enumerate())
    client: Any = Client(server.address)
    handle: Any = client.submit("a", max_tokens=3)
    (thread,) = (new for new in set(threading.enumerate()) - before if new.name == "forkdecode-client")
    del client
    gc.collect()
    assert handle.result(60).candidates
    assert thread.is_alive()
    del handle
    gc.collect()
    thread.join(60)  # who drops the last reference may be the thread itself, which then ends by and by
    assert not thread.is_alive()


def test_after_a_fork_the_child_is_told(client: Client) -> None:
    client.decode("a", max_tokens=1)
    handle = client.submit("a", max_tokens=2)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        told = b""
        for call in (lambda: client.decode("a"), client.stats, client.close, handle.cancel):
            try:
                call()
                told += b"-"
            except UnavailableError as error:
                told += b"U" if "forked" in str(error) else b"?"
        os.write(write, told)
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 99) == b"UU--"
    os.close(read)
    os.close(write)
    assert handle.result(60)
    assert client.decode("a", max_tokens=1).candidates


def test_what_was_begun_before_a_fork_is_not_waited_for_after_it(client: Client, llm: LLM) -> None:
    handle, stream = client.submit(PROMPT, **LONG), client.stream(PROMPT, **LONG)
    many = client.decode_many([PROMPT, "a"], progress=False, **LONG)
    tree = client.tree(PROMPT)
    local, branches = llm.submit(PROMPT, **LONG), llm.tree(PROMPT)
    waits: tuple[Callable[[], object], ...] = (
        handle.result, lambda: handle.result(60), lambda: list(handle), lambda: list(stream),
        lambda: list(many), lambda: tree.wait(tree.root), local.result, lambda: list(local),
        lambda: branches.wait(branches.root),
    )  # fmt: skip
    next(many)
    tree.start(tree.root, **LONG)
    branches.start(branches.root, **LONG)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        for number, wait in enumerate(waits, 1):
            try:
                wait()
                os._exit(number)
            except UnavailableError as error:
                if "forked" not in str(error):
                    os._exit(number)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    handle.cancel()
    local.cancel()
    for other in (stream, many, tree, branches):
        other.close()
    client.decode("a", max_tokens=1)  # behind what was given up, which may only just arrive
    settle(llm)


FORKS = """
import gc, os, sys
from forkdecode import Client

client = Client(sys.argv[1])
stream = client.stream("a")
next(stream)
ends = []
for _ in range(30):
    child = os.fork()
    if child == 0:
        for _ in range(3):
            gc.collect()
        os._exit(0)
    ends.append(os.waitpid(child, 0)[1])
assert ends == [0] * 30, ends
os._exit(0)
"""


def test_who_has_a_call_open_may_fork_for_other_purposes() -> None:
    with scripted(hangs) as script:
        subprocess.run([sys.executable, "-c", FORKS, script.address], check=True, timeout=120)


@pytest.mark.parametrize(("given", "used"), [(None, "0"), ("1", "1")])
def test_grpc_is_told_not_to_tidy_up_in_children(given: str | None, used: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "GRPC_ENABLE_FORK_SUPPORT"}
    if given is not None:
        environment["GRPC_ENABLE_FORK_SUPPORT"] = given
    program = (
        "import os, sys, forkdecode; assert 'grpc' not in sys.modules; forkdecode.Client; "
        "print(os.environ['GRPC_ENABLE_FORK_SUPPORT'])"
    )
    told = subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True)
    assert told.stdout.decode().strip() == used


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_forked_child_of_who_used_grpc_is_told_so_by_new_clients(server: Running, kind: str) -> None:
    """gRPC crashes or hangs there, even if all that the parent had opened was closed."""
    with Client(server.address) as client:
        client.decode("a", max_tokens=1)

    def use() -> None:
        if kind == "sync":
            with Client(server.address, timeout=30) as client:
                client.decode("a", max_tokens=1)
        else:
            asyncio.run(AsyncClient(server.address, timeout=30).stats())

    child = os.fork()
    if child == 0:
        try:
            use()
        except UnavailableError as error:
            os._exit(0 if "forked" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    use()


def test_a_loop_thread_ends_whatever_waits_for_it() -> None:
    loop = LoopThread()
    running = threading.Event()

    async def forever() -> None:
        running.set()
        await asyncio.Event().wait()

    async def nothing() -> None:
        return None

    errors: list[BaseException] = []

    def wait() -> None:
        try:
            loop.call(forever)
        except EngineClosedError as error:
            errors.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert running.wait(60)
    loop.stop(nothing)
    loop.stop(nothing)
    waiter.join()
    assert len(errors) == 1
    with pytest.raises(EngineClosedError):
        loop.call(nothing)


@pytest.mark.parametrize(
    ("message", "error", "told"),
    [
        ("Exception in callback PollerCompletionQueue._handle_events()", BlockingIOError(11, "again"), False),
        ("Exception in callback PollerCompletionQueue._handle_events()", RuntimeError("closed"), False),
        ("Exception in callback PollerCompletionQueue._handle_events()", ValueError("new"), True),
        ("Exception in callback put()", RuntimeError("ours"), True),
    ],
)
def test_what_grpc_wakes_every_loop_for_is_not_logged(
    message: str, error: Exception, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    loop = LoopThread()

    async def report() -> None:
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})

    async def nothing() -> None:
        return None

    loop.call(report)
    loop.stop(nothing)
    assert bool(caplog.records) == told


# -- coroutines ---------------------------------------------------------------------------------------


def test_who_stops_waiting_stops_the_work(server: Running, llm: LLM) -> None:
    async def work() -> None:
        async with AsyncClient(server.address) as client:
            with pytest.raises(UnavailableError, match="not been asked"):
                _ = client.info
            task = asyncio.create_task(client.decode(["a", "b"], **LONG))
            while (await client.stats()).running_groups < 2:
                pass
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while (await client.stats()).running_groups:
                pass
            stream = client.stream(PROMPT, **LONG)
            assert isinstance(await anext(stream), Started)
            await stream.aclose()
            while (await client.stats()).running_groups:
                pass
            handle = await client.submit(PROMPT, **LONG)
        with pytest.raises(EngineClosedError):
            await handle.result()
        with pytest.raises(EngineClosedError):
            await client.decode("a")

    asyncio.run(work())
    settle(llm)


def test_one_loop_alone(server: Running, llm: LLM) -> None:
    client = AsyncClient(server.address)

    async def use() -> None:
        await client.decode("a", max_tokens=1)

    async def end() -> None:
        await use()
        await client.close()

    async def other() -> None:
        with pytest.raises(UnavailableError, match="event loop"):
            await use()

    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(use())
        second.run(other())
        first.run(end())


# -- connections --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"address": ""}, "address"), ({"address": 5}, "address"), ({"token": ""}, "token"),
        ({"address": "127.0.0.1:65536"}, "address"), ({"address": "[::1]:" + "9" * 5000}, "address"),
        ({"token": "a b"}, "token"), ({"token": "ü"}, "token"), ({"token": "a\nb"}, "token"),
        ({"tls": True}, "tls"), ({"timeout": 0}, "timeout"), ({"timeout": -1}, "timeout"),
        ({"timeout": float("nan")}, "timeout"), ({"retries": -1}, "retries"), ({"retries": None}, "retries"),
    ],
)  # fmt: skip
def test_settings(settings: dict[str, Any], field: str) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(InvalidRequestError) as caught:
            kind(**settings)
        assert caught.value.field == field


def test_tls_settings(tmp_path: Path) -> None:
    one, two = (trustme.CA().issue_cert("me@example.org") for _ in range(2))
    cert, key = one.cert_chain_pems[0].bytes(), one.private_key_pem.bytes()
    other = two.private_key_pem.bytes()
    locked = load_pem_private_key(key, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    for settings, field in (
        ({"ca": tmp_path / "nothing"}, "ca"), ({"ca": 5}, "ca"), ({"ca": b"x"}, "ca"),
        ({"ca": PEM}, "ca"), ({"ca": PEM + b"\n!!!\n-----END CERTIFICATE-----\n"}, "ca"), ({"ca": key}, "ca"),
        ({"cert": PEM}, "key"), ({"key": PEM}, "cert"),
        ({"cert": PEM, "key": key}, "cert"), ({"cert": key, "key": key}, "cert"),
        ({"cert": cert, "key": PEM}, "key"), ({"cert": cert, "key": cert}, "key"),
        ({"cert": cert, "key": other}, "key"), ({"cert": cert, "key": locked}, "key"),
    ):  # fmt: skip
        with pytest.raises(InvalidRequestError) as caught:
            Tls(**settings)  # type: ignore[arg-type]
        assert caught.value.field == field
        assert str(caught.value).startswith(f"{field}: ")
    assert "PRIVATE" not in repr(Tls(cert=cert, key=key))


def test_a_connection_may_take_its_time(server: Running) -> None:
    """A long way, or a busy server: the first words come late, and one attempt is enough."""
    late = 0.4  # seconds
    host, _, port = server.address.rpartition(":")

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))
        await asyncio.sleep(late)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(2**16):
                sink.write(data)
            sink.close()

        await asyncio.gather(pump(reader, back), pump(there, writer), return_exceptions=True)

    async def ask() -> tuple[int, ...]:
        relays = await asyncio.start_server(relay, "127.0.0.1", 0)
        address = f"127.0.0.1:{relays.sockets[0].getsockname()[1]}"
        async with AsyncClient(address, retries=0) as client:
            return await client.tokenize("a")

    assert asyncio.run(ask())


def test_a_timeout_of_a_call(client: Client) -> None:
    for wrong in (0, -3, "1", float("inf")):
        with pytest.raises(InvalidRequestError) as caught:
            client.decode("a", timeout=wrong)  # type: ignore[call-overload]
        assert caught.value.field == "timeout"
    for long in (1e8, 1e9, 7e9, 9e9, 1e12, 1e300):
        assert client.decode("a", timeout=long, max_tokens=1).candidates


def test_nobody_there() -> None:
    with Client("127.0.0.1:9", retries=1) as client:
        with pytest.raises(UnavailableError) as caught:
            client.decode("a", Greedy(), request_id="mine")
        assert caught.value.request_id == "mine"


def test_tokens_and_tls(engine: LLM, tmp_path: Path) -> None:
    authority = trustme.CA()
    cert, mine = authority.issue_cert("localhost", "127.0.0.1"), authority.issue_cert("me@example.org")
    paths = {name: tmp_path / f"{name}.pem" for name in ("ca", "cert", "key", "tokens")}
    authority.cert_pem.write_to_path(paths["ca"])
    cert.cert_chain_pems[0].write_to_path(paths["cert"])
    cert.private_key_pem.write_to_path(paths["key"])
    book = TokenBook({hashlib.sha256(b"secret-token-of-mine").digest(): Caller("me")})
    files = TlsFiles(paths["cert"], paths["key"], client_ca=paths["ca"])
    with running_server(engine, tls=files, tokens=book) as running:
        own = {"cert": mine.cert_chain_pems[0].bytes(), "key": mine.private_key_pem.bytes()}
        for tls in (Tls(ca=paths["ca"], **own), Tls(ca=authority.cert_pem.bytes(), **own)):
            with Client(running.address, tls=tls, token="secret-token-of-mine") as client:
                assert client.decode("a", max_tokens=2).candidates
        with (
            Client(running.address, tls=tls, token="another", retries=2) as client,
            pytest.raises(AuthenticationError),
        ):
            client.decode("a")
        for other in (None, Tls(ca=paths["ca"]), Tls(ca=trustme.CA().cert_pem.bytes(), **own)):
            with (
                Client(running.address, tls=other, token="secret-token-of-mine", retries=0) as client,
                pytest.raises(UnavailableError),
            ):
                client.decode("a")


def test_what_holds_a_connection_is_neither_pickled_nor_copied_deep(client: Client) -> None:
    handle = client.submit(PROMPT, max_tokens=2)
    stream = client.stream(PROMPT, max_tokens=2)
    with client.tree(PROMPT) as tree:
        for one in (client, handle, stream, tree, AsyncClient(client.address)):
            for copied in (pickle.dumps, copy.deepcopy):
                with pytest.raises(TypeError, match="make a client of its own there"):
                    copied(one)
    assert handle.result().candidates
    stream.close()
