"""Requests on their way to the engine process: in messages of a bounded size, what they share sent once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from forkdecode.engine.crossing import crossing
from forkdecode.errors import CapacityError
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.types import Continuations, Options
from forkdecode.wire import frames
from forkdecode.wire.messages import Submit
from forkdecode.wire.records import CODEC
from forkdecode.wire.requests import SentTerms, joined, sent_request, terms_key, terms_of

_CHUNK = 64
"""Requests a message, at least: the engine begins with the first while the others are on their way."""


def submits(requests: Sequence[DecodeRequest], first: int, limit: int) -> list[bytes]:
    """The messages that submit them, numbered from `first`.

    limit: bytes of all of them. Raises CapacityError before it has made much more; and as crossing().
    """
    sent, limit = [crossing(request) for request in requests], min(limit, frames.MAX_FRAME)
    messages: list[bytes] = []
    size = 0
    for terms, own in _chunks(sent, limit):
        message = CODEC.encode(Submit(first, tuple(terms), tuple(own)))
        first += len(own)
        size += len(message)
        if size > limit:
            raise _too_much(sent, limit)
        messages.append(message)
    return messages


def requests_of(message: Submit) -> tuple[DecodeRequest, ...]:
    """What was submitted, each without what has not crossed."""
    return tuple(joined(message.terms[sent.terms], sent) for sent in message.requests)


def _chunks(requests: Sequence[DecodeRequest], limit: int) -> Iterator[tuple[list[Any], list[Any]]]:
    """Of each message the terms and what is each request's own, packed. Shared terms are sent again with the
    next message, so one goes on until they are no more than half of it."""
    places: dict[tuple[int, ...], int] = {}
    terms: list[Any] = []
    own: list[Any] = []
    terms_bytes = own_bytes = total = 0
    for request in requests:
        place = places.setdefault(terms_key(request), len(terms))
        if place == len(terms):
            terms.append(CODEC.part(terms_of(request)))
            terms_bytes += len(terms[-1].data)
            total += len(terms[-1].data)
        own.append(CODEC.part(sent_request(request, place)))
        own_bytes += len(own[-1].data)
        total += len(own[-1].data)
        if total > limit:
            raise _too_much(requests, limit)
        if len(own) >= _CHUNK and (own_bytes >= terms_bytes or len(terms) > len(own) // 2):
            yield terms, own
            places, terms, own, terms_bytes, own_bytes = {}, [], [], 0, 0
    if own:
        yield terms, own


def _too_much(requests: Sequence[DecodeRequest], limit: int) -> CapacityError:
    """Names the field that most of it is of."""
    sizes, seen = Counter[str](), set[tuple[int, ...]]()
    for request in requests:
        sizes["prompt"] += request.prompt.nbytes
        if terms_key(request) not in seen:
            seen.add(terms_key(request))
            sizes.update(_sizes(terms_of(request)))
        if sizes.total() > limit:
            break
    field = max(sizes, key=lambda name: sizes[name])
    many = "the request takes" if len(requests) == 1 else f"{len(requests):,} requests take"
    allowed = f"at most {limit:,} bytes at a time"
    return CapacityError(
        f"{field}: {many} more than an engine process is sent at once, most of it for {field}; {allowed}",
        field=field,
        limit=allowed,
        request_id=requests[0].request_id if len(requests) == 1 else None,
    )


def _sizes(terms: SentTerms) -> dict[str, int]:
    found = {one.name: len(CODEC.encode(getattr(terms.options, one.name))) for one in fields(Options)}
    if isinstance(terms.strategy, Continuations):
        found["continuations"] = len(CODEC.encode(terms.strategy))
    return found
