"""Events and results to and from the protocol."""

from __future__ import annotations

from collections.abc import Sequence

from forkdecode.errors import ForkdecodeError
from forkdecode.results import (
    BeamUpdate,
    CandidateFinished,
    Committed,
    DecodeResult,
    Delta,
    Event,
    Finished,
    LiveBeam,
    Started,
)
from forkdecode.rpc.coalesce import Coalescer
from forkdecode.rpc.records import (
    REASONS,
    candidate_message,
    candidate_of,
    engine_stats,
    logprob_message,
    logprob_of,
    model_response,
    reason_of,
    score_response,
    score_result,
    served_model,
    stats_response,
    usage_message,
    usage_of,
)
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.types import Strategy


def decode_event(events: Sequence[Event], request_id: str = "") -> pb.DecodeEvent:
    """One message of one step's events, or of several steps'. request_id: for a request's first
    message. What is to be sent in several messages goes through one Coalescer, whose `take` gives the
    events of each: it keeps the parents of beams right."""
    merged = Coalescer()
    merged.add(events)
    return event_message(merged.take(), request_id)


def event_message(events: Sequence[Event], request_id: str = "") -> pb.DecodeEvent:
    """One message of events that a Coalescer gave."""
    message = pb.DecodeEvent(request_id=request_id)
    for event in events:
        match event:
            case Delta():
                _add_delta(message, event)
            case Started():
                message.started.prompt_tokens = event.prompt_tokens
                message.started.cached_tokens = event.cached_tokens
                message.started.SetInParent()
            case CandidateFinished():
                message.candidates_finished.add(
                    candidate=event.candidate,
                    finish_reason=REASONS[event.finish_reason],
                    cumulative_logprob=event.cumulative_logprob,
                )
            case Committed():
                message.committed.CopyFrom(pb.Committed(token_ids=event.token_ids, text=event.text))
            case BeamUpdate():
                message.beam_update.CopyFrom(_update_message(event))
            case Finished():
                message.finished.CopyFrom(_finished_message(event.result))
    return message


def _add_delta(message: pb.DecodeEvent, event: Delta) -> None:
    delta = message.deltas.add(candidate=event.candidate, token_ids=event.token_ids, text=event.text)
    if event.logprobs:
        delta.logprobs.extend(logprob_message(token) for token in event.logprobs)


def _update_message(event: BeamUpdate) -> pb.BeamUpdate:
    return pb.BeamUpdate(
        generated_tokens=event.generated_tokens,
        beams=[
            pb.LiveBeam(
                hypothesis_id=beam.hypothesis_id,
                parent_id=beam.parent_id,
                token_ids=beam.token_ids,
                text=beam.text,
                score=beam.score,
            )
            for beam in event.beams
        ],
        finished=event.finished,
    )


def _finished_message(result: DecodeResult) -> pb.Finished:
    return pb.Finished(
        candidates=[candidate_message(candidate) for candidate in result.candidates],
        usage=usage_message(result.usage),
        prompt_token_ids=pb.TokenIds(ids=result.prompt_token_ids),
        seed=result.seed,
        exhausted=result.exhausted,
    )


class Events:
    """One stream's messages back to events. strategy: of the request, for its result. request_id: what its
    sender calls it; else "" until the stream's first message has told it."""

    def __init__(self, strategy: Strategy, request_id: str = "") -> None:
        self.request_id = request_id
        self._strategy = strategy

    def of(self, message: pb.DecodeEvent | None) -> list[Event]:
        """The events of one message, in order: Started first, a candidate's tokens before its end,
        what is committed before the beams that follow it, Finished last. message: None where gRPC could not
        read it. Raises ForkdecodeError for one that cannot be read."""
        if message is None:
            raise ForkdecodeError("its bytes are no message of the protocol")
        self.request_id = name = self.request_id or message.request_id
        events: list[Event] = []
        if message.HasField("started"):
            events.append(Started(name, message.started.prompt_tokens, message.started.cached_tokens))
        for delta in message.deltas:
            logprobs = tuple(map(logprob_of, delta.logprobs)) or None
            events.append(Delta(name, delta.candidate, tuple(delta.token_ids), delta.text, logprobs))
        for ended in message.candidates_finished:
            reason = reason_of(ended.finish_reason)
            events.append(CandidateFinished(name, ended.candidate, reason, ended.cumulative_logprob))
        if message.HasField("committed"):
            committed = message.committed
            events.append(Committed(name, tuple(committed.token_ids), committed.text))
        if message.HasField("beam_update"):
            events.append(self._update(message.beam_update))
        if message.HasField("finished"):
            events.append(Finished(name, self._result(message.finished)))
        return events

    def _update(self, message: pb.BeamUpdate) -> BeamUpdate:
        beams = tuple(
            LiveBeam(beam.hypothesis_id, beam.parent_id, tuple(beam.token_ids), beam.text, beam.score)
            for beam in message.beams
        )
        return BeamUpdate(self.request_id, message.generated_tokens, beams, message.finished)

    def _result(self, message: pb.Finished) -> DecodeResult:
        return DecodeResult(
            request_id=self.request_id,
            prompt_token_ids=tuple(message.prompt_token_ids.ids),
            strategy=self._strategy,
            seed=message.seed if message.HasField("seed") else None,
            candidates=tuple(map(candidate_of, message.candidates)),
            usage=usage_of(message.usage),
            exhausted=message.exhausted,
        )


__all__ = [
    "Coalescer",
    "Events",
    "decode_event",
    "engine_stats",
    "event_message",
    "model_response",
    "score_response",
    "score_result",
    "served_model",
    "stats_response",
]
