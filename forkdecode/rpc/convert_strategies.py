"""Strategies to and from the protocol."""

from __future__ import annotations

from typing import Any, cast, get_args

from forkdecode.checks import shown
from forkdecode.errors import invalid
from forkdecode.rpc.convert_scorers import scorer_of, set_scorer
from forkdecode.rpc.fields import given, named
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.types import (
    STRATEGY_NAMES,
    Beam,
    BestOf,
    DiverseBeam,
    EarlyStopping,
    Greedy,
    RankBy,
    Sample,
    StochasticBeam,
    Strategy,
)

_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p", "seed")
_BEAM = ("width", "num_return_sequences", "length_penalty", "patience", "sibling_penalty")
_DIVERSE = ("width", "groups", "diversity_penalty", "num_return_sequences", "length_penalty")
_RANKS: dict[RankBy, pb.RankBy] = {
    name: cast(pb.RankBy, pb.RankBy.Value(f"RANK_BY_{name.upper()}")) for name in get_args(RankBy)
}
_STOPPING: dict[EarlyStopping, pb.EarlyStopping] = {
    False: pb.EARLY_STOPPING_FALSE,
    True: pb.EARLY_STOPPING_TRUE,
    "never": pb.EARLY_STOPPING_NEVER,
}


def strategy_of(request: pb.DecodeRequest | pb.DecodeNodes) -> Strategy:
    """Greedy if none is set. Raises InvalidRequestError."""
    which: Any = request
    match which.WhichOneof("strategy"):
        case "sample":
            sample = which.sample
            return Sample(**given(sample, ["n"]), **given(sample.sampling, _SAMPLING))
        case "best_of":
            return _best_of(which.best_of)
        case "beam":
            beam = which.beam
            return Beam(**given(beam, _BEAM), widths=tuple(beam.widths), **_ending(beam))
        case "diverse_beam":
            return DiverseBeam(**given(which.diverse_beam, _DIVERSE), **_ending(which.diverse_beam))
        case "stochastic_beam":
            beam = which.stochastic_beam
            return StochasticBeam(**given(beam, ["width"]), **given(beam.sampling, _SAMPLING))
        case _:
            return Greedy()


def _best_of(message: pb.BestOf) -> BestOf:
    settings = given(message, ["best_of", "n", "first_finished"]) | given(message.sampling, _SAMPLING)
    if message.rank_by != pb.RANK_BY_UNSPECIFIED:
        settings["rank_by"] = named("rank_by", pb.RankBy, _RANKS, message.rank_by)
    return BestOf(**settings)


def _ending(message: pb.Beam | pb.DiverseBeam) -> dict[str, Any]:
    """What the two have in common: when they end, and what ranks their hypotheses."""
    settings: dict[str, Any] = {}
    if message.early_stopping != pb.EARLY_STOPPING_UNSPECIFIED:
        settings["early_stopping"] = named(
            "early_stopping", pb.EarlyStopping, _STOPPING, message.early_stopping
        )
    if message.HasField("scorer"):
        settings["scorer"] = scorer_of(message.scorer)
    return settings


def set_strategy(request: pb.DecodeRequest | pb.DecodeNodes, strategy: Any) -> None:
    """Writes every setting out, so that defaults of another version don't matter.

    Raises InvalidRequestError for a scorer that is a Python callable: it stays where it is.
    """
    which: Any = request
    match strategy:
        case Greedy():
            which.greedy.SetInParent()
        case Sample():
            which.sample.n = strategy.n
            _set_sampling(which.sample.sampling, strategy)
        case BestOf():
            _set_best_of(which.best_of, strategy)
        case Beam():
            _set(which.beam, strategy, _BEAM)
            which.beam.widths.extend(strategy.widths)
            _set_ending(which.beam, strategy)
        case DiverseBeam():
            _set(which.diverse_beam, strategy, _DIVERSE)
            _set_ending(which.diverse_beam, strategy)
        case StochasticBeam():
            which.stochastic_beam.width = strategy.width
            _set_sampling(which.stochastic_beam.sampling, strategy)
        case _:
            raise invalid("strategy", f"{shown(strategy)} is not a strategy", STRATEGY_NAMES)


def _set_ending(message: pb.Beam | pb.DiverseBeam, strategy: Beam | DiverseBeam) -> None:
    message.early_stopping = _STOPPING[strategy.early_stopping]
    if strategy.scorer is not None:
        set_scorer(message.scorer, strategy.scorer)


def _set_best_of(message: pb.BestOf, strategy: BestOf) -> None:
    rank_by = strategy.rank_by
    if not isinstance(rank_by, str):
        allowed = " or ".join(repr(name) for name in _RANKS)
        raise invalid("rank_by", "a callable cannot be sent: score finished candidates yourself", allowed)
    _set(message, strategy, ("best_of", "n", "first_finished"))
    _set_sampling(message.sampling, strategy)
    message.rank_by = _RANKS[rank_by]


def _set_sampling(message: pb.Sampling, strategy: Sample | BestOf | StochasticBeam) -> None:
    _set(message, strategy, _SAMPLING)


def _set(message: Any, record: Any, names: tuple[str, ...]) -> None:
    for name in names:
        value = getattr(record, name)
        if value is not None:
            setattr(message, name, value)
