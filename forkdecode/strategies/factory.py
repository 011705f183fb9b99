"""From what a caller asks for to the policy that does it."""

from __future__ import annotations

from forkdecode.constraint_types import FromCatalogue
from forkdecode.step import I64
from forkdecode.strategies.beam import BeamPolicy
from forkdecode.strategies.best_of import BestOfPolicy
from forkdecode.strategies.diverse import DiverseBeamPolicy
from forkdecode.strategies.policy import Policy
from forkdecode.strategies.sample import SamplePolicy
from forkdecode.strategies.score import ScorePolicy
from forkdecode.strategies.single_beam import SingleBeamPolicy
from forkdecode.strategies.stochastic import StochasticBeamPolicy
from forkdecode.types import Beam, BestOf, Continuations, DiverseBeam, Options, StochasticBeam, Strategy


def make_policy(strategy: Strategy | Continuations, options: Options, stop_ids: I64) -> Policy:
    """A fresh policy for one request. stop_ids: the EOS and stop token ids that end a candidate."""
    if isinstance(strategy, Beam | DiverseBeam):
        return _beam_policy(strategy, options, stop_ids)
    if isinstance(strategy, StochasticBeam):
        return StochasticBeamPolicy(strategy)
    if isinstance(strategy, BestOf):
        return BestOfPolicy(strategy)
    if isinstance(strategy, Continuations):
        return ScorePolicy(strategy)
    return SamplePolicy(strategy)


def _beam_policy(strategy: Beam | DiverseBeam, options: Options, stop_ids: I64) -> Policy:
    unforeseen = may_end(options)
    if isinstance(strategy, DiverseBeam) and strategy.groups > 1:
        return DiverseBeamPolicy(strategy, options.max_tokens, stop_ids, ends_unforeseen=unforeseen)
    beam = _one_group(strategy) if isinstance(strategy, DiverseBeam) else strategy
    if beam.width == beam.pool_size == 1:
        return SingleBeamPolicy(beam)
    return BeamPolicy(beam, options.max_tokens, stop_ids, ends_unforeseen=unforeseen)


def _one_group(strategy: DiverseBeam) -> Beam:
    """The beam that a diverse beam of one group is: nobody comes before it."""
    return Beam(
        width=strategy.width,
        num_return_sequences=strategy.num_return_sequences,
        length_penalty=strategy.length_penalty,
        early_stopping=strategy.early_stopping,
        scorer=strategy.scorer,
    )


def may_end(options: Options) -> bool:
    """Whether the options' constraint may end candidates by tokens that are no end otherwise."""
    constraint = options.constraint
    return isinstance(constraint, FromCatalogue) and constraint.end == "item"
