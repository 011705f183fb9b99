"""Unknown fields are found wherever they are; options are found in a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message

from forkdecode.errors import InvalidRequestError
from forkdecode.rpc.convert_constraints import constraint_of
from forkdecode.rpc.convert_requests import decode_call, score_call
from forkdecode.rpc.convert_strategies import strategy_of
from forkdecode.rpc.convert_tree_nodes import path_of
from forkdecode.rpc.fields import MAX_ENTRIES, check_known, field_path
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.types import LOCAL_OPTIONS, OPTION_NAMES

UNKNOWN = b"\xc0\x3e\x01"
"""Field 1000, a varint."""


def whole_decode() -> pb.DecodeRequest:
    """Every message that a decode request may hold, but for the strategies."""
    request = pb.DecodeRequest()
    request.prompt.chat.messages.add(role="user", content="a")
    request.prompt.chat.messages.add(role="assistant", content="b")
    request.options.bad_words.add(text="a")
    request.options.bad_words.add().token_ids.ids.append(3)
    request.options.allowed_token_ids.ids.append(3)
    request.options.forced_prefix_ids.ids.append(3)
    request.options.logit_bias[3] = 1.0
    return request


PLACES: list[tuple[str, Callable[[Any], Any]]] = [
    ("1000", lambda r: r),
    ("prompt.1000", lambda r: r.prompt),
    ("prompt.chat.1000", lambda r: r.prompt.chat),
    ("prompt.chat.messages[1].1000", lambda r: r.prompt.chat.messages[1]),
    ("prompt.token_ids.1000", lambda r: r.prompt.token_ids),
    ("greedy.1000", lambda r: r.greedy),
    ("sample.1000", lambda r: r.sample),
    ("sample.sampling.1000", lambda r: r.sample.sampling),
    ("best_of.1000", lambda r: r.best_of),
    ("best_of.sampling.1000", lambda r: r.best_of.sampling),
    ("beam.1000", lambda r: r.beam),
    ("options.1000", lambda r: r.options),
    ("options.bad_words[0].1000", lambda r: r.options.bad_words[0]),
    ("options.bad_words[1].token_ids.1000", lambda r: r.options.bad_words[1].token_ids),
    ("options.allowed_token_ids.1000", lambda r: r.options.allowed_token_ids),
    ("options.forced_prefix_ids.1000", lambda r: r.options.forced_prefix_ids),
]


@pytest.mark.parametrize(("path", "place"), PLACES, ids=[path for path, _ in PLACES])
def test_an_unknown_field_is_refused_wherever_it_is(path: str, place: Callable[[Any], Any]) -> None:
    request = whole_decode()
    place(request).SetInParent()
    check_known(request)
    place(request).MergeFromString(UNKNOWN)
    request = pb.DecodeRequest.FromString(request.SerializeToString())
    with pytest.raises(InvalidRequestError, match="is unknown to this server") as caught:
        decode_call(request)
    assert caught.value.field == path
    assert field_path(path, request) == path


def test_an_unknown_field_of_a_score_request_is_refused() -> None:
    request = pb.ScoreRequest(prompt=pb.Prompt(text="a"), continuations=[pb.Continuation(text="b")])
    request.continuations[0].MergeFromString(UNKNOWN)
    with pytest.raises(InvalidRequestError) as caught:
        score_call(request)
    assert caught.value.field == "continuations[0].1000"


@pytest.mark.parametrize(
    "kind", [pb.TokenizeRequest, pb.DetokenizeRequest, pb.GetModelRequest, pb.GetStatsRequest]
)
def test_requests_without_fields_refuse_them_too(kind: Any) -> None:
    with pytest.raises(InvalidRequestError):
        check_known(kind.FromString(UNKNOWN))


def test_an_unknown_field_of_an_entry_of_a_map_is_refused() -> None:
    entry = pb.Options.LogitBiasEntry(key=3, value=1.0)  # type: ignore[attr-defined]
    entry.MergeFromString(UNKNOWN)
    options = pb.Options()
    options.MergeFromString(bytes([11 << 3 | 2, entry.ByteSize()]) + entry.SerializeToString())
    with pytest.raises(InvalidRequestError) as caught:
        check_known(pb.DecodeRequest(options=options))
    assert caught.value.field == "options.11"


def test_a_list_too_long_to_look_into_is_refused_as_a_whole() -> None:
    request = pb.DecodeRequest()
    request.options.bad_words.extend([pb.BadWord(text="a")] * MAX_ENTRIES)
    check_known(request)
    request.options.bad_words.add(text="a")
    with pytest.raises(InvalidRequestError, match="has 65537 entries") as caught:
        check_known(request)
    assert caught.value.field == "options.bad_words"


def has_path(message: Any, path: str) -> bool:
    for step in path.split("."):
        field = message.fields_by_name.get(step)
        if field is None:
            return False
        message = field.message_type
    return True


@pytest.mark.parametrize("name", [n for n in OPTION_NAMES if n not in LOCAL_OPTIONS])
def test_every_option_has_a_path(name: str) -> None:
    request = pb.DecodeRequest()
    request.options.forced_prefix_text = "a"
    path = field_path(name, request)
    assert path.startswith("options.")
    assert has_path(pb.DecodeRequest.DESCRIPTOR, path)


@pytest.mark.parametrize(
    ("name", "strategy", "path"),
    [
        ("top_p", "sample", "sample.sampling.top_p"),
        ("top_p", "best_of", "best_of.sampling.top_p"),
        ("n", "sample", "sample.n"),
        ("n", "best_of", "best_of.n"),
        ("best_of", "best_of", "best_of.best_of"),
        ("width", "beam", "beam.width"),
        ("top_p", "beam", "top_p"),
        ("top_p", None, "top_p"),
        ("prompt", "beam", "prompt"),
        ("chat", "beam", "prompt.chat"),
        ("request_id", None, "request_id"),
        ("strategy", None, "strategy"),
        ("forced_prefix", None, "options.forced_prefix"),
    ],
)
def test_paths(name: str, strategy: str | None, path: str) -> None:
    request = pb.DecodeRequest()
    if strategy is not None:
        getattr(request, strategy).SetInParent()
    assert field_path(name, request) == path
    assert field_path(name, None) == name


ENUMS: dict[str, tuple[Message, Callable[[Any], Any]]] = {
    "RankBy": (pb.DecodeRequest(best_of=pb.BestOf(rank_by=99)), strategy_of),  # type: ignore[arg-type]
    "EarlyStopping": (pb.DecodeRequest(beam=pb.Beam(early_stopping=99)), strategy_of),  # type: ignore[arg-type]
    "CatalogueEnd": (
        pb.Constraint(catalogue=pb.FromCatalogue(name="a", end=99)),  # type: ignore[arg-type]
        constraint_of,
    ),
    "NodeReason": (pb.NodePath(token_ids=[1], finish_reason=99), path_of),  # type: ignore[arg-type]
}
ANSWERS = {"FinishReason", "NodeState"}


@pytest.mark.parametrize("name", ENUMS)
def test_an_unknown_value_of_an_enum_is_told_the_known_ones(name: str) -> None:
    message, convert = ENUMS[name]
    with pytest.raises(InvalidRequestError) as caught:
        convert(message)
    known = [value.name for value in pb.DESCRIPTOR.enum_types_by_name[name].values if value.number]
    assert f": 99 is no {name}; allowed: " in str(caught.value)
    assert set(known) <= set((caught.value.limit or "").split(", "))


def test_all_enums_of_requests_are_tried() -> None:
    assert set(pb.DESCRIPTOR.enum_types_by_name) == set(ENUMS) | ANSWERS
