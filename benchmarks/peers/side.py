"""A peer's process as the benchmark sees it. While it is not asked it is stopped, with all it has started, so
that nothing of it spins beside the others."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.peers.workloads import STREAM, Workload

START_S = 1200.0


def own_environment(ours: Mapping[str, str]) -> dict[str, str]:
    """Without what importing forkdecode has set for itself: how threads wait is each side's own choice."""
    return {name: value for name, value in ours.items() if name != "OMP_WAIT_POLICY"}


class Side:
    """A started peer, its model loaded. command: of benchmarks.peers.serve or what speaks as it does.

    limit_s: a peer that has not answered after so long is ended, and all that is asked of it then fails.
    ended: why, once it has.

    The group of processes is in our session: should we be killed, the kernel ends it though it is stopped.
    """

    def __init__(self, peer: str, command: Sequence[str], limit_s: float) -> None:
        self.peer = peer
        self._limit_s = limit_s
        self.ended = ""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=own_environment(os.environ),
            process_group=0,
        )
        # Its children may hold its pipe open: that it has ended is seen by this.
        self._end_of_process = os.pidfd_open(self._process.pid)
        try:
            first = self._answer(START_S)
        except BaseException:
            self._end("interrupted")
            raise
        self.versions: dict[str, str] = first.get("versions", {})
        self._signal(signal.SIGSTOP)

    def run(self, work: Workload, tokens: int) -> dict[str, Any]:
        """ "seconds" and "tokens", or why there are none: "refused" or "failed"."""
        return self._asked(f"{work.name} {tokens}")

    def stream(self, work: Workload, tokens: int) -> dict[str, Any]:
        """Of one greedy request "first_token", "between_tokens" and "seconds", or why there are none."""
        return self._asked(f"{work.name} {tokens} {STREAM}")

    def _asked(self, question: str) -> dict[str, Any]:
        if self.ended:
            return {"failed": self.ended}
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        self._process.stdin.write(f"{question}\n".encode())
        self._process.stdin.flush()
        answer = self._answer(self._limit_s)
        self._signal(signal.SIGSTOP)
        return answer

    def close(self) -> None:
        """Ends the process; one that does not is killed, with all it has started."""
        if self._process.returncode is not None:
            return
        self._signal(signal.SIGCONT)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._signal(signal.SIGKILL)
        self._process.wait()
        os.close(self._end_of_process)

    def _answer(self, seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready = select.select([self._process.stdout.fileno(), self._end_of_process], [], [], seconds)[0]
        if not ready:
            return self._end(f"no answer in {seconds:.0f} s")
        line = self._process.stdout.readline() if self._process.stdout.fileno() in ready else b""
        if not line:
            return self._end("its process ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _end(self, why: str) -> dict[str, Any]:
        self.ended = why
        self._signal(signal.SIGKILL)
        return {"failed": why}

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return
