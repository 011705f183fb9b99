"""A score request made ready for an engine, and its result. It has one event, its last."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from forkdecode.engine.port import EnginePort, Job
from forkdecode.errors import ForkdecodeError
from forkdecode.requests.assembly import TextRules
from forkdecode.results import ScoredContinuation, ScoreResult
from forkdecode.scheduler.events import CandidateRecord, GroupEvent, GroupFailed, GroupFinished
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.text.token_bytes import TokenBytes


class ScoreAssembler:
    """From the engine's answer to what the caller sees."""

    def __init__(self, request: DecodeRequest, tokens: TokenBytes) -> None:
        self._request = request
        self._rules = TextRules(tokens, request)

    def result(self, event: GroupEvent | ForkdecodeError) -> ScoreResult:
        """Raises the error that ended the request."""
        if isinstance(event, GroupFailed):
            event.error.request_id = event.request_id
            raise event.error
        if isinstance(event, ForkdecodeError):
            raise event
        assert isinstance(event, GroupFinished), "a score request has no events but its last"
        return ScoreResult(
            request_id=event.request_id,
            prompt_token_ids=tuple(self._request.prompt.tolist()),
            continuations=tuple(map(self._scored, event.candidates)),
            usage=event.usage,
        )

    def _scored(self, record: CandidateRecord) -> ScoredContinuation:
        assert record.logprobs is not None, "score requests ask for them"
        return ScoredContinuation(
            index=record.index,
            token_ids=record.token_ids,
            text=self._rules.text(record),
            cumulative_logprob=record.cumulative_logprob,
            logprobs=record.logprobs,
        )


@dataclass(frozen=True, slots=True)
class PreparedScore:
    """A checked score request and what makes a result of the engine's answer."""

    request: DecodeRequest
    assembler: ScoreAssembler


def send_scores(
    engine: EnginePort, prepared: Sequence[PreparedScore]
) -> list[Future[GroupEvent | ForkdecodeError]]:
    """Queues them at once; each one's future gets what its `assembler.result` takes. Raises as
    EnginePort.submit does.

    The futures can't be cancelled: to end a request, cancel it at the engine.
    """
    answers = [Future[GroupEvent | ForkdecodeError]() for _ in prepared]
    for answer in answers:
        answer.set_running_or_notify_cancel()
    engine.submit(
        [Job(one.request, answer.set_result) for one, answer in zip(prepared, answers, strict=True)]
    )
    return answers
