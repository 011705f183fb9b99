"""Stands in for the engine process where a real one would not misbehave: what it does is the model's name."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

from forkdecode.model.info import ModelInfo
from forkdecode.wire.frames import FrameReader, framed
from forkdecode.wire.messages import AskStats, Beat, Hello, Start
from forkdecode.wire.records import CODEC


def hello(name: str, num_blocks: int = 50) -> bytes:
    info = ModelInfo(name, 100, 100, (), ((1, 8),), (None,), "float32", 1)
    return framed(CODEC.encode(Hello(info, None, num_blocks, 4, 64, 0)), CODEC.schema)


def main(sock: socket.socket) -> None:
    reader = FrameReader(sock, CODEC.schema)
    start = CODEC.decode(reader.read() or b"")
    assert isinstance(start, Start)
    lives = Path(start.scratch, "lives")
    lives.touch()
    number = lives.stat().st_size
    lives.write_bytes(b"." * (number + 1))
    says = {
        "mute": b"",
        "stops before it greets": b"",
        "garbage": b"GET / HTTP/1.1\r\n\r\n",
        "other version": framed(b"", b"another!"),
        "wrong word": framed(CODEC.encode(AskStats(1)), CODEC.schema),
        "changes": hello(f"model {number}"),
        "finds less memory": hello("model", 50 - 20 * number),
    }
    sock.sendall(says.get(start.model, hello("model")))
    if start.model == "mute":
        os._exit(3)
    if start.model.startswith("beats"):
        seconds = 0.0 if "idle" in start.model else 1e6
        sock.sendall(framed(CODEC.encode(Beat(seconds)), CODEC.schema) * 3)
    if start.model == "stops before it greets":
        os.kill(os.getpid(), signal.SIGSTOP)
    while (data := reader.read()) is not None:
        if start.model == "dies when asked":
            os._exit(4)
        if start.model == "answers nonsense":
            sock.sendall(framed(CODEC.encode(start), CODEC.schema))
        del data


main(socket.socket(fileno=int(sys.argv[1])))
