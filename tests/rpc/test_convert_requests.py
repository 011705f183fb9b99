"""Requests: there and back without a change, what is unset is the default, what is wrong is named."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given, settings

from forkdecode.errors import InvalidRequestError
from forkdecode.rpc.convert_prompts import prompt_message, prompt_of
from forkdecode.rpc.convert_requests import (
    DecodeCall,
    ScoreCall,
    decode_call,
    decode_request,
    score_call,
    score_request,
)
from forkdecode.rpc.fields import field_path
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.types import (
    LOCAL_OPTIONS,
    Beam,
    BestOf,
    Contrastive,
    CustomScorer,
    DiverseBeam,
    EarlyStopping,
    Greedy,
    LengthNormalised,
    Options,
    RankBy,
    Sample,
    StochasticBeam,
)
from tests.rpc import records

TEXT = pb.Prompt(text="hi")


def names(record: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(record)}


def fields(message: Any) -> set[str]:
    return set(message.DESCRIPTOR.fields_by_name)


def sent(request: Any) -> Any:
    """As the other side parses it."""
    return type(request).FromString(request.SerializeToString())


class TestThereAndBack:
    @given(records.calls)
    @settings(deadline=None)
    def test_decode(self, call: DecodeCall) -> None:
        assert decode_call(sent(decode_request(call))) == call

    @given(records.score_calls)
    @settings(deadline=None)
    def test_score(self, call: ScoreCall) -> None:
        assert score_call(sent(score_request(call))) == call

    @given(records.prompts)
    def test_prompt(self, prompt: Any) -> None:
        assert prompt_of(sent(prompt_message(prompt))) == prompt

    def test_a_text_as_chat_is_one_user_message(self) -> None:
        call = decode_call(decode_request(DecodeCall("hi", chat=True)))
        assert call.prompt == [{"role": "user", "content": "hi"}]
        assert not call.chat

    def test_lists_and_arrays_are_token_ids(self) -> None:
        numpy = pytest.importorskip("numpy")
        assert prompt_of(prompt_message([3, 4])) == (3, 4)
        assert prompt_of(prompt_message(numpy.array([3, 4]))) == (3, 4)


class TestDefaults:
    def test_of_a_request(self) -> None:
        assert decode_call(pb.DecodeRequest(prompt=TEXT)) == DecodeCall("hi", Greedy(), Options())

    @pytest.mark.parametrize(
        ("request_", "strategy"),
        [
            (pb.DecodeRequest(greedy=pb.Greedy()), Greedy()),
            (pb.DecodeRequest(sample=pb.Sample()), Sample()),
            (pb.DecodeRequest(sample=pb.Sample(sampling=pb.Sampling())), Sample()),
            (pb.DecodeRequest(best_of=pb.BestOf()), BestOf()),
            (pb.DecodeRequest(beam=pb.Beam()), Beam()),
            (pb.DecodeRequest(diverse_beam=pb.DiverseBeam()), DiverseBeam()),
            (
                pb.DecodeRequest(
                    beam=pb.Beam(scorer=pb.HypothesisScorer(length_normalised=pb.LengthNormalised()))
                ),
                Beam(scorer=LengthNormalised()),
            ),
            (pb.DecodeRequest(stochastic_beam=pb.StochasticBeam()), StochasticBeam()),
        ],
    )
    def test_of_strategies(self, request_: pb.DecodeRequest, strategy: Any) -> None:
        request_.prompt.CopyFrom(TEXT)
        assert decode_call(request_).strategy == strategy

    def test_of_scoring(self) -> None:
        request = pb.ScoreRequest(prompt=TEXT, continuations=[pb.Continuation(text="a")])
        assert score_call(request) == ScoreCall("hi", ("a",))

    def test_zero_is_not_unset(self) -> None:
        request = pb.DecodeRequest(prompt=TEXT, options=pb.Options(return_logprobs=0, update_beams=0))
        request.best_of.best_of = 1
        request.best_of.sampling.temperature = 0.0
        call = decode_call(request)
        assert (call.options.logprobs, call.options.update_beams) == (0, 0)
        assert call.strategy == BestOf(1, temperature=0.0)


class TestNothingIsLeftOut:
    """Each field of a record has one in the protocol, and the other way round."""

    def test_options(self) -> None:
        ours = names(Options) - {"logprobs", "forced_prefix", *LOCAL_OPTIONS}
        assert fields(pb.Options) == ours | {"return_logprobs", "forced_prefix_text", "forced_prefix_ids"}

    def test_strategies(self) -> None:
        drawn = fields(pb.Sampling)
        assert names(Greedy) == fields(pb.Greedy)
        assert names(Sample) == (fields(pb.Sample) - {"sampling"}) | drawn
        assert names(BestOf) == (fields(pb.BestOf) - {"sampling"}) | drawn
        assert names(Beam) == fields(pb.Beam)
        assert names(DiverseBeam) == fields(pb.DiverseBeam)
        assert names(LengthNormalised) == fields(pb.LengthNormalised)
        assert names(Contrastive) == fields(pb.Contrastive)
        own = names(StochasticBeam) - fields(pb.Sampling)
        assert own == fields(pb.StochasticBeam) - {"sampling"}

    def test_requests(self) -> None:
        oneof = pb.DecodeRequest.DESCRIPTOR.oneofs_by_name["strategy"]
        whole = {field.name for field in oneof.fields}
        assert whole == {"greedy", "sample", "best_of", "beam", "diverse_beam", "stochastic_beam"}
        assert names(DecodeCall) - {"strategy", "chat"} == fields(pb.DecodeRequest) - whole
        assert names(ScoreCall) == fields(pb.ScoreRequest)

    def test_enums(self) -> None:
        assert {f"RANK_BY_{name.upper()}" for name in get_args(RankBy)} == set(pb.RankBy.keys()[1:])
        stopping = {f"EARLY_STOPPING_{str(name).upper()}" for name in get_args(EarlyStopping)}
        assert stopping == set(pb.EarlyStopping.keys()[1:])


Change = Callable[[pb.DecodeRequest], Any]


def changed(change: Change) -> pb.DecodeRequest:
    request = pb.DecodeRequest(prompt=TEXT)
    change(request)
    return sent(request)


def setting(path: str, value: Any) -> Change:
    """Sets one field."""

    def change(request: pb.DecodeRequest) -> None:
        *way, last = path.split(".")
        message: Any = request
        for step in way:
            message = getattr(message, step)
        if isinstance(value, list):
            getattr(message, last).extend(value)
        else:
            setattr(message, last, value)

    return change


WRONG = [
    ("options.max_tokens", 0, "max_tokens"),
    ("options.max_tokens", 2**32 - 1, "max_tokens"),
    ("options.min_tokens", 65, "min_tokens"),
    ("options.stop", [""], "stop"),
    ("options.stop", ["x" * 5000], "stop"),
    ("options.stop_token_ids", [2**31], "stop_token_ids"),
    ("options.repetition_penalty", math.nan, "repetition_penalty"),
    ("options.repetition_penalty", 0.0, "repetition_penalty"),
    ("options.presence_penalty", math.inf, "presence_penalty"),
    ("options.frequency_penalty", -1e9, "frequency_penalty"),
    ("options.no_repeat_ngram_size", 2**32 - 1, "no_repeat_ngram_size"),
    ("options.return_logprobs", 2**32 - 1, "logprobs"),
    ("options.update_every", 2**32 - 1, "update_every"),
    ("options.update_beams", 2**32 - 1, "update_beams"),
    ("options.forced_prefix_ids.ids", [2**32 - 1], "forced_prefix"),
    ("options.allowed_token_ids.ids", [2**32 - 1], "allowed_token_ids"),
    ("sample.n", 0, "n"),
    ("sample.n", 2**32 - 1, "n"),
    ("sample.sampling.temperature", -1.0, "temperature"),
    ("sample.sampling.temperature", math.nan, "temperature"),
    ("sample.sampling.top_k", 2**31, "top_k"),
    ("sample.sampling.top_p", 0.0, "top_p"),
    ("sample.sampling.min_p", 1.5, "min_p"),
    ("sample.sampling.typical_p", -0.5, "typical_p"),
    ("best_of.best_of", 0, "best_of"),
    ("best_of.n", 9, "n"),
    ("best_of.sampling.top_p", math.inf, "top_p"),
    ("best_of.rank_by", 99, "rank_by"),
    ("best_of.rank_by", -1, "rank_by"),
    ("best_of.first_finished", 0, "first_finished"),
    ("beam.width", 0, "width"),
    ("beam.width", 2**32 - 1, "width"),
    ("beam.num_return_sequences", 5, "num_return_sequences"),
    ("beam.length_penalty", -math.inf, "length_penalty"),
    ("beam.early_stopping", 99, "early_stopping"),
    ("beam.patience", 0.0, "patience"),
    ("beam.patience", 2.0, "patience"),
    ("beam.widths", [2, 3], "widths"),
    ("beam.widths", [4, 0], "widths"),
    ("beam.sibling_penalty", -1.0, "sibling_penalty"),
    ("beam.scorer.length_normalised.alpha", math.nan, "alpha"),
    ("diverse_beam.scorer.contrastive.baseline", [math.nan], "baseline"),
    ("diverse_beam.groups", 3, "groups"),
    ("diverse_beam.diversity_penalty", -1.0, "diversity_penalty"),
    ("diverse_beam.num_return_sequences", 5, "num_return_sequences"),
    ("diverse_beam.length_penalty", math.nan, "length_penalty"),
    ("diverse_beam.early_stopping", 99, "early_stopping"),
    ("request_id", "x" * 257, "request_id"),
]


class TestWrong:
    @pytest.mark.parametrize(("path", "value", "name"), WRONG, ids=[f"{p}={v!s:.9}" for p, v, _ in WRONG])
    def test_a_value_is_named_in_both_ways(self, path: str, value: Any, name: str) -> None:
        request = changed(setting(path, value))
        with pytest.raises(InvalidRequestError, match=f"^{name}: .*; allowed: ") as caught:
            decode_call(request)
        assert caught.value.field == name
        assert caught.value.limit
        assert field_path(name, request) == path.removesuffix(".ids")

    def test_every_field_with_a_bound_is_tried(self) -> None:
        tried = {path.rpartition(".")[2] for path, _, _ in WRONG} | {"bad_words", "logit_bias"}
        tried |= {"forced_prefix_ids", "allowed_token_ids", "constraint"}
        free = {"include_stop", "ignore_eos", "cache_salt", "priority", "seed", "forced_prefix_text"}
        tried |= {"scorer"}
        kinds: list[Any] = [pb.Options, pb.Sampling, pb.Sample, pb.BestOf]
        kinds += [pb.Beam, pb.DiverseBeam, pb.StochasticBeam]
        assert set().union(*map(fields, kinds)) - {"sampling"} <= tried | free

    def test_a_scorer_must_be_one(self) -> None:
        request = changed(lambda r: r.beam.scorer.SetInParent())
        with pytest.raises(InvalidRequestError, match=r"^scorer: is not set") as caught:
            decode_call(request)
        assert field_path(caught.value.field or "", request) == "beam.scorer"

    def test_a_bias_beyond_bounds(self) -> None:
        for token, bias in ((2**32 - 1, 0.0), (3, math.nan), (3, 1e9)):
            request = changed(lambda r, t=token, b=bias: r.options.logit_bias.update({t: b}))
            with pytest.raises(InvalidRequestError, match=r"^logit_bias: "):
                decode_call(request)

    @pytest.mark.parametrize(
        ("word", "problem"),
        [
            (pb.BadWord(), "entry 1 is not set"),
            (pb.BadWord(text=""), "entry 1 is empty"),
            (pb.BadWord(token_ids=pb.TokenIds()), "entry 1 is empty"),
            (pb.BadWord(token_ids=pb.TokenIds(ids=[2**31])), "out of range"),
        ],
    )
    def test_bad_words(self, word: pb.BadWord, problem: str) -> None:
        request = changed(lambda r: r.options.bad_words.extend([pb.BadWord(text="a"), word]))
        with pytest.raises(InvalidRequestError, match=f"^bad_words: .*{problem}"):
            decode_call(request)

    @pytest.mark.parametrize(
        ("prompt", "problem"),
        [
            (pb.Prompt(), "prompt: is not set; allowed: text, chat or token_ids"),
            (pb.Prompt(chat=pb.Chat()), "prompt: has no chat messages"),
        ],
    )
    def test_prompts(self, prompt: pb.Prompt, problem: str) -> None:
        with pytest.raises(InvalidRequestError, match=problem) as caught:
            decode_call(pb.DecodeRequest(prompt=prompt))
        assert caught.value.field == "prompt"

    def test_an_empty_list_of_allowed_tokens_is_not_unset(self) -> None:
        request = changed(lambda r: r.options.allowed_token_ids.SetInParent())
        with pytest.raises(InvalidRequestError, match="allowed_token_ids: is empty"):
            decode_call(request)

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"continuations": []}, "continuations"),
            ({"continuations": [pb.Continuation()]}, "continuations"),
            ({"continuations": [pb.Continuation(text="")]}, "continuations"),
            ({"continuations": [pb.Continuation(token_ids=pb.TokenIds(ids=[2**31]))]}, "continuations"),
            ({"top_logprobs": 1025}, "top_logprobs"),
            ({"prompt": None}, "prompt"),
            ({"request_id": "é" * 129}, "request_id"),
        ],
    )
    def test_scoring(self, change: dict[str, Any], field: str) -> None:
        values = {"prompt": TEXT, "continuations": [pb.Continuation(text="a")]} | change
        request = pb.ScoreRequest(**values)
        with pytest.raises(InvalidRequestError, match=f"^{field}: ") as caught:
            score_call(request)
        assert field_path(caught.value.field or "", request) == field


class TestWhatCannotBeSent:
    """A caller's arguments that the protocol has no place for are refused before they are sent."""

    @pytest.mark.parametrize(
        ("call", "field"),
        [
            (DecodeCall("hi", BestOf(rank_by=lambda found: [0.0] * len(found))), "rank_by"),
            (DecodeCall("hi", Beam(scorer=CustomScorer(sum))), "scorer"),
            (DecodeCall("hi", DiverseBeam(scorer=CustomScorer(sum))), "scorer"),
            (DecodeCall("hi", Beam), "strategy"),  # type: ignore[arg-type]
            (DecodeCall("hi", options={"max_tokens": 3}), "options"),  # type: ignore[arg-type]
            (DecodeCall("hi", stream=1), "stream"),  # type: ignore[arg-type]
            (DecodeCall("hi", chat="yes"), "chat"),  # type: ignore[arg-type]
            (DecodeCall((1, 2), chat=True), "chat"),
            (DecodeCall("hi", request_id=""), "request_id"),
            (DecodeCall("hi", request_id=3), "request_id"),  # type: ignore[arg-type]
            (DecodeCall("\ud800"), "prompt"),
            (DecodeCall(b"hi"), "prompt"),  # type: ignore[arg-type]
            (DecodeCall({"role": "user", "content": "hi"}), "prompt"),  # type: ignore[arg-type]
            (DecodeCall(3), "prompt"),  # type: ignore[arg-type]
            (DecodeCall([]), "prompt"),
            (DecodeCall([1, -1]), "prompt"),
            (DecodeCall([1, 2**31]), "prompt"),
            (DecodeCall([1, True]), "prompt"),
            (DecodeCall([{"role": "user"}]), "prompt"),
            (DecodeCall([{"role": "user", "content": "hi", "name": "x"}]), "prompt"),
            (DecodeCall([{"role": "user", "content": [{"type": "text"}]}]), "prompt"),
            (DecodeCall([{"role": "user", "content": "\udfff"}]), "prompt"),
            (DecodeCall([{"role": "user", "content": "hi"}, 3]), "prompt"),  # type: ignore[list-item]
        ],
    )
    def test_is_refused_by_name(self, call: DecodeCall, field: str) -> None:
        with pytest.raises(InvalidRequestError, match=f"^{field}: ") as caught:
            decode_request(call)
        assert caught.value.field == field
