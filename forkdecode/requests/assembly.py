"""From the engine's token events to what callers see: text, candidates, results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from forkdecode.calls.ranking import ranked
from forkdecode.constraints.items import item_key
from forkdecode.errors import CancelledError, CapacityError, ForkdecodeError
from forkdecode.requests.beam_text import BeamText
from forkdecode.results import (
    BeamUpdate,
    Candidate,
    CandidateFinished,
    Committed,
    DecodeResult,
    Delta,
    Event,
    Finished,
    FinishReason,
    Started,
    TokenLogprob,
    Usage,
)
from forkdecode.scheduler.events import (
    BeamStep,
    CandidateEnded,
    CandidateRecord,
    CandidateStuck,
    GroupEvent,
    GroupFailed,
    GroupFinished,
    GroupStarted,
    TokensAppended,
    TokensCommitted,
)
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.text.detokenizer import Detokenizer
from forkdecode.text.token_bytes import TokenBytes
from forkdecode.types import SEEDED, Continuations


class TextRules:
    """How one request's tokens become text."""

    def __init__(self, tokens: TokenBytes, request: DecodeRequest) -> None:
        self._tokens = tokens
        self._request = request
        self._prompt = request.prompt.tolist()
        self._ends = frozenset(np.concatenate([request.eos_ids, request.stop_ids]).tolist())

    def detokenizer(self) -> Detokenizer:
        """For one candidate's tokens as they come."""
        return Detokenizer(
            self._tokens,
            self._prompt,
            stop=self._request.automaton,
            ending_ids=self._ends,
            include_stop=self._request.options.include_stop,
        )

    def text(self, record: CandidateRecord) -> str:
        """The whole text of a finished candidate."""
        detokenizer = self.detokenizer()
        return detokenizer.push(record.token_ids) + detokenizer.finish(record.finish_reason)


class Assembler:
    """One request's events, in the caller's thread. Scorers run here."""

    def __init__(self, request: DecodeRequest, tokens: TokenBytes) -> None:
        self._request = request
        self._rules = TextRules(tokens, request)
        self._streams: dict[int, Detokenizer] = {}
        self._beam = BeamText(self._rules.detokenizer())

    def events(self, event: GroupEvent | ForkdecodeError) -> list[Event]:
        """What the caller sees of one engine event. Raises the error that ended the request; its
        `partial` holds what had been decoded, where that is of use."""
        request_id = self._request.request_id
        if isinstance(event, ForkdecodeError):
            raise event
        if isinstance(event, GroupFailed):
            raise self._failure(event)
        if isinstance(event, GroupStarted):
            return [Started(request_id, self._request.prompt_len, event.cached_tokens)]
        if isinstance(event, TokensAppended):
            return self._deltas(event)
        if isinstance(event, (CandidateEnded, CandidateStuck)):
            return self._ended(event)
        if isinstance(event, TokensCommitted):
            ids = tuple(event.token_ids.tolist())
            return [Committed(request_id, ids, self._beam.commit(ids))]
        if isinstance(event, BeamStep):
            return [BeamUpdate(request_id, event.generated, self._beam.show(event), event.finished)]
        return [Finished(request_id, self._result(event))]

    def _deltas(self, event: TokensAppended) -> list[Event]:
        wants_logprobs = self._request.options.logprobs is not None
        deltas: list[Event] = []
        for i, (candidate, token) in enumerate(
            zip(event.candidates.tolist(), event.token_ids.tolist(), strict=True)
        ):
            stream = self._streams.get(candidate)
            if stream is None:
                stream = self._streams[candidate] = self._rules.detokenizer()
            logprobs: tuple[TokenLogprob, ...] | None = None
            if wants_logprobs:
                top = event.top[i] if event.top is not None else ((), ())
                raw, processed = float(event.logprobs[i]), float(event.selection_logprobs[i])
                logprobs = (TokenLogprob(token, raw, processed, *top),)
            tokens = (token,)
            deltas.append(Delta(event.request_id, candidate, tokens, stream.push(tokens), logprobs))
        return deltas

    def _ended(self, event: CandidateEnded | CandidateStuck) -> list[Event]:
        reason: FinishReason = event.finish_reason if isinstance(event, CandidateEnded) else "cancelled"
        rest = self._streams.pop(event.candidate).finish(reason)
        ended = CandidateFinished(event.request_id, event.candidate, reason, event.cumulative_logprob)
        return [Delta(event.request_id, event.candidate, (), rest), ended] if rest else [ended]

    def _result(self, event: GroupFinished) -> DecodeResult:
        result = self._as_result(self._candidates(event.candidates), event.usage)
        return ranked(replace(result, exhausted=True) if event.exhausted else result)

    def _failure(self, event: GroupFailed) -> ForkdecodeError:
        error = event.error
        error.request_id = event.request_id
        if isinstance(error, (CapacityError, CancelledError)):
            error.partial = self._as_result(self._candidates(event.candidates), event.usage)
        return error

    def _as_result(self, candidates: tuple[Candidate, ...], usage: Usage) -> DecodeResult:
        request = self._request
        assert not isinstance(request.strategy, Continuations), "a score request decodes nothing"
        drawn = isinstance(request.strategy, SEEDED)
        return DecodeResult(
            request_id=request.request_id,
            prompt_token_ids=tuple(request.prompt.tolist()),
            strategy=request.strategy,
            seed=request.seed if drawn else None,
            candidates=candidates,
            usage=usage,
        )

    def _candidates(self, records: Sequence[CandidateRecord]) -> tuple[Candidate, ...]:
        return tuple(
            Candidate(
                index=record.index,
                token_ids=record.token_ids,
                text=self._rules.text(record),
                finish_reason=record.finish_reason,
                cumulative_logprob=record.cumulative_logprob,
                selection_logprob=record.selection_logprob,
                score=record.score,
                logprobs=record.logprobs,
                item=item_key(self._request.constraint, record.token_ids),
            )
            for record in records
        )
