"""`forkdecode serve` as its users run it: a process, its engine's process, signals."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from forkdecode import Client, EngineClosedError, Finished, Greedy, Sample, Tree, UnavailableError
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.rpc.v1.decode_pb2_grpc import DecodeServiceStub
from tests.cli.conftest import Cli
from tests.server.calls import refused, remote_events, request_of
from tests.tiny_model import save_tiny_llama

POSITIONS = 20_000
MAIN = "from forkdecode.cli import main; main()"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@dataclass(frozen=True)
class Served:
    """A server's process, the line in which it said that it is ready, and its channel."""

    process: subprocess.Popen[str]
    ready: str
    channel: grpc.Channel

    @property
    def address(self) -> str:
        found = re.search(r"127\.0\.0\.1:\d+", self.ready)
        assert found
        return found[0]

    @property
    def stub(self) -> DecodeServiceStub:
        return DecodeServiceStub(self.channel)

    def engine(self) -> psutil.Process:
        children = psutil.Process(self.process.pid).children(recursive=True)
        return next(c for c in children if "forkdecode.engine.process" in " ".join(c.cmdline()))

    def health(self) -> Iterator[int]:
        stub = health_pb2_grpc.HealthStub(self.channel)
        for answer in stub.Watch(health_pb2.HealthCheckRequest(), timeout=120):
            yield answer.status


@contextmanager
def served(model: str, listen: str, *flags: str) -> Iterator[Served]:
    command = [sys.executable, "-c", MAIN, "serve", "--model", model, "--listen", listen, *flags]
    engine = ["--threads", "1", "--num-blocks", "5000"]
    process = subprocess.Popen([*command, *engine], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        found = re.search(r"on (unix:\S+|127\.0\.0\.1:\d+)", ready)
        assert found, process.communicate()
        with grpc.insecure_channel(found[1]) as channel:
            yield Served(process, ready, channel)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "endless"
    return str(save_tiny_llama(folder, max_position_embeddings=POSITIONS))


def endless(seed: int = 1) -> pb.DecodeRequest:
    """A request that runs until somebody ends it."""
    return request_of(Sample(seed=seed), max_tokens=POSITIONS - 10, min_tokens=POSITIONS - 10)


def test_a_killed_engine_comes_back_and_a_signal_lets_requests_finish(long_model: str) -> None:
    with served(long_model, "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0") as server:
        health = server.health()
        assert next(health) == SERVING
        request = request_of(Greedy(), max_tokens=16)
        before = remote_events(server.stub, Greedy(), request)[-1]
        assert isinstance(before, Finished)

        running = [server.stub.Decode(endless(seed)) for seed in range(4)]
        for messages in running:
            next(messages)
        server.engine().kill()
        for messages in running:
            code, error = refused(lambda messages=messages: messages)
            assert code is grpc.StatusCode.UNAVAILABLE
            assert type(error) is EngineClosedError
            assert error.retry_after
        assert next(health) == NOT_SERVING
        assert next(health) == SERVING
        after = remote_events(server.stub, Greedy(), request)[-1]
        assert isinstance(after, Finished)
        assert after.result.candidates == before.result.candidates

        metrics = re.search(r"metrics on (\S+)", server.ready)
        assert metrics
        page = urllib.request.urlopen(f"http://{metrics[1]}/metrics", timeout=60).read().decode()
        assert "forkdecode_engine_restarts_total 1.0" in page

        last = server.stub.Decode(request_of(Greedy(), max_tokens=200, ignore_eos=True))
        next(last)
        server.process.send_signal(signal.SIGTERM)
        assert next(health) == NOT_SERVING
        code, error = refused(lambda: server.stub.Decode(request))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert list(last)[-1].HasField("finished")
        assert server.process.wait(60) == 0


def use(tree: Tree) -> None:
    """Until it has ended."""
    while True:
        tree.fork(tree.root)


def test_trees_end_with_the_engine_and_go_on_from_what_was_exported(long_model: str) -> None:
    with served(long_model, "127.0.0.1:0") as server, Client(server.address) as client:
        health = server.health()
        assert next(health) == SERVING
        tree = client.tree((3, 4, 5), seed=1)
        [node] = tree.decode(tree.root, Sample(), max_tokens=4, min_tokens=4)
        paths = tree.export([tree.root, node])
        [expected] = tree.decode(node, Sample(), seed=9, max_tokens=4, min_tokens=4)
        tree.start(node, max_tokens=POSITIONS - 10, min_tokens=POSITIONS - 10)
        server.engine().kill()
        with pytest.raises(UnavailableError):
            use(tree)
        assert NOT_SERVING in health
        assert SERVING in health

        again = client.tree()
        twins = again.import_(paths)
        [child] = again.decode(twins[1], Sample(), seed=9, max_tokens=4, min_tokens=4)
        assert child.token_ids == expected.token_ids
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(UnavailableError):
            use(again)
        assert server.process.wait(60) == 0


def test_grace_has_an_end_and_a_second_signal_needs_none(long_model: str, tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    with served(long_model, f"unix:{path}", "--grace", "600") as server:
        running = server.stub.Decode(endless())
        next(running)
        engine = server.engine()
        health = server.health()
        assert next(health) == SERVING
        server.process.send_signal(signal.SIGINT)
        assert next(health) == NOT_SERVING
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(grpc.RpcError):
            list(running)
        assert server.process.wait(60) == 130
        assert not engine.is_running()
        assert not path.exists()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--listen", "nonsense"], "listen: 'nonsense' is no address"),
        (["--listen", "0.0.0.0:0"], "can be reached from other machines"),
        (["--tls-cert", "/none.pem"], "given together"),
        (["--tokens", "/none.toml"], "tokens: /none.toml can't be read"),
        (["--max-requests", "0"], "max_requests: 0 is out of range"),
        (["--max-request-size", "much"], "max_request_size: 'much' is not a size"),
        (["--max-request-size", "10"], "max_request_size: 10 is out of range"),
        (["--journal", "/nowhere/steps.journal"], "can't be written: there is no folder /nowhere"),
        (["--journal", "/"], "journal: / is a folder"),
        (["--stall-timeout", "0"], "stall_timeout: 0.0 is out of range"),
        (["--grace", "-1"], "grace: -1.0 is out of range"),
        (["--tree-grace", "-1"], "forkdecode: tree_grace: -1.0 is out of range"),
        (["--tree-idle", "0"], "forkdecode: tree_idle: 0.0 is out of range"),
        (["--engine-timeout", "0"], "engine_timeout: 0.0 is out of range"),
        (["--step-timeout", "nan"], "step_timeout: nan is out of range"),
        (["--journal-keep", "-1"], "journal_keep: -1 is out of range"),
        (["--journal-size", "1GiB"], "journal_size: there is no journal"),
    ],
)
def test_wrong_flags_are_told_in_one_line_before_a_model_is_loaded(
    cli: Cli, flags: list[str], says: str
) -> None:
    ran = cli("serve", "--model", "/nowhere", *flags)
    assert ran.code == 2
    assert says in ran.error_lines[0]
    assert len(ran.err.splitlines()) == 1


def test_a_port_that_is_taken_is_an_error(model: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-c", MAIN, "serve", "--model", model, "--listen", listen]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 1
    assert ran.stderr == f"forkdecode: listen: {listen} can't be had: Address already in use\n"


def test_what_strangers_send_to_a_port_is_no_line_of_the_log(model: str, tmp_path: Path) -> None:
    pair = trustme.CA().issue_cert("127.0.0.1")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    pair.cert_chain_pems[0].write_to_path(cert)
    pair.private_key_pem.write_to_path(key)
    with served(model, "127.0.0.1:0", "--tls-cert", str(cert), "--tls-key", str(key)) as server:
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" * 50)
            assert not stranger.recv(1)
        server.process.send_signal(signal.SIGTERM)
        _, errors = server.process.communicate(timeout=60)
    events = [json.loads(line)["event"] for line in errors.splitlines()]
    assert "loading" in events[: events.index("ready")]
    assert "draining" in events
