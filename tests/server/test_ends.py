"""However a call ends, its blocks return."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import pytest

from forkdecode import LLM, Beam, Sample
from forkdecode.engine.port import EnginePort, Job
from forkdecode.results import EngineStats
from forkdecode.scheduler.request import DecodeRequest, TreeOp
from forkdecode.server.backend import Backend
from tests.llm.models import assert_idle, tiny_llama
from tests.server.calls import refused, request_of, stub_of
from tests.server.servers import backend_of, running_server, tiny_llm

POSITIONS = 20_000


class Witness:
    """An engine that notes what it holds before and right after each cancel: a snapshot that is asked
    for after a cancel is taken after it, and before the next step."""

    def __init__(self, inner: EnginePort) -> None:
        self._inner = inner
        self.seen: list[tuple[EngineStats, EngineStats]] = []

    def submit(self, jobs: Sequence[Job]) -> None:
        self._inner.submit(jobs)

    def cancel(self, request: DecodeRequest) -> None:
        before = self._inner.stats()
        self._inner.cancel(request)
        self.seen.append((before, self._inner.stats()))

    def tree(self, op: TreeOp) -> None:
        self._inner.tree(op)

    def stats(self) -> EngineStats:
        return self._inner.stats()

    def close(self) -> None:
        self._inner.close()


def witnessed(llm: LLM) -> tuple[Backend, Witness]:
    backend = backend_of(llm)
    witness = Witness(backend.engine)
    return Backend(witness, backend.info, backend.capacity, backend.tokenizer), witness


@pytest.mark.parametrize("how", ["cancel", "deadline", "close"])
@pytest.mark.parametrize("strategy", [Sample(n=4, seed=1), Beam(width=3)], ids=["sample", "beam"])
def test_blocks_return_within_two_steps(how: str, strategy: Sample | Beam) -> None:
    model = tiny_llama(max_position_embeddings=POSITIONS)
    with tiny_llm(model=model, num_blocks=60_000) as llm:
        backend, witness = witnessed(llm)
        with running_server(backend) as server:
            with stub_of(server) as stub:
                request = request_of(strategy, max_tokens=POSITIONS - 10, min_tokens=POSITIONS - 10)
                messages = stub.Decode(request, timeout=1.0 if how == "deadline" else None)
                next(messages)
                assert llm.stats().used_blocks > 0
                if how == "cancel":
                    messages.cancel()
                elif how == "deadline":
                    code, _ = refused(lambda: messages)
                    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
            line = server.lines("request", 1)[0]
        [(before, after)] = witness.seen
        assert before.used_blocks > 0
        assert (after.used_blocks, after.running_groups) == (0, 0)
        assert after.steps - before.steps <= 2
        assert_idle(llm)
    assert line["status"] == ("DEADLINE_EXCEEDED" if how == "deadline" else "CANCELLED")
    assert line["generated_tokens"] > 0
