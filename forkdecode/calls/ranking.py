"""A caller's own scorer, in the caller's thread: the order of finished candidates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from forkdecode.checks import shown, told
from forkdecode.errors import GroupFailedError
from forkdecode.results import Candidate, DecodeResult
from forkdecode.types import BestOf, Scorer

S = TypeVar("S")


def ranked(result: DecodeResult) -> DecodeResult:
    """The n best by the strategy's scorer, of a result that holds all finished candidates in the
    order of samples; the result as it is where the strategy has no scorer.

    Raises GroupFailedError when the scorer fails; its `partial` is the result, unranked.
    """
    strategy = result.strategy
    if not isinstance(strategy, BestOf) or not callable(strategy.rank_by):
        return result
    try:
        order = rank(result.candidates, strategy.rank_by)
    except BaseException as error:  # a caller's scorer may raise anything, sys.exit() too
        failure = GroupFailedError(
            f"rank_by: the scorer failed: {told(error)}", field="rank_by", request_id=result.request_id
        )
        failure.partial = result
        raise failure from error
    few = len(order) < strategy.n
    return replace(result, candidates=order[: strategy.n], exhausted=result.exhausted and few)


def unranked(strategy: S) -> S | BestOf:
    """The strategy as an engine has it: a caller's own scorer stays with its caller, who needs all candidates
    that finish, and ranks them when the engine is done."""
    if isinstance(strategy, BestOf) and callable(strategy.rank_by):
        return replace(strategy, rank_by="none")
    return strategy


def rank(candidates: Sequence[Candidate], scorer: Scorer) -> tuple[Candidate, ...]:
    """The candidates with the scorer's scores, highest first; of equal scores the earlier first.

    Raises ValueError when the scorer does not return one finite number a candidate.
    """
    scores = [float(score) for score in scorer(candidates)]
    if len(scores) != len(candidates) or not all(map(math.isfinite, scores)):
        raise ValueError(
            f"it must return one finite number for each of {len(candidates)} candidates, not {shown(scores)}"
        )
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    return tuple(replace(candidates[i], score=scores[i]) for i in order)
