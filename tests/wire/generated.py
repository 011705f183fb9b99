"""Random records of the registry, made from their annotations alone."""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import types as builtin
import typing
from collections.abc import Callable
from typing import Any, Literal, Union

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from forkdecode import errors, results
from forkdecode.allowed import AllowedSource, Constraint
from forkdecode.config import EngineConfig
from forkdecode.constraint_types import FromCatalogue, JsonSchema, Lark, Regex
from forkdecode.errors import ForkdecodeError
from forkdecode.model.info import ModelInfo
from forkdecode.text.stop import StopAutomaton
from forkdecode.types import (
    Beam,
    BestOf,
    Contrastive,
    DiverseBeam,
    LengthNormalised,
    Options,
    Sample,
    StochasticBeam,
)

TEXTS = st.text(st.characters(), max_size=12)
UNICODE = st.text(max_size=8)
FLOATS = st.floats(allow_nan=False)
INTS = st.integers(-(2**63), 2**64 - 1)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=4)
ERRORS = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, ForkdecodeError)]


def _sampling() -> dict[str, st.SearchStrategy[Any]]:
    return {
        "temperature": st.floats(0.001, 100),
        "top_k": st.integers(0, 1000),
        "top_p": st.floats(0.01, 1),
        "min_p": st.floats(0, 1),
        "typical_p": st.floats(0.01, 1),
        "seed": st.none() | st.integers(0, 2**64 - 1),
    }


@st.composite
def _best_of(draw: Callable[[st.SearchStrategy[Any]], Any]) -> BestOf:
    size = draw(st.integers(1, 50))
    n = draw(st.integers(1, size))
    given = {name: draw(values) for name, values in _sampling().items()}
    rank_by = draw(st.sampled_from(["cumulative_logprob", "mean_logprob", "none"]))
    enough = draw(st.none() | st.integers(n, size)) if n < size else None
    return BestOf(best_of=size, n=size if rank_by == "none" else n, rank_by=rank_by,
                  first_finished=None if rank_by == "none" else enough, **given)  # fmt: skip


@st.composite
def _options(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Options:
    longest = draw(st.integers(1, 5000))
    return Options(
        max_tokens=longest,
        min_tokens=draw(st.integers(0, longest)),
        stop=tuple(draw(st.lists(st.text(min_size=1, max_size=5), max_size=3))),
        stop_token_ids=tuple(draw(IDS)),
        include_stop=draw(st.booleans()),
        repetition_penalty=draw(st.floats(0.1, 10)),
        logit_bias=draw(st.dictionaries(st.integers(0, 1000), st.floats(-100, 100), max_size=3)),
        bad_words=tuple(draw(st.lists(st.text(min_size=1, max_size=4) | st.just((1, 2)), max_size=3))),
        allowed_token_ids=draw(st.none() | st.just((5, 6))),
        forced_prefix=draw(UNICODE | IDS.map(tuple)),
        logprobs=draw(st.none() | st.integers(0, 20)),
        priority=draw(st.integers(-5, 5)),
        cache_salt=draw(UNICODE),
    )


@st.composite
def _info(draw: Callable[[st.SearchStrategy[Any]], Any]) -> ModelInfo:
    layers = draw(st.integers(0, 3))
    return ModelInfo(
        draw(TEXTS), 100, 2**31, tuple(draw(IDS)), ((2, 8),) * layers, (None, 4, 5)[:layers], "float32", 2**40
    )


SCORERS = st.sampled_from([None, LengthNormalised(0.5), Contrastive((-1.0, -2.5), 0.25)])


@functools.cache
def _checked() -> dict[type, st.SearchStrategy[Any]]:
    """Records that refuse most values: drawn from what they allow."""
    return {
        Sample: st.builds(Sample, n=st.integers(1, 100), **_sampling()),
        BestOf: _best_of(),
        Beam: st.builds(
            Beam,
            width=st.just(64),
            early_stopping=st.sampled_from([True, False, "never"]),
            widths=st.just(()) | st.just((3, 64, 9)),
            sibling_penalty=st.floats(0, 1e4),
            scorer=SCORERS,
        ),
        DiverseBeam: st.builds(
            DiverseBeam,
            width=st.just(24),
            groups=st.sampled_from([1, 3, 24]),
            diversity_penalty=st.floats(0, 1e4),
            scorer=SCORERS,
        ),
        LengthNormalised: st.builds(LengthNormalised, st.floats(-100, 100)),
        Contrastive: st.builds(
            Contrastive, st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=3).map(tuple), st.floats(-9, 9)
        ),
        StochasticBeam: st.builds(StochasticBeam, width=st.integers(1, 100), **_sampling()),
        Regex: st.builds(Regex, UNICODE.filter(bool)),
        JsonSchema: st.builds(JsonSchema, st.just('{"type": "string"}')),
        Lark: st.builds(Lark, UNICODE.filter(bool), st.sampled_from(["lark", "gbnf"])),
        FromCatalogue: st.builds(FromCatalogue, UNICODE.filter(bool), st.sampled_from(["eos", "item"])),
        Options: _options(),
        ModelInfo: _info(),
        EngineConfig: st.builds(
            EngineConfig,
            block_size=st.sampled_from([1, 2, 16, 128]),
            kv_memory=st.sampled_from(["25%", "2GiB", 12345]),
            num_blocks=st.none() | st.integers(1, 2**31 - 2),
        ),
        ForkdecodeError: st.builds(
            lambda kind, text, **more: kind(text, **more),
            st.sampled_from(ERRORS),
            TEXTS,
            field=st.none() | TEXTS,
            limit=st.none() | TEXTS,
            request_id=st.none() | TEXTS,
            retry_after=st.none() | FLOATS,
        ),
    }


def _array(scalar: type) -> st.SearchStrategy[Any]:
    shapes = arrays.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=4)
    return arrays.arrays(np.dtype(scalar), shapes)


@functools.cache
def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of an annotation."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, builtin.UnionType):
        return st.one_of(*map(values_of, args))
    if origin in _CONTAINERS:
        return _CONTAINERS[origin](args)
    return _PLAIN[hint] if hint in _PLAIN else records(hint)


def _tuple(args: Any) -> st.SearchStrategy[Any]:
    if args[1:] == (Ellipsis,):
        return st.lists(values_of(args[0]), max_size=3).map(tuple)
    return st.tuples(*map(values_of, args))


def _mapping(args: Any) -> st.SearchStrategy[Any]:
    return st.dictionaries(*map(values_of, args), max_size=3)


_CONTAINERS: dict[Any, Callable[[Any], st.SearchStrategy[Any]]] = {
    tuple: _tuple,
    Literal: st.sampled_from,
    np.ndarray: lambda args: _array(typing.get_args(args[1])[0]),
    dict: _mapping,
    collections.abc.Mapping: _mapping,
}
_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: INTS,
    float: FLOATS,
    str: TEXTS,
    bool: st.booleans(),
    type(None): st.none(),
    StopAutomaton: st.none(),
    Constraint: st.none(),
    AllowedSource: st.none(),
}


@functools.cache
def records(kind: type) -> st.SearchStrategy[Any]:
    """Records of one class."""
    checked = _checked()
    if kind in checked:
        return checked[kind]
    hints = typing.get_type_hints(kind, localns={"Candidate": results.Candidate})
    return st.builds(kind, **{f.name: st.deferred(lambda f=f: values_of(hints[f.name]))
                              for f in dataclasses.fields(kind)})  # fmt: skip
