"""Requests with one wrong field each, and the path by which it must be named."""

from __future__ import annotations

import math
import random
from typing import Any

from benchmarks.hostile_constraints import wrong_constraint, wrong_scorer
from forkdecode.results import ServedModel
from forkdecode.rpc.v1 import decode_pb2 as pb

_HUGE_INT = (2**31, 2**32 - 1)
_NO_NUMBER = (math.nan, math.inf, -math.inf)
_PENALTY = (*_NO_NUMBER, 101.0, -1e300)
_SAMPLING: dict[str, tuple[Any, ...]] = {
    "temperature": (*_NO_NUMBER, -1.0, 10001.0),
    "top_k": _HUGE_INT,
    "top_p": (*_NO_NUMBER, 0.0, -0.5, 1.5),
    "min_p": (*_NO_NUMBER, -0.5, 1.5),
    "typical_p": (*_NO_NUMBER, 0.0, -0.5, 1.5),
}
_VALUES: dict[str, tuple[Any, ...]] = {
    "options.max_tokens": (0, *_HUGE_INT, 2**31 - 1),
    "options.min_tokens": (4, *_HUGE_INT),
    "options.repetition_penalty": (*_NO_NUMBER, 0.0, -1.0, 10001.0),
    "options.presence_penalty": _PENALTY,
    "options.frequency_penalty": _PENALTY,
    "options.no_repeat_ngram_size": (1025, *_HUGE_INT),
    "options.return_logprobs": (1025, *_HUGE_INT),
    "options.update_every": _HUGE_INT,
    "options.update_beams": (65_537, *_HUGE_INT),
    "sample.n": (0, 65_537, *_HUGE_INT),
    "best_of.best_of": (0, 65_537, *_HUGE_INT),
    "best_of.n": (0, 9, *_HUGE_INT),
    "best_of.first_finished": (0, 9, *_HUGE_INT),
    "best_of.rank_by": (99, -1, 2**31 - 1),
    "beam.width": (0, 65_537, *_HUGE_INT),
    "beam.num_return_sequences": (0, 9, *_HUGE_INT),
    "beam.length_penalty": _PENALTY,
    "beam.early_stopping": (99, -1, -(2**31)),
    "beam.patience": (*_NO_NUMBER, 0.0, -1.0, 2.0),
    "beam.sibling_penalty": (*_NO_NUMBER, -1.0, 10001.0),
    "diverse_beam.width": (0, 65_537, *_HUGE_INT),
    "diverse_beam.groups": (0, 3, 5, *_HUGE_INT),
    "diverse_beam.diversity_penalty": (*_NO_NUMBER, -1.0, 10001.0),
    "diverse_beam.num_return_sequences": (0, 5, *_HUGE_INT),
    "diverse_beam.length_penalty": _PENALTY,
    "diverse_beam.early_stopping": (99, -1, -(2**31)),
    "stochastic_beam.width": (0, 65_537, *_HUGE_INT),
    "stochastic_beam.sampling.temperature": (0.0, *_SAMPLING["temperature"]),
    **{
        f"{strategy}.sampling.{name}": values
        for strategy in ("sample", "best_of", "stochastic_beam")
        for name, values in _SAMPLING.items()
        if strategy != "stochastic_beam" or name != "temperature"
    },
}
_STRATEGIES = tuple(field.name for field in pb.DecodeRequest.DESCRIPTOR.oneofs_by_name["strategy"].fields)
_SHAPES = (
    "prompt",
    "request_id",
    "temperature",
    "beam.widths",
    "scorer",
    "options.constraint",
    "options.constraint",
    "options.logit_bias",
    "options.bad_words",
    "options.stop",
    "options.stop_token_ids",
    "options.allowed_token_ids",
    "options.forced_prefix_ids",
)


def wrong_decode(
    rng: random.Random, model: ServedModel, request: pb.DecodeRequest
) -> tuple[pb.DecodeRequest, str]:
    """`request`, which could be served, spoilt in one place."""
    path = rng.choice((*_VALUES, *_SHAPES, *_SHAPES))
    if path in _VALUES:
        for strategy in _STRATEGIES:
            if path.startswith(f"{strategy}."):
                getattr(request, strategy).Clear()
        _set(request, path, rng.choice(_VALUES[path]))
        return request, path
    return request, _spoil(rng, model, request, path)


def _set(message: Any, path: str, value: Any) -> None:
    *way, last = path.split(".")
    for step in way:
        message = getattr(message, step)
    setattr(message, last, value)


def _spoil(rng: random.Random, model: ServedModel, request: pb.DecodeRequest, path: str) -> str:
    """Spoils what is more than a number; the path that is to be named."""
    options = request.options
    outside = rng.choice((model.vocab_size, model.vocab_size + 1, 2**31 - 1, *_HUGE_INT))
    match path:
        case "prompt":
            _spoil_prompt(rng, request, outside)
        case "options.logit_bias":
            wrong = {outside: 0.0} if rng.random() < 0.5 else {1: rng.choice((*_NO_NUMBER, 1e300, -10001.0))}
            options.logit_bias.update(wrong)
        case "options.bad_words":
            unknown = pb.BadWord(token_ids=pb.TokenIds(ids=[outside]))
            word = rng.choice((pb.BadWord(), pb.BadWord(text=""), unknown))
            options.bad_words.append(word)
        case "options.stop":
            options.stop.extend(rng.choice(([""], ["ab", ""], ["x" * 4097], ["é" * 1000] * 3)))
        case "request_id":
            request.request_id = rng.choice(("x", "é", "\0")) * 257
        case "temperature":
            request.sample.n = 2
            request.sample.sampling.temperature = 0.0
            return "sample.sampling.temperature"
        case "beam.widths":
            request.beam.width = 4
            request.beam.widths.extend(rng.choice(([0], [4, 0], [5], [3], [4] * 65_537, [2**32 - 1, 4])))
        case "scorer":
            name = rng.choice(("beam", "diverse_beam"))
            getattr(request, name).Clear()
            getattr(request, name).SetInParent()
            return wrong_scorer(rng, name, getattr(request, name))
        case "options.constraint":
            return wrong_constraint(rng, model, options)
        case "options.stop_token_ids":
            options.stop_token_ids.append(outside)
        case "options.allowed_token_ids":
            options.allowed_token_ids.ids.extend(rng.choice(([], [outside], [1, outside])))
            options.allowed_token_ids.SetInParent()
        case "options.forced_prefix_ids":
            options.forced_prefix_ids.ids.extend(rng.choice(([outside], [1, 1, 1, 1])))
    return path


def _spoil_prompt(rng: random.Random, request: pb.DecodeRequest, outside: int) -> None:
    empty = (
        pb.Prompt(),
        pb.Prompt(chat=pb.Chat()),
        pb.Prompt(token_ids=pb.TokenIds()),
        pb.Prompt(token_ids=pb.TokenIds(ids=[outside])),
        pb.Prompt(token_ids=pb.TokenIds(ids=[1] * 10 + [outside])),
    )
    request.prompt.CopyFrom(rng.choice(empty))
    if rng.random() < 0.1:
        request.ClearField("prompt")


def wrong_other(rng: random.Random, model: ServedModel) -> tuple[str, Any, str]:
    """A method, a request for it that is wrong in one place, and that place."""
    outside = rng.choice((model.vocab_size, 2**31 - 1, *_HUGE_INT))
    ids, good = pb.TokenIds(ids=[1, outside]), pb.Prompt(token_ids=pb.TokenIds(ids=[1]))
    piece = pb.Continuation(token_ids=pb.TokenIds(ids=[1]))
    cases: tuple[tuple[str, Any, str], ...] = (
        ("Tokenize", pb.TokenizeRequest(), "prompt"),
        ("Tokenize", pb.TokenizeRequest(prompt=pb.Prompt(token_ids=ids)), "prompt"),
        ("Tokenize", pb.TokenizeRequest(prompt=pb.Prompt(chat=pb.Chat())), "prompt"),
        ("Detokenize", pb.DetokenizeRequest(token_ids=[1, outside]), "token_ids"),
        ("Score", pb.ScoreRequest(prompt=good), "continuations"),
        ("Score", pb.ScoreRequest(continuations=[piece]), "prompt"),
        ("Score", pb.ScoreRequest(prompt=good, continuations=[piece, pb.Continuation()]), "continuations"),
        ("Score", pb.ScoreRequest(prompt=good, continuations=[pb.Continuation(text="")]), "continuations"),
        (
            "Score",
            pb.ScoreRequest(prompt=good, continuations=[pb.Continuation(token_ids=ids)]),
            "continuations",
        ),
        (
            "Score",
            pb.ScoreRequest(prompt=good, continuations=[piece], top_logprobs=rng.choice((1025, *_HUGE_INT))),
            "top_logprobs",
        ),
    )
    return rng.choice(cases)
