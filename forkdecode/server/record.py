"""What is kept of a call for logs and metrics, from its arrival to its end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import Message

from forkdecode.results import Usage
from forkdecode.scheduler.events import CandidateRecord, GroupFailed, GroupFinished
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.server.metrics import Metrics
from forkdecode.server.stream import Outbox
from forkdecode.types import (
    Beam,
    BestOf,
    Continuations,
    DiverseBeam,
    Greedy,
    Sample,
    StochasticBeam,
    Strategy,
)

STRATEGY_NAMES: Mapping[type[Strategy | Continuations], str] = {
    Greedy: "greedy",
    Sample: "sample",
    BestOf: "best_of",
    Beam: "beam",
    DiverseBeam: "diverse_beam",
    StochasticBeam: "stochastic_beam",
    Continuations: "score",
}
"""As the protocol names them."""


@dataclass(slots=True)
class CallRecord:
    """One call. status: the name of its gRPC code. strategy: "" until the request has passed its checks."""

    method: str
    caller: str = ""
    request_id: str = ""
    strategy: str = ""
    status: str = "OK"
    problem: str = ""
    prompt: str | None = None
    prompt_tokens: int | None = None
    arrived: float = field(default_factory=time.monotonic)
    duration: float = 0.0
    outbox: Outbox | None = None
    is_session: bool = False
    """It opened a tree session: however that ends, it was not refused."""
    has_ended: bool = False
    message: Message | None = None
    """The request, once it has been read."""

    @property
    def age(self) -> float:
        """Seconds since it arrived."""
        return time.monotonic() - self.arrived

    def prepared(self, request: DecodeRequest) -> None:
        """The request has passed its checks."""
        self.request_id = request.request_id
        self.prompt_tokens = request.prompt_len
        self.strategy = STRATEGY_NAMES[type(request.strategy)]


class Recorder:
    """Tells logs and metrics of calls. Belongs to the loop."""

    def __init__(self, log: Any, metrics: Metrics | None = None) -> None:
        self._log = log
        self._metrics = metrics

    def started(self, record: CallRecord, outbox: Outbox) -> None:
        """The request goes to the engine."""
        record.outbox = outbox
        if self._metrics is not None:
            self._metrics.request_started(record.strategy)

    def ended(self, record: CallRecord) -> None:
        """The call is over. What it took is told once the engine is done with it, too. Idempotent."""
        if record.has_ended:
            return
        record.has_ended = True
        record.duration = record.age
        if record.outbox is not None:
            record.outbox.when_ended(lambda: self._tell(record))
        else:
            if self._metrics is not None and record.status != "OK" and not record.is_session:
                self._metrics.request_refused(record.status)
            self._write(record, None)

    def broken(self, record: CallRecord, error: BaseException) -> None:
        """An error that nobody expected: its traceback belongs in the log."""
        self._log.error("call_broke", method=record.method, request_id=record.request_id, exc_info=error)

    def _tell(self, record: CallRecord) -> None:
        assert record.outbox is not None, "told of a request that never started"
        last = record.outbox.ended
        usage: Usage | None = None
        candidates: Sequence[CandidateRecord] = ()
        if isinstance(last, (GroupFinished, GroupFailed)):
            usage = last.usage
            candidates = last.candidates if record.status == "OK" else ()
        if self._metrics is not None:
            self._metrics.request_ended(
                record.strategy, record.status, usage, duration=record.duration, candidates=candidates
            )
        self._write(record, usage)

    def _write(self, record: CallRecord, usage: Usage | None) -> None:
        line: dict[str, Any] = {
            "method": record.method,
            "request_id": record.request_id,
            "caller": record.caller,
            "status": record.status,
            "seconds": round(record.duration, 6),
        }
        if record.strategy:
            line["strategy"] = record.strategy
        if record.prompt_tokens is not None:
            line["prompt_tokens"] = record.prompt_tokens
        if usage is not None:
            line |= _usage_line(usage)
        if record.problem:
            line["problem"] = record.problem
        if record.prompt is not None:
            line["prompt"] = record.prompt
        self._log.info("request", **line)


def _usage_line(usage: Usage) -> dict[str, Any]:
    return {
        "cached_tokens": usage.cached_tokens,
        "generated_tokens": usage.generated_tokens,
        "steps": usage.steps,
        "queue_seconds": round(usage.queue_time, 6),
        "first_token_seconds": round(usage.time_to_first_token, 6),
        "token_seconds": round(usage.time_per_token, 6),
    }
