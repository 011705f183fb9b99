"""From what a caller asks for to the policy that does it."""

from __future__ import annotations

from forkdecode.constraint_types import FromCatalogue
from forkdecode.step import I64
from forkdecode.strategies.beam import BeamPolicy
from forkdecode.strategies.best_of import BestOfPolicy
from forkdecode.strategies.policy import Policy
from forkdecode.strategies.sample import SamplePolicy
from forkdecode.strategies.score import ScorePolicy
from forkdecode.strategies.single_beam import SingleBeamPolicy
from forkdecode.strategies.stochastic import StochasticBeamPolicy
from forkdecode.types import Beam, BestOf, Continuations, Options, StochasticBeam, Strategy


def make_policy(strategy: Strategy | Continuations, options: Options, stop_ids: I64) -> Policy:
    """A fresh policy for one request. stop_ids: the EOS and stop token ids that end a candidate."""
    if isinstance(strategy, Beam) and strategy.width == strategy.pool_size == 1:
        return SingleBeamPolicy(strategy)
    if isinstance(strategy, Beam):
        return BeamPolicy(strategy, options.max_tokens, stop_ids, ends_unforeseen=may_end(options))
    if isinstance(strategy, StochasticBeam):
        return StochasticBeamPolicy(strategy)
    if isinstance(strategy, BestOf):
        return BestOfPolicy(strategy)
    if isinstance(strategy, Continuations):
        return ScorePolicy(strategy)
    return SamplePolicy(strategy)


def may_end(options: Options) -> bool:
    """Whether the options' constraint may end candidates by tokens that are no end otherwise."""
    constraint = options.constraint
    return isinstance(constraint, FromCatalogue) and constraint.end == "item"
