"""A server that stands still, or whose machine is gone: the connection is there, and nothing comes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from forkdecode import Client, UnavailableError
from forkdecode.client import settings

SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""HTTP/2's first frame, with nothing in it."""


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of one that takes connections, begins to speak HTTP/2, and says no more."""
    held: list[socket.socket] = []

    def take(listener: socket.socket) -> None:
        try:
            while True:
                held.append(listener.accept()[0])
                held[-1].sendall(SETTINGS)
        except OSError:
            return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=take, args=(listener,))
        thread.start()
        host, port = listener.getsockname()
        yield f"{host}:{port}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    for one in held:
        one.close()


def test_a_client_notices_it(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = dict(settings._OPTIONS)
    names = ("grpc.keepalive_time_ms", "grpc.http2.ping_timeout_ms")
    assert sum(options[name] for name in names) <= 60_000
    quick = options | dict.fromkeys(names, 50)
    monkeypatch.setattr(settings, "_OPTIONS", tuple(quick.items()))
    with Client(silent, retries=0) as client, pytest.raises(UnavailableError):
        client.decode("a", max_tokens=1)
