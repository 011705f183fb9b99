"""Frames over real sockets: whole, in order, and never in anybody's way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from forkdecode.wire.frames import MAX_FRAME, VERSION, FrameReader, Outbox, framed

SCHEMA = b"schema!!"


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_messages_arrive_whole_and_in_order(pair: tuple[socket.socket, socket.socket]) -> None:
    """Far more than the socket holds, of all sizes, while nobody reads: put() returns all the same."""
    ours, theirs = pair
    outbox, reader = Outbox(ours, SCHEMA, 2**30), FrameReader(theirs, SCHEMA)
    sent = [bytes([i % 251]) * size for i, size in enumerate([0, 1, 100, 65536, 3_000_000] * 8)]
    for payload in sent:
        outbox.put(payload)
    assert [reader.read() for _ in sent] == sent
    outbox.close(60)
    ours.shutdown(socket.SHUT_RDWR)
    assert reader.read() is None
    reader.close()


def test_senders_in_several_threads(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    outbox, reader = Outbox(ours, SCHEMA, 2**30), FrameReader(theirs, SCHEMA)
    payloads = [[bytes([i]) * (1000 * (j + 1)) for j in range(50)] for i in range(4)]

    def send(mine: list[bytes]) -> None:
        for payload in mine:
            outbox.put(payload)

    threads = [threading.Thread(target=send, args=(mine,)) for mine in payloads]
    for thread in threads:
        thread.start()
    got: list[list[bytes]] = [[] for _ in payloads]
    for _ in range(200):
        payload = reader.read()
        assert payload is not None
        got[payload[0]].append(payload)
    assert got == payloads
    for thread in threads:
        thread.join()
    outbox.close(60)
    reader.close()


def test_a_reader_that_stands_still_is_given_up(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    outbox = Outbox(ours, SCHEMA, limit=2**20, patience=0.01)
    while not outbox.is_full:
        outbox.put(bytes(2**16))
    outbox.room()
    assert ours.recv(1) == b""
    assert not outbox.is_full
    outbox.close(60)
    reader = FrameReader(theirs, SCHEMA)
    while reader.read() is not None:
        pass
    reader.close()


def test_a_frame_above_the_limit_is_no_reader_that_stands_still(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """The reader is within the long frame when the next, short ones (a step's, a beat) are put."""
    ours, theirs = pair
    outbox, reader = Outbox(ours, SCHEMA, limit=2**20), FrameReader(theirs, SCHEMA)
    sent = [bytes([i]) * size for i, size in enumerate([2**23, 10, 2**22, 10])]
    for payload in sent:
        outbox.put(payload)
    assert outbox.is_full
    assert not outbox.has_room(0)
    waits = threading.Thread(target=outbox.room)
    waits.start()
    assert [reader.read() for _ in sent] == sent
    waits.join()
    assert not outbox.is_full
    assert outbox.has_room(2**19)
    assert not outbox.has_room(2**20 + 1)
    outbox.close(60)
    reader.close()


def test_a_close_gives_up_on_a_reader_that_stands_still(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = pair
    outbox = Outbox(ours, SCHEMA, limit=2**30)
    outbox.put(bytes(2**24))
    outbox.close(0.01)
    outbox.close(0.01)
    outbox.put(b"nobody")


def test_a_peer_that_is_gone_is_no_error(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    outbox = Outbox(ours, SCHEMA, 2**30)
    theirs.close()
    for _ in range(3):
        outbox.put(bytes(100))
    outbox.close(60)


def test_what_is_no_frame_is_refused() -> None:
    good = framed(b"abc", SCHEMA)
    for wrong, why in (
        (b"GET / HTTP/1.1\r\n\r\n", "no frame"),
        (good[:2] + bytes([VERSION + 1]) + good[3:], "another version"),
        (framed(b"abc", b"another!"), "another version"),
        (good[:4] + b"\xff\xff\xff\xff" + good[8:], "no frame"),
    ):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall(wrong)
            reader = FrameReader(theirs, SCHEMA)
            with pytest.raises(ValueError, match=why):
                reader.read()
            reader.close()


def test_a_hang_up_within_a_frame_is_a_hang_up() -> None:
    good = framed(b"abc", SCHEMA)
    for cut in range(len(good)):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall(good[:cut])
            ours.shutdown(socket.SHUT_WR)
            reader = FrameReader(theirs, SCHEMA)
            assert reader.read() is None
            reader.close()


def test_frames_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forkdecode.wire.frames.MAX_FRAME", 10)
    assert MAX_FRAME > 10
    with pytest.raises(ValueError, match="at most 10"):
        framed(bytes(11), SCHEMA)
