"""What of a request goes to the engine process."""

from __future__ import annotations

import dataclasses

from forkdecode.calls.ranking import unranked
from forkdecode.config import EngineConfig
from forkdecode.engine.result_size import check_result
from forkdecode.errors import callable_stays
from forkdecode.scheduler.keeping import check_keep
from forkdecode.scheduler.request import DecodeRequest, check_capacity
from forkdecode.strategies.factory import make_policy
from forkdecode.types import Beam, CustomScorer, DiverseBeam
from forkdecode.wire.messages import Hello


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


def check_fits(request: DecodeRequest, hello: Hello, config: EngineConfig) -> None:
    """Raises CapacityError for a request that the process can never serve, InvalidRequestError for one that
    keeps what it can't."""
    policy = make_policy(request.strategy, request.options, request.stop_ids)
    check_keep(request, policy)
    check_capacity(request, policy.max_rows, hello.num_blocks, hello.block_size, overcommit=config.overcommit)
    check_result(request, policy)
