"""Scorers of hypotheses to and from the protocol."""

from __future__ import annotations

from forkdecode.errors import invalid
from forkdecode.rpc.fields import given
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.types import Contrastive, CustomScorer, HypothesisScorer, LengthNormalised

_ALLOWED = "LengthNormalised or Contrastive"


def scorer_of(message: pb.HypothesisScorer) -> HypothesisScorer:
    """Raises InvalidRequestError."""
    match message.WhichOneof("kind"):
        case "length_normalised":
            return LengthNormalised(**given(message.length_normalised, ["alpha"]))
        case "contrastive":
            contrastive = message.contrastive
            return Contrastive(tuple(contrastive.baseline), **given(contrastive, ["weight"]))
        case _:
            raise invalid("scorer", "is not set", _ALLOWED)


def set_scorer(message: pb.HypothesisScorer, scorer: HypothesisScorer) -> None:
    """Writes every setting out. Raises InvalidRequestError for a caller's function, which cannot be sent."""
    match scorer:
        case LengthNormalised():
            message.length_normalised.alpha = scorer.alpha
        case Contrastive():
            message.contrastive.baseline.extend(scorer.baseline)
            message.contrastive.weight = scorer.weight
        case CustomScorer():
            raise invalid("scorer", "a CustomScorer's function cannot be sent", _ALLOWED)
