"""The exception hierarchy, shared by the in-process and the remote API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from forkdecode.results import DecodeResult


class ForkdecodeError(Exception):
    """Base class of every error that forkdecode raises on purpose.

    Attributes:
        field: name of the option or argument at fault, or None.
        limit: what is allowed there, in words, or None.
        request_id: the request concerned, or None.
        retry_after: seconds after which the same request may succeed, or None where it won't.
        partial: what had been decoded when the request ended early (CapacityError under
            overcommit, CancelledError), or when a scorer failed, unranked; else None.
    """

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        limit: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.field = field
        self.limit = limit
        self.request_id = request_id
        self.retry_after = retry_after
        self.partial: DecodeResult | None = None


class InvalidRequestError(ForkdecodeError, ValueError):
    """A request that can never be served as written. Raised before it costs a block."""


class CapacityError(ForkdecodeError):
    """A request is too large for this machine's block pool, or ended because the pool ran out. Servers also
    raise it for requests or results larger than their message limit."""


class QueueFullError(CapacityError):
    """Too many requests are waiting, or the caller has too many running; the request may succeed later."""


class ModelLoadError(ForkdecodeError):
    """A model cannot be found, opened or served; the message has the reason."""


class CancelledError(ForkdecodeError):
    """The request was cancelled before it finished."""


class GroupFailedError(ForkdecodeError):
    """One request failed (non-finite logits, a broken invariant); no other is affected."""


class NoLegalTokenError(GroupFailedError):
    """A request has no token to continue with: its constraint and its other options exclude all of them. The
    same request fails again; one drawn with another seed may not."""


class UnavailableError(ForkdecodeError):
    """The service cannot be reached, or accepts no requests now."""


class EngineClosedError(UnavailableError):
    """The engine closed or crashed before the request finished."""


class AuthenticationError(ForkdecodeError):
    """The server does not recognise the caller: no token, or a wrong one."""


class DeadlineError(ForkdecodeError, TimeoutError):
    """The timeout that the caller gave a request expired before it finished; it was cancelled."""


E = TypeVar("E", bound=ForkdecodeError)


def own(error: E, request_id: str | None) -> E:
    """The same error for one of several whom it concerns: what is written into theirs is no other's."""
    theirs = type(error).__new__(type(error))
    theirs.args = error.args
    theirs.__dict__.update(error.__dict__)
    theirs.__cause__ = error.__cause__
    theirs.request_id = request_id
    return theirs


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error, and what led to it, each once: one may be its own cause (`raise error from error`)."""
    link: BaseException | None = error
    seen = set[int]()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def invalid(field: str, problem: str, allowed: str) -> InvalidRequestError:
    """The standard wording: the field, what is wrong with it, and what is allowed."""
    return InvalidRequestError(f"{field}: {problem}; allowed: {allowed}", field=field, limit=allowed)


def called_by_engine() -> UnavailableError:
    """Of whoever asks an engine to do what it would have to wait for."""
    return UnavailableError(
        "the engine waits for this function (prefix_allowed_tokens_fn, CustomScorer), so the function can't "
        "wait for the engine: use another LLM in it, or none"
    )


def callable_stays(field: str) -> InvalidRequestError:
    """Of a function that is to leave its process."""
    return invalid(field, "is a Python callable and can't be sent", "None here, or LLM in the same process")
