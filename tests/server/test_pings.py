"""Clients may ask as often as they like whether the server is there."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from tests.server.puppet import WAIT, Puppet
from tests.server.servers import running_server

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GOAWAY, ACK = 4, 6, 7, 1
PINGS = 40


def frame(kind: int, payload: bytes = b"", flags: int = 0) -> bytes:
    """Of HTTP/2 (RFC 9113, section 4.1), on the connection itself."""
    return len(payload).to_bytes(3) + bytes([kind, flags]) + bytes(4) + payload


def frames(sock: socket.socket) -> Iterator[tuple[int, int, bytes]]:
    """Kind, flags and payload of each that comes."""
    with sock.makefile("rb") as stream:
        while head := stream.read(9):
            yield head[3], head[4], stream.read(int.from_bytes(head[:3]))


def test_a_client_that_pings_without_a_pause_is_answered_and_stays() -> None:
    with running_server(Puppet().backend()) as server:
        host, _, port = server.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=WAIT) as sock:
            pings = b"".join(frame(PING, number.to_bytes(8)) for number in range(PINGS))
            sock.sendall(PREFACE + frame(SETTINGS) + pings)
            answered: list[int] = []
            for kind, flags, payload in frames(sock):
                assert kind != GOAWAY, payload
                if kind == PING and flags & ACK:
                    answered.append(int.from_bytes(payload))
                if len(answered) == PINGS:
                    break
    assert answered == list(range(PINGS))
