"""Whatever a caller gets wrong is named, costs nothing, and leaves the engine as it was."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forkdecode import (
    LLM,
    Beam,
    BestOf,
    CandidateFinished,
    CapacityError,
    Delta,
    Finished,
    Greedy,
    InvalidRequestError,
    ModelLoadError,
    NoLegalTokenError,
    Options,
    Sample,
)
from tests.llm.models import EOS_ID, PROMPT, STRATEGIES, TOKENIZER, VOCAB, ids, opened, tiny_llama
from tests.tiny_model import byte_tokenizer, save_tiny_llama

LIMIT = 512  # the model's positions


def refused(call: Any, field: str, kind: type[Exception] = InvalidRequestError) -> Any:
    with pytest.raises(kind) as caught:
        call()
    error: Any = caught.value
    assert error.field == field, error
    assert str(error).startswith(f"{field}: "), error
    return error


PROMPTS: dict[str, Any] = {
    "none": None, "number": 5, "bytes": b"abc", "bool": True, "empty": "",
    "surrogate": "a\ud800", "negative": [3, -1], "beyond": [3, len(VOCAB)], "huge": [10**30],
    "bools": [True, False], "floats": [1.0, 2.0],
    "mixed": [1, "a"], "nones": [None], "too long": [1] * LIMIT, "dict": {"role": "user", "content": "x"},
    "no content": [{"role": "user"}], "no role": [{"content": "x"}], "role": [{"role": 3, "content": "x"}],
    "half a chat": [{"role": "user", "content": "x"}, "y"], "empty array": np.array([], np.int64),
    "chat surrogate": [{"role": "user", "content": "\udfff"}], "float array": np.array([1.0, 2.0]),
    "object": object(),
}  # fmt: skip


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
def test_prompts(llm: LLM, prompt: Any) -> None:
    steps = llm.stats().steps
    error = refused(lambda: llm.decode(prompt), "prompt")
    assert "allowed: " in str(error)
    assert len(str(error)) < 400
    refused(lambda: llm.submit(prompt), "prompt")
    assert llm.stats().steps == steps


@pytest.mark.parametrize(
    "prompt",
    [np.array([5, 6, 7]), torch.tensor([5, 6, 7]), (5, 6, 7), range(5, 8), [np.int32(5), 6, np.uint8(7)]],
    ids=lambda v: type(v).__name__,
)
def test_token_ids_of_any_kind(llm: LLM, prompt: Any) -> None:
    assert llm.decode(prompt, max_tokens=2).prompt_token_ids == (5, 6, 7)
    results = llm.decode([prompt, prompt], max_tokens=2)
    assert [r.prompt_token_ids for r in results] == [(5, 6, 7)] * 2


@pytest.mark.parametrize("verb", ["stream", "submit", "tokenize", "tree"])
def test_a_list_of_prompts_where_one_is_taken(llm: LLM, verb: str) -> None:
    for prompts in (
        ["a", "b"],
        [[1, 2], [3]],
        np.array([[5, 6], [7, 8]]),
        [[{"role": "user", "content": "x"}]],
    ):
        error = refused(lambda prompts=prompts: getattr(llm, verb)(prompts), "prompt")
        assert "is a list of prompts" in str(error)
        assert "decode, decode_many and score" in str(error)


def test_rows_of_an_array_are_prompts(llm: LLM) -> None:
    results = llm.decode(np.array([[5, 6], [7, 8]]), max_tokens=1)
    assert [r.prompt_token_ids for r in results] == [(5, 6), (7, 8)]


def test_chats(llm: LLM) -> None:
    one = llm.decode("hello", chat=True, max_tokens=2)
    two = llm.decode([{"role": "user", "content": "hello"}], max_tokens=2)
    many = llm.decode([[{"role": "user", "content": "hello"}]] * 2, max_tokens=2)
    assert {r.prompt_token_ids for r in (one, two, *many)} == {one.prompt_token_ids}
    refused(lambda: llm.decode([1, 2], chat=True), "chat")
    for value in (1, None, "yes"):
        refused(lambda v=value: llm.decode("a", chat=v), "chat")
        refused(lambda v=value: llm.submit("a", stream=v), "stream")


@pytest.mark.parametrize("strategy", ["beam", 5, Beam, Sample, Options(), print, {"n": 2}, True], ids=str)
def test_strategies(llm: LLM, strategy: Any) -> None:
    refused(lambda: llm.decode("a", strategy), "strategy")


def test_a_strategys_class_is_told_from_a_strategy(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match=r"strategy: Beam is a class; allowed: Beam\(...\)"):
        llm.decode("a", Beam)  # type: ignore[call-overload]


@pytest.mark.parametrize("options", ["fast", {"max_tokens": 3}, 5, Options, Greedy()], ids=str)
def test_options_objects(llm: LLM, options: Any) -> None:
    refused(lambda: llm.decode("a", options=options), "options")


def test_options_are_given_once(llm: LLM) -> None:
    refused(lambda: llm.decode("a", options=Options(), top_k=3), "top_k")
    refused(lambda: llm.decode("a", options=Options(), max_tokens=3), "max_tokens")
    refused(lambda: llm.decode("a", max_new_tokens=3), "max_new_tokens")
    assert len(llm.decode("a", options=Options(max_tokens=3, ignore_eos=True)).candidates[0].token_ids) == 3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", LIMIT), ("max_tokens", LIMIT - 1), ("max_tokens", 2**31 - 1), ("max_tokens", 10**30),
        ("stop_token_ids", [len(VOCAB)]), ("allowed_token_ids", [3, 2**31 - 1]),
        ("logit_bias", {len(VOCAB): 1.0}),
        ("bad_words", [[3, len(VOCAB)]]), ("forced_prefix", [len(VOCAB)]), ("forced_prefix", "\ud800"),
        ("bad_words", ["\ud800"]), ("stop", ["\ud800"]), ("cache_salt", "\ud800"), ("logprobs", 1025),
        ("forced_prefix", "x" * 65),
    ],
)  # fmt: skip
def test_options_against_the_model(llm: LLM, field: str, value: Any) -> None:
    for strategy in STRATEGIES.values():
        refused(lambda s=strategy: llm.decode("ab", s, **{field: value}), field)


def test_the_last_position_can_be_used(llm: LLM) -> None:
    result = llm.decode([7] * (LIMIT - 3), Beam(width=2), max_tokens=3, ignore_eos=True)
    assert {len(c.token_ids) for c in result.candidates} == {3}
    refused(lambda: llm.decode([7] * (LIMIT - 3), max_tokens=4), "max_tokens")


@pytest.mark.parametrize("field", ["update_every", "update_beams"])
@pytest.mark.parametrize("value", [-1, 1.5, True, "1", None, 2**40], ids=str)
def test_updates_of_beams(llm: LLM, field: str, value: Any) -> None:
    for strategy in STRATEGIES.values():
        refused(lambda s=strategy: llm.decode("a", s, **{field: value}), field)


@pytest.mark.parametrize("name", ["", 5, True, b"x", ["x"], "\ud800"], ids=ascii)
def test_ids(llm: LLM, name: Any) -> None:
    refused(lambda: llm.decode("a", request_id=name), "request_id")


def test_errors_know_their_request(llm: LLM) -> None:
    for kind, more in (
        (InvalidRequestError, {"stop_token_ids": [10**6]}),
        (CapacityError, {"max_tokens": 500}),
    ):
        with pytest.raises(kind) as caught:
            llm.decode("a", Beam(width=5000), request_id="who", **more)
        assert caught.value.request_id == "who"
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (str(copy), copy.field, copy.request_id) == (str(caught.value), caught.value.field, "who")


def test_a_model_without_a_tokenizer() -> None:
    with opened(tokenizer=None) as llm:
        assert llm.decode([5, 6], max_tokens=2).text == ""
        refused(lambda: llm.decode("a"), "prompt")
        refused(lambda: llm.decode("a", chat=True), "prompt")
        refused(lambda: llm.decode([{"role": "user", "content": "a"}]), "prompt")
        refused(lambda: llm.decode([5], stop="a"), "stop")
        refused(lambda: llm.decode([5], forced_prefix="a"), "forced_prefix")
        refused(lambda: llm.decode([5], bad_words=["a"]), "bad_words")


def test_tokens_that_only_the_tokenizer_has() -> None:
    wide = byte_tokenizer()
    wide.add_tokens(["beyond"])
    with opened(tokenizer=wide) as llm:
        for field, call in {
            "prompt": lambda: llm.decode("to beyond"),
            "forced_prefix": lambda: llm.decode("a", forced_prefix="beyond"),
            "bad_words": lambda: llm.decode("a", bad_words=["beyond"]),
        }.items():
            refused(call, field)
        assert llm.decode("to", stop="beyond", max_tokens=3).candidates


def test_a_stream_tells_which_samples_got_stuck(llm: LLM) -> None:
    """Each of x, y, z once; z ends, and may not come after y. What begins with x is stuck after x y."""
    x, y, z = ids("xyz")
    given = {
        "allowed_token_ids": (x, y, z),
        "no_repeat_ngram_size": 1,
        "bad_words": ((y, z),),
        "stop_token_ids": (z,),
        "ignore_eos": True,
    }
    *events, last = llm.stream("a", Sample(n=12, seed=1, temperature=50.0), **given)
    assert isinstance(last, Finished)
    assert last.result.exhausted
    tokens: dict[int, tuple[int, ...]] = {}
    for event in events:
        if isinstance(event, Delta):
            tokens[event.candidate] = tokens.get(event.candidate, ()) + event.token_ids
    ended = {e.candidate: e.finish_reason for e in events if isinstance(e, CandidateFinished)}
    assert set(ended) == set(tokens) == set(range(12))
    stuck = {i for i in ended if tokens[i] == (x, y)}
    assert 0 < len(stuck) < 12
    assert ended == {i: "cancelled" if i in stuck else "stop" for i in range(12)}
    assert {c.index: c.token_ids for c in last.result.candidates} == {
        i: path for i, path in tokens.items() if i not in stuck
    }


def test_nothing_legal_is_left(llm: LLM) -> None:
    mate = llm.submit(PROMPT, Beam(width=2), max_tokens=8)
    for strategy in STRATEGIES.values():
        with pytest.raises(NoLegalTokenError, match="no legal token at generated token 1"):
            llm.decode("a", strategy, allowed_token_ids=[EOS_ID], min_tokens=2)
        with pytest.raises(NoLegalTokenError, match="no legal token at generated token 3"):
            llm.decode("ab", strategy, allowed_token_ids=[5, 6], no_repeat_ngram_size=1, ignore_eos=True)
    assert mate.result().candidates


# -- settings of the engine ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"threads": 0}, InvalidRequestError), ({"threads": True}, InvalidRequestError),
        ({"threads": "2"}, InvalidRequestError), ({"threads": 10**9}, InvalidRequestError),
        ({"block_size": 3}, InvalidRequestError), ({"block_size": None}, InvalidRequestError),
        ({"max_positions": 0}, InvalidRequestError), ({"max_positions": 513}, ModelLoadError),
        ({"blocks": 3}, InvalidRequestError), ({"num_blocks": 0}, InvalidRequestError),
        ({"num_blocks": 2**31 - 2}, CapacityError),
        ({"num_blocks": None, "kv_memory": "900TiB"}, CapacityError),
        ({"num_blocks": None, "kv_memory": 1}, CapacityError), ({"swap_memory": "900TiB"}, CapacityError),
        ({"dtype": "int3"}, InvalidRequestError), ({"dtype": None}, InvalidRequestError),
        ({"dtype": torch.float32}, InvalidRequestError),
        ({"device": None}, InvalidRequestError), ({"tokenizer": "gpt2"}, InvalidRequestError),
    ],
    ids=str,
)  # fmt: skip
def test_settings(settings: dict[str, Any], kind: type[Exception]) -> None:
    field = list(settings)[-1]
    arguments = {"tokenizer": TOKENIZER, "num_blocks": 64, "threads": 1, **settings}
    refused(lambda: LLM(tiny_llama(), **arguments), field, kind)


def test_fewer_positions_than_the_model_has() -> None:
    with opened(max_positions=20) as llm:
        assert llm.info.max_positions == 20
        refused(lambda: llm.decode([1] * 10, max_tokens=11), "max_tokens")
        assert len(llm.decode([1] * 10, max_tokens=10, ignore_eos=True).candidates[0].token_ids) == 10


@pytest.mark.parametrize("model", [None, 5, "", b"x", torch.nn.Linear(2, 2)], ids=lambda v: type(v).__name__)
def test_models(model: Any) -> None:
    refused(lambda: LLM(model, num_blocks=64), "model")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError):
        LLM(str(tmp_path / "nothing"), num_blocks=64)


def test_a_folder_with_another_tokenizer(tmp_path: Path) -> None:
    folder = save_tiny_llama(tmp_path / "model")
    other = byte_tokenizer(adds_bos=True)
    for path in (folder, str(folder)):
        with LLM(path, dtype="float32", tokenizer=other, num_blocks=64, threads=1) as llm:
            assert llm.tokenizer is other
            assert llm.decode("a", max_tokens=1).prompt_token_ids[0] == other.bos_token_id
    with LLM(folder, dtype="float32", num_blocks=64, threads=1) as llm:
        assert len(llm.decode("a", BestOf(best_of=2, seed=0), max_tokens=1).prompt_token_ids) == 1
