"""What of a request goes to the engine process."""

from __future__ import annotations

import dataclasses

from forkdecode.calls.ranking import unranked
from forkdecode.errors import callable_stays
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.types import Beam, CustomScorer, DiverseBeam


def crossing(request: DecodeRequest) -> DecodeRequest:
    """The request without what stays here: a caller's scorer ranks when the engine is done, and a
    constraint is made anew, of the options. Raises InvalidRequestError for a function that can't be."""
    if request.options.prefix_allowed_tokens_fn is not None:
        raise callable_stays("prefix_allowed_tokens_fn")
    check_scorer(request)
    strategy = unranked(request.strategy)
    if strategy is request.strategy and request.constraint is None:
        return request
    return dataclasses.replace(request, strategy=strategy, constraint=None)


def check_scorer(request: DecodeRequest) -> None:
    """Raises InvalidRequestError for a caller's function that scores hypotheses: it stays in its process."""
    strategy = request.strategy
    if isinstance(strategy, Beam | DiverseBeam) and isinstance(strategy.scorer, CustomScorer):
        raise callable_stays("scorer")
