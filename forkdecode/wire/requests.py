"""Requests as they cross: what several of them have in common, and what is each one's own."""

from __future__ import annotations

from dataclasses import dataclass

from forkdecode.scheduler.request import DecodeRequest, NodeRef
from forkdecode.step import I64, ProcessorSpec
from forkdecode.types import Continuations, Options, Strategy


@dataclass(frozen=True, slots=True)
class SentTerms:
    """See DecodeRequest. A bias on all of a vocabulary is a megabyte, and may be many requests'."""

    strategy: Strategy | Continuations
    options: Options
    processors: ProcessorSpec
    eos_ids: I64
    stop_ids: I64


@dataclass(frozen=True, slots=True)
class SentRequest:
    """See DecodeRequest. terms: which of those that it is sent with. What stays where it is, or is made
    anew of the options, is not in it."""

    request_id: str
    terms: int
    prompt: I64
    seed: int
    stream: bool
    origin: NodeRef | None
    keep: NodeRef | None
    constraint_start: int | None
    catalogue: str | None


def terms_of(request: DecodeRequest) -> SentTerms:
    """What it may have in common with others."""
    return SentTerms(request.strategy, request.options, request.processors, request.eos_ids, request.stop_ids)


def terms_key(request: DecodeRequest) -> tuple[int, ...]:
    """The same of requests whose terms are the very same objects, for as long as these live."""
    alike = request.strategy, request.options, request.processors, request.eos_ids, request.stop_ids
    return tuple(map(id, alike))


def sent_request(request: DecodeRequest, terms: int) -> SentRequest:
    """The rest of it. terms: where terms_of() it are."""
    return SentRequest(
        request.request_id,
        terms,
        request.prompt,
        request.seed,
        request.stream,
        request.origin,
        request.keep,
        request.constraint_start,
        request.catalogue,
    )


def joined(terms: SentTerms, sent: SentRequest) -> DecodeRequest:
    """The request again, without automaton and constraint. Requests of the same terms share them."""
    return DecodeRequest(
        request_id=sent.request_id,
        prompt=sent.prompt,
        strategy=terms.strategy,
        options=terms.options,
        seed=sent.seed,
        processors=terms.processors,
        eos_ids=terms.eos_ids,
        stop_ids=terms.stop_ids,
        automaton=None,
        stream=sent.stream,
        origin=sent.origin,
        keep=sent.keep,
        constraint_start=sent.constraint_start,
        catalogue=sent.catalogue,
    )
