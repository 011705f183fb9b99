"""Requests that nobody should send: wrong, absurd, damaged, or no requests at all. Equal for equal seeds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.hostile_constraints import SOURCES, any_constraint
from benchmarks.hostile_random import any_field, damage, fill, tag
from benchmarks.hostile_wrong import wrong_decode, wrong_other
from forkdecode.results import ServedModel
from forkdecode.rpc.v1 import decode_pb2 as pb

METHODS: dict[str, Any] = {
    "Decode": pb.DecodeRequest,
    "Score": pb.ScoreRequest,
    "Tokenize": pb.TokenizeRequest,
    "Detokenize": pb.DetokenizeRequest,
    "GetModel": pb.GetModelRequest,
    "GetStats": pb.GetStatsRequest,
}
"""Their requests, by the names of the methods."""
_BROKEN = (b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xff\xfe", b"\xc3", b"\xf8\x88\x80\x80\x80", b"\xc0\x80")
"""Lone surrogates, a byte order mark of another encoding, half a character, five bytes, a long NUL."""
_MAX_SIZE = 3 * 2**20
"""Bytes of the largest that a server of default settings still reads."""


@dataclass(frozen=True, slots=True)
class Attack:
    """Bytes for a method. refused: it must not be served; path: the field that must then be named, or ""
    when any may be."""

    kind: str
    method: str
    data: bytes
    refused: bool = False
    path: str = ""


def attacks(seed: int, model: ServedModel, count: int) -> Iterator[Attack]:
    """`count` requests of all kinds against a server of `model`, in random order."""
    rng = random.Random(seed)
    kinds, weights = zip(*_KINDS, strict=True)
    for make in rng.choices(kinds, weights, k=count):
        yield make(rng, model)


def plain(rng: random.Random, model: ServedModel) -> pb.DecodeRequest:
    """A request that could be served, with something in every part, of few tokens."""
    request = pb.DecodeRequest(stream=rng.random() < 0.5)
    request.options.max_tokens = rng.randint(1, 3)
    ids = [rng.randrange(model.vocab_size) for _ in range(rng.randint(1, 8))]
    form = rng.randrange(3)
    if form == 0 or not model.has_tokenizer:
        request.prompt.token_ids.ids.extend(ids)
    elif form == 1 and model.has_chat_template:
        request.prompt.chat.messages.add(role="user", content="hello")
    else:
        request.prompt.text = "hello"
    _plain_strategy(rng, request)
    return request


def _plain_strategy(rng: random.Random, request: pb.DecodeRequest) -> None:
    match rng.randrange(6):
        case 1:
            request.sample.n = rng.randint(1, 3)
        case 2:
            request.best_of.best_of = 3
        case 3:
            request.beam.width = rng.randint(1, 3)
        case 4:
            request.diverse_beam.width = rng.choice((2, 4))
        case 5:
            request.stochastic_beam.width = rng.randint(1, 3)


# -- kinds ----------------------------------------------------------------------------------------------


def _wrong(rng: random.Random, model: ServedModel) -> Attack:
    """One field that is wrong in a request that is right."""
    if rng.random() < 0.8:
        request, path = wrong_decode(rng, model, plain(rng, model))
        return Attack("wrong value", "Decode", request.SerializeToString(), True, path)
    method, other, path = wrong_other(rng, model)
    return Attack("wrong value", method, other.SerializeToString(), True, path)


def _random(rng: random.Random, model: ServedModel) -> Attack:
    """Any values in any fields."""
    method = rng.choice(list(METHODS))
    request = METHODS[method]()
    fill(rng, request, model)
    if isinstance(request, pb.DecodeRequest) and rng.random() < 0.9:
        request.options.max_tokens = rng.randint(1, 3)
    return Attack("random message", method, request.SerializeToString())


def _constrained(rng: random.Random, model: ServedModel) -> Attack:
    """A constraint of any kind, right or nearly so, in a request that is right."""
    request = plain(rng, model)
    request.options.max_tokens = rng.choice((1, 3, 12))
    any_constraint(rng, model, request.options)
    return Attack("constrained", "Decode", request.SerializeToString())


def _extreme(rng: random.Random, model: ServedModel) -> Attack:
    """Beams at the ends of what their settings may be, all of which is served or has no room."""
    request = plain(rng, model)
    width, ending = rng.choice((1, 2, 17, model.vocab_size + 1)), rng.choice((0, 1, 2, 3))
    penalty = rng.choice((-100.0, -1.0, 0.0, 1.0, 100.0))
    match rng.randrange(3):
        case 0:
            groups = rng.choice((1, width))
            beam: Any = request.diverse_beam
            beam.MergeFrom(pb.DiverseBeam(width=width, groups=groups, diversity_penalty=rng.choice((0, 1e4))))
        case 1:
            beam = request.beam
            beam.width, beam.sibling_penalty = width, rng.choice((0.0, 1e4))
            beam.widths.extend(rng.choice(([], [width], [1, width], [width, 1], [1, width] * 30_000)))
        case _:
            request.stochastic_beam.width = width
            sampling = request.stochastic_beam.sampling
            sampling.temperature, sampling.top_k = (
                rng.choice((5e-324, 1e-3, 1e4)),
                rng.choice((0, 1, 2**31 - 1)),
            )
            sampling.seed = rng.choice((0, 2**64 - 1))
            return Attack("extreme beam", "Decode", request.SerializeToString())
    beam.early_stopping = ending
    if rng.random() < 0.5:
        beam.length_penalty = penalty
    elif rng.random() < 0.5:
        beam.scorer.length_normalised.alpha = penalty
    else:
        baseline = rng.choice(([1e6], [-1e6, 1e6], [0.0] * 65_536))
        beam.scorer.contrastive.MergeFrom(
            pb.Contrastive(baseline=baseline, weight=rng.choice((-1e4, 0, 1e4)))
        )
    return Attack("extreme beam", "Decode", request.SerializeToString())


def _mutated(rng: random.Random, model: ServedModel) -> Attack:
    """A serialised request, damaged."""
    source = _random if rng.random() < 0.5 else _wrong
    data = bytearray(plain(rng, model).SerializeToString() if rng.random() < 0.4 else source(rng, model).data)
    for _ in range(rng.randint(1, 4)):
        damage(rng, data)
    return Attack("damaged message", rng.choice(list(METHODS)), bytes(data[:_MAX_SIZE]))


def _garbage(rng: random.Random, model: ServedModel) -> Attack:
    return Attack("garbage", rng.choice(list(METHODS)), rng.randbytes(rng.choice((1, 2, 8, 50, 400, 20_000))))


def _broken_text(rng: random.Random, model: ServedModel) -> Attack:
    """Bytes in a text that are no text."""
    request, mark = plain(rng, model), "@@@@@@@@"
    place: dict[str, Callable[[], Any]] = {
        "request_id": lambda: setattr(request, "request_id", mark),
        "prompt.text": lambda: setattr(request.prompt, "text", mark),
        "prompt.chat.messages[0].role": lambda: request.prompt.chat.messages.insert(
            0, pb.ChatMessage(role=mark)
        ),
        "options.stop[1]": lambda: request.options.stop.extend(["a", mark]),
        "options.bad_words[0].text": lambda: request.options.bad_words.add(text=mark),
        "options.forced_prefix_text": lambda: setattr(request.options, "forced_prefix_text", mark),
        "options.cache_salt": lambda: setattr(request.options, "cache_salt", mark),
        "options.constraint.catalogue.name": lambda: setattr(
            request.options.constraint.catalogue, "name", mark
        ),
        **{
            f"options.constraint.{kind}": partial(setattr, request.options.constraint, kind, mark)
            for kind in SOURCES
        },
    }
    path = rng.choice(list(place))
    place[path]()
    broken = rng.choice(_BROKEN)
    data = request.SerializeToString().replace(mark.encode(), broken.rjust(len(mark), b"a"))
    return Attack("broken text", "Decode", data, True, path)


def _unknown(rng: random.Random, model: ServedModel) -> Attack:
    """A field that no version has, somewhere, or one of another type."""
    request = plain(rng, model)
    request.options.bad_words.add(text="zzz")
    inner = [("", request), ("prompt.", request.prompt), ("options.", request.options)]
    inner.append(("options.bad_words[0].", request.options.bad_words[0]))
    inner.append(("options.constraint.catalogue.", request.options.constraint.catalogue))
    inner.append(("beam.scorer.length_normalised.", request.beam.scorer.length_normalised))
    prefix, message = rng.choice(inner)
    number = rng.choice((50, 1000, 2**29 - 1))
    message.MergeFromString(any_field(rng, number))
    return Attack("unknown field", "Decode", request.SerializeToString(), True, f"{prefix}{number}")


def _wrong_type(rng: random.Random, model: ServedModel) -> Attack:
    """A member of a oneof, as a number of eight bytes: no field has that type."""
    number = rng.choice((2, 3, 4, 5, 9, 10))
    data = plain(rng, model).SerializeToString() + tag(number, 1) + rng.randbytes(8)
    return Attack("wrong type in oneof", "Decode", data, True, str(number))


def _both(rng: random.Random, model: ServedModel) -> Attack:
    """Two requests in one: several members of each oneof."""
    data = b"".join(plain(rng, model).SerializeToString() for _ in range(rng.randint(2, 4)))
    return Attack("several of a oneof", "Decode", data)


def _huge(rng: random.Random, model: ServedModel) -> Attack:
    """Far too much of something."""
    request, size = plain(rng, model), rng.choice((2**16, 2**20))
    path = rng.choice(list(_HUGE))
    _HUGE[path](request, size)
    return Attack("huge", "Decode", request.SerializeToString(), True, path)


_HUGE: dict[str, Callable[[pb.DecodeRequest, int], Any]] = {
    "prompt": lambda r, size: r.prompt.token_ids.ids.extend([1] * size),
    "options.stop": lambda r, size: r.options.stop.extend(["ab"] * (size // 4)),
    "request_id": lambda r, size: setattr(r, "request_id", "x" * size),
    "options.max_tokens": lambda r, size: setattr(r.options, "max_tokens", 2**31 - size),
    "options.stop_token_ids": lambda r, size: r.options.stop_token_ids.extend([2**31] * (size // 5)),
    "options.bad_words": lambda r, size: r.options.bad_words.extend([pb.BadWord(text="a")] * (size // 8)),
    "beam.widths": lambda r, size: r.beam.widths.extend([4] * (2**16 + size)),
    "beam.scorer.contrastive.baseline": lambda r, size: r.beam.scorer.contrastive.baseline.extend(
        [-1.0] * (2**16 + size // 8)
    ),
    "options.constraint.regex": lambda r, size: setattr(r.options.constraint, "regex", "a" * (2**18 + size)),
    "options.constraint.catalogue.name": lambda r, size: setattr(
        r.options.constraint.catalogue, "name", "é" * size
    ),
    "prompt.chat.messages": lambda r, size: r.prompt.chat.messages.extend(
        [pb.ChatMessage()] * (2**16 + size // 64)
    ),
    "options.forced_prefix_ids": lambda r, size: r.options.forced_prefix_ids.ids.extend([1] * size),
}


def _huge_text(rng: random.Random, model: ServedModel) -> Attack:
    """A megabyte of text, in a prompt or to be tokenized."""
    text = rng.choice(("a", "a ", "é", "\U0001f600", "\0")) * 2**20
    prompt = pb.Prompt(text=text.encode()[: 2**20].decode("utf-8", "ignore"))
    if rng.random() < 0.3:
        return Attack("huge text", "Tokenize", pb.TokenizeRequest(prompt=prompt).SerializeToString())
    request = plain(rng, model)
    request.prompt.CopyFrom(prompt)
    return Attack("huge text", "Decode", request.SerializeToString(), True, "prompt")


def _too_big(rng: random.Random, model: ServedModel) -> Attack:
    """More candidates than blocks or tokens there are, or more bytes than the server reads."""
    request = plain(rng, model)
    if rng.random() < 0.1:
        request.options.cache_salt = "x" * model.max_request_bytes
        return Attack("too big", "Decode", request.SerializeToString(), True)
    wide = rng.choice((model.vocab_size + 1, 65_536))
    match rng.randrange(5):
        case 0:
            request.beam.width = wide
        case 1:
            request.diverse_beam.MergeFrom(pb.DiverseBeam(width=wide, groups=rng.choice((1, wide))))
        case 2:
            request.stochastic_beam.width = wide
        case _:
            request.sample.n = 65_536
    return Attack("too big", "Decode", request.SerializeToString(), request.sample.n > model.num_blocks)


_KINDS: tuple[tuple[Callable[[random.Random, ServedModel], Attack], float], ...] = (
    (_wrong, 30),
    (_random, 20),
    (_mutated, 20),
    (_constrained, 8),
    (_extreme, 4),
    (_garbage, 8),
    (_broken_text, 8),
    (_unknown, 6),
    (_wrong_type, 3),
    (_both, 3),
    (_too_big, 2),
    (_huge, 1.6),
    (_huge_text, 0.4),
)
