"""`forkdecode serve` as a process of its own, and what can be seen of it from outside."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

import psutil

MAIN = "from forkdecode.cli import main; main()"


@dataclass(frozen=True)
class ServerProcess:
    """A running server."""

    process: subprocess.Popen[str]
    address: str

    def engine(self) -> psutil.Process:
        """The engine process that serves now."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if "forkdecode.engine.process" in " ".join(child.cmdline()):
                return child
        raise LookupError("the server has no engine process")

    def memory(self) -> dict[str, int]:
        """Bytes that front end and engine hold for themselves (USS)."""
        front = psutil.Process(self.process.pid)
        return {"front": front.memory_full_info().uss, "engine": self.engine().memory_full_info().uss}

    def kill_engine(self) -> None:
        """kill -9, and waits until that process is gone."""
        engine = self.engine()
        engine.kill()
        engine.wait(30)


@contextmanager
def server(model: str, flags: Sequence[str] = (), log: str | None = None) -> Iterator[ServerProcess]:
    """Starts a server on a free port of loopback and stops it. log: where its stderr goes, a file that is
    deleted where none is given. Raises RuntimeError with the end of it where the server does not start."""
    command = [sys.executable, "-c", MAIN, "serve", "--model", model, "--listen", "127.0.0.1:0", *flags]
    with open(log, "w+") if log else tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            yield ServerProcess(process, _address(process, errors))
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _address(process: subprocess.Popen[str], errors: IO[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(r"127\.0\.0\.1:\d+", line)
        if found:
            return found[0]
    errors.seek(0)
    raise RuntimeError(f"the server ended before it was ready: {errors.read()[-2000:]}")
