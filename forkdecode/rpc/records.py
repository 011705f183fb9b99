"""Records that have the same fields here and in the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from google.protobuf.message import Message

from forkdecode.errors import ForkdecodeError
from forkdecode.results import (
    Candidate,
    EngineStats,
    FinishReason,
    ScoredContinuation,
    ScoreResult,
    ServedModel,
    TokenLogprob,
    Usage,
)
from forkdecode.rpc.v1 import decode_pb2 as pb

_Record = TypeVar("_Record")
_SentMessage = TypeVar("_SentMessage", bound=Message)

REASONS: Mapping[FinishReason, pb.FinishReason] = {
    "eos": pb.FINISH_REASON_EOS,
    "stop": pb.FINISH_REASON_STOP,
    "length": pb.FINISH_REASON_LENGTH,
    "cancelled": pb.FINISH_REASON_CANCELLED,
}
_BY_NUMBER = {int(number): reason for reason, number in REASONS.items()}


def reason_of(number: int) -> FinishReason:
    """Raises ForkdecodeError for one that this version does not know."""
    if number not in _BY_NUMBER:
        raise ForkdecodeError(f"finish_reason {number} is unknown: the server is newer than this client")
    return _BY_NUMBER[number]


def to_message(kind: type[_SentMessage], record: Any) -> _SentMessage:
    """A message with the record's values, field by field of the same name."""
    return kind(**{field.name: getattr(record, field.name) for field in fields(record)})


def of_message(kind: type[_Record], message: Message) -> _Record:
    """The record with the message's values; repeated ones are tuples."""
    values = {field.name: getattr(message, field.name) for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{k: v if isinstance(v, (int, float, str)) else tuple(v) for k, v in values.items()})


def model_response(model: ServedModel) -> pb.GetModelResponse:
    return to_message(pb.GetModelResponse, model)


def served_model(message: pb.GetModelResponse) -> ServedModel:
    return of_message(ServedModel, message)


def stats_response(stats: EngineStats) -> pb.GetStatsResponse:
    return to_message(pb.GetStatsResponse, stats)


def engine_stats(message: pb.GetStatsResponse) -> EngineStats:
    return of_message(EngineStats, message)


def usage_message(usage: Usage) -> pb.Usage:
    return to_message(pb.Usage, usage)


def usage_of(message: pb.Usage) -> Usage:
    return of_message(Usage, message)


def logprob_message(token: TokenLogprob) -> pb.TokenLogprob:
    return pb.TokenLogprob(
        token_id=token.token_id,
        logprob=token.logprob,
        selection_logprob=token.selection_logprob,
        top=[pb.TopToken(token_id=t, logprob=p) for t, p in token.top],
        top_processed=[pb.TopToken(token_id=t, logprob=p) for t, p in token.top_processed],
    )


def logprob_of(message: pb.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(
        message.token_id,
        message.logprob,
        message.selection_logprob,
        tuple((top.token_id, top.logprob) for top in message.top),
        tuple((top.token_id, top.logprob) for top in message.top_processed),
    )


def candidate_message(candidate: Candidate) -> pb.Candidate:
    return pb.Candidate(
        index=candidate.index,
        token_ids=candidate.token_ids,
        text=candidate.text,
        finish_reason=REASONS[candidate.finish_reason],
        cumulative_logprob=candidate.cumulative_logprob,
        selection_logprob=candidate.selection_logprob,
        score=candidate.score,
        logprobs=[logprob_message(token) for token in candidate.logprobs or ()],
        item=candidate.item,
    )


def candidate_of(message: pb.Candidate) -> Candidate:
    """Without log-probabilities for its tokens it has none, as when they weren't asked for."""
    return Candidate(
        index=message.index,
        token_ids=tuple(message.token_ids),
        text=message.text,
        finish_reason=reason_of(message.finish_reason),
        cumulative_logprob=message.cumulative_logprob,
        selection_logprob=message.selection_logprob,
        score=message.score,
        logprobs=tuple(map(logprob_of, message.logprobs)) or None,
        item=message.item if message.HasField("item") else None,
    )


def scored_message(one: ScoredContinuation) -> pb.ScoredContinuation:
    return pb.ScoredContinuation(
        token_ids=one.token_ids,
        text=one.text,
        cumulative_logprob=one.cumulative_logprob,
        logprobs=map(logprob_message, one.logprobs),
    )


def scored_of(index: int, message: pb.ScoredContinuation) -> ScoredContinuation:
    return ScoredContinuation(
        index,
        tuple(message.token_ids),
        message.text,
        message.cumulative_logprob,
        tuple(map(logprob_of, message.logprobs)),
    )


def score_response(result: ScoreResult) -> pb.ScoreResponse:
    return pb.ScoreResponse(
        continuations=map(scored_message, result.continuations),
        usage=usage_message(result.usage),
        prompt_token_ids=pb.TokenIds(ids=result.prompt_token_ids),
        request_id=result.request_id,
    )


def score_result(message: pb.ScoreResponse) -> ScoreResult:
    return ScoreResult(
        request_id=message.request_id,
        prompt_token_ids=tuple(message.prompt_token_ids.ids),
        continuations=tuple(scored_of(i, one) for i, one in enumerate(message.continuations)),
        usage=usage_of(message.usage),
    )
