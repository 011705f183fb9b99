"""What callers write is checked when it is written: the error names the field, plain values are kept."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from forkdecode import other_names
from forkdecode.checks import shown
from forkdecode.config import EngineConfig
from forkdecode.errors import InvalidRequestError
from forkdecode.types import OPTION_NAMES, Beam, BestOf, Options, Sample, make_options

HUGE = 10**5000  # more digits than Python prints
NOT_INTEGERS = [True, "3", 2.0, math.nan, [1], {}, b"1", np.float32(2), -1, HUGE]
NOT_NUMBERS = [None, True, "0.5", math.nan, math.inf, -math.inf, -1e9, HUGE, [0.5], 1j, np.float64("nan")]
NOT_BOOLS = [None, 0, 1, "True", 1.0, []]

INTEGERS: list[tuple[Callable[..., Any], str]] = [
    (Sample, "n"), (Sample, "top_k"), (Sample, "seed"), (BestOf, "best_of"), (BestOf, "first_finished"),
    (BestOf, "n"), (Beam, "width"), (Beam, "num_return_sequences"), (Options, "min_tokens"),
    (Options, "no_repeat_ngram_size"), (Options, "logprobs"), (EngineConfig, "block_size"),
    (EngineConfig, "num_blocks"), (Options, "max_tokens"), (EngineConfig, "max_step_tokens"),
    (EngineConfig, "max_prefill_tokens"), (EngineConfig, "max_waiting"), (EngineConfig, "aging_steps"),
]  # fmt: skip
NUMBERS: list[tuple[Callable[..., Any], str]] = [
    (Sample, "temperature"), (Sample, "top_p"), (Sample, "min_p"), (Sample, "typical_p"),
    (BestOf, "temperature"), (Beam, "length_penalty"), (Beam, "patience"), (Options, "repetition_penalty"),
    (Options, "presence_penalty"), (Options, "frequency_penalty"), (EngineConfig, "watermark"),
]  # fmt: skip
FLAGS = [
    (Options, "include_stop"), (Options, "ignore_eos"), (EngineConfig, "prefix_cache"),
    (EngineConfig, "overcommit"), (EngineConfig, "batch_invariant"),
]  # fmt: skip
TOKENS = ["stop_token_ids", "allowed_token_ids", "forced_prefix"]


def refused(kind: Callable[..., Any], **values: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        kind(**values)
    assert caught.value.field in values
    assert str(caught.value).startswith(f"{caught.value.field}: ")
    assert "allowed: " in str(caught.value)
    assert len(str(caught.value)) < 400
    return caught.value


@pytest.mark.parametrize("value", NOT_INTEGERS, ids=shown)
@pytest.mark.parametrize(("kind", "name"), INTEGERS, ids=lambda v: getattr(v, "__name__", v))
def test_integers(kind: Callable[..., Any], name: str, value: object) -> None:
    refused(kind, **{name: value})


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=shown)
@pytest.mark.parametrize(("kind", "name"), NUMBERS, ids=lambda v: getattr(v, "__name__", v))
def test_numbers(kind: Callable[..., Any], name: str, value: object) -> None:
    refused(kind, **{name: value})


@pytest.mark.parametrize("value", NOT_BOOLS, ids=ascii)
@pytest.mark.parametrize(("kind", "name"), FLAGS, ids=lambda v: getattr(v, "__name__", v))
def test_flags(kind: Callable[..., Any], name: str, value: object) -> None:
    refused(kind, **{name: value})


@pytest.mark.parametrize(
    "value", [5, "\ud800", b"ab", {1, 2}, {1: 2}, [1.5], ["a"], [-1], [None], [True]], ids=ascii
)
@pytest.mark.parametrize("name", TOKENS)
def test_token_lists(name: str, value: object) -> None:
    refused(Options, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", None), ("stop", ""), ("stop", ["a", ""]), ("stop", [b"a"]), ("stop", ["\udfff"]),
        ("stop", "x" * 5000), ("stop", {"a"}), ("stop", 3),
        ("bad_words", "word"), ("bad_words", [""]), ("bad_words", [[]]), ("bad_words", [[1.0]]),
        ("bad_words", ["\ud800"]), ("bad_words", None),
        ("logit_bias", None), ("logit_bias", [(1, 2.0)]), ("logit_bias", {"1": 2.0}),
        ("logit_bias", {1: None}), ("logit_bias", {1: math.nan}), ("logit_bias", {-1: 1.0}),
        ("logit_bias", {True: 1.0}),
        ("allowed_token_ids", []), ("allowed_token_ids", "abc"), ("stop_token_ids", None),
        ("forced_prefix", None), ("cache_salt", None), ("cache_salt", "\ud800"), ("cache_salt", b"x"),
        ("priority", None), ("priority", 2**31),
    ],
    ids=ascii,
)  # fmt: skip
def test_other_options(name: str, value: object) -> None:
    refused(Options, **{name: value})


@pytest.mark.parametrize(
    "size", [None, True, -1, "", "2 GB please", "-1GiB", "nan", "9" * 21, 1.5, "1e9", HUGE], ids=shown
)
@pytest.mark.parametrize("name", ["kv_memory", "swap_memory"])
def test_sizes(name: str, size: object) -> None:
    refused(EngineConfig, **{name: size})


@pytest.mark.parametrize("share", ["0%", "96%", "nan%", "inf%", "-1%", "%", "half%"])
def test_shares_of_memory(share: str) -> None:
    refused(EngineConfig, kv_memory=share)


@pytest.mark.parametrize("value", [None, 2, "always", np.array([1, 2]), [True]])
def test_named_choices(value: object) -> None:
    refused(Beam, early_stopping=value)
    refused(EngineConfig, preemption=value)
    refused(EngineConfig, weights=value)
    refused(BestOf, rank_by=value)


def test_options_that_contradict_each_other() -> None:
    assert refused(Sample, n=2, temperature=0.0).field == "temperature"
    assert refused(BestOf, best_of=2, temperature=0).field == "temperature"
    assert refused(BestOf, best_of=2, n=3).field == "n"
    assert refused(BestOf, best_of=4, n=2, first_finished=1).field == "first_finished"
    assert refused(Beam, width=4, num_return_sequences=5).field == "num_return_sequences"
    assert refused(Beam, patience=2.0, early_stopping="never").field == "patience"
    assert refused(Options, max_tokens=3, min_tokens=4).field == "min_tokens"
    Beam(width=4, num_return_sequences=8, patience=2.0, early_stopping=True)


def test_unknown_options_are_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError, match=r"max_token: is not an option; allowed: max_tokens, ") as e:
        make_options({"max_token": 3})
    assert e.value.field == "max_token"


def test_names_from_elsewhere_are_told_what_is_meant_here() -> None:
    here = {
        "temperature": r"strategy=Sample or BestOf or StochasticBeam: Sample\(temperature=...\)",
        "width": r"strategy=Beam or DiverseBeam or StochasticBeam: Beam\(width=...\)",
        "num_beams": r"strategy=Beam\(width=...\)",
        "max_new_tokens": "max_tokens$",
    }
    for name, said in here.items():
        with pytest.raises(InvalidRequestError, match=f"^{name}: is not an option; allowed: .*{said}") as e:
            make_options({name: 3})
        assert e.value.field == name
    assert set(OPTION_NAMES).isdisjoint(other_names.NAMES), "an option is not refused"
    first = {re.split(r"\W", told)[0] for told in other_names.NAMES.values()}
    assert first <= {*OPTION_NAMES, "strategy", "score"}


def test_what_numpy_has_becomes_plain() -> None:
    sample = Sample(n=np.int64(3), temperature=np.float32(0.5), seed=np.uint64(2**63))
    assert sample == Sample(n=3, temperature=0.5, seed=2**63)
    assert {type(v) for v in (sample.n, sample.seed)} == {int}
    assert type(sample.temperature) is float
    options = Options(
        max_tokens=np.int32(4),
        stop_token_ids=np.array([1, 2]),
        logit_bias={np.int64(3): np.float32(1)},
        bad_words=[np.array([1, 2]), "a"],
    )
    plain = Options(max_tokens=4, stop_token_ids=[1, 2], logit_bias={3: 1.0}, bad_words=[(1, 2), "a"])
    assert options == plain
    assert all(type(t) is int for t in (*options.stop_token_ids, *options.logit_bias))
    assert EngineConfig(block_size=np.int64(8), num_blocks=np.int64(9)) == EngineConfig(
        block_size=8, num_blocks=9
    )


def test_options_do_not_follow_the_callers_containers() -> None:
    bias, stops = {1: 2.0}, ["a"]
    options = Options(logit_bias=bias, stop=stops)
    bias[2] = 1.0
    stops.append("b")
    assert options.logit_bias == {1: 2.0}
    assert options.stop == ("a",)


@pytest.mark.parametrize("value", [0.0, 1e-320, 1e-38, 9.9e-5, 1.1e4, -1.0])
def test_a_penalty_that_makes_logits_infinite_is_refused(value: float) -> None:
    refused(Options, repetition_penalty=value)
