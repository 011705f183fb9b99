"""Bytes that are no request are refused by the field that is broken."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.errors import InvalidRequestError
from forkdecode.rpc.convert_requests import decode_request
from forkdecode.rpc.parse import parse
from forkdecode.rpc.v1 import decode_pb2 as pb
from tests.rpc import records

LONE = b"\xed\xa0\x80"
"""U+D800 as UTF-8 would write it if it were a character."""


def good() -> pb.DecodeRequest:
    request = pb.DecodeRequest(request_id="IDIDID")
    request.prompt.chat.messages.add(role="ROLE", content="one")
    request.prompt.chat.messages.add(role="user", content="TWOTWO")
    request.options.stop.extend(["a", "STOPST"])
    request.options.bad_words.add(text="BADBAD")
    request.options.cache_salt = "SALTSA"
    return request


@pytest.mark.parametrize("broken", [LONE, b"\xff\xfe\xfd", b"ab\xc3"])
@pytest.mark.parametrize(
    ("text", "path"),
    [
        (b"IDIDID", "request_id"),
        (b"TWOTWO", "prompt.chat.messages[1].content"),
        (b"STOPST", "options.stop[1]"),
        (b"BADBAD", "options.bad_words[0].text"),
        (b"SALTSA", "options.cache_salt"),
    ],
)
def test_text_that_is_not_utf8(text: bytes, path: str, broken: bytes) -> None:
    data = good().SerializeToString()
    assert data.count(text) == 1
    with pytest.raises(InvalidRequestError, match="is not valid UTF-8") as caught:
        parse(pb.DecodeRequest, data.replace(text, broken + text[len(broken) :]))
    assert caught.value.field == path


@pytest.mark.parametrize(
    ("data", "path", "problem"),
    [
        (b"\xff", "request", "cut short"),
        (b"\x0a\x05ab", "request", "cut short"),
        (b"\xff" * 11, "request", "too long"),
        (b"\x07", "request", "wire format"),
        (b"\x00", "request", "wire format"),
        (b"\x0a\x02\x0a\x05", "prompt", "cut short"),
        (b"\x0a\x04\x1a\x02\x0a\x07", "prompt.token_ids", "cut short"),
        (b"\x0a\x05\x1a\x03\x0a\x01\xff", "prompt.token_ids.ids", "cut short"),
        (b"\x2a\x07\x42\x05\x12\x03\x0a\x01\xff", "beam.scorer.contrastive.baseline", "cut short"),
    ],
)
def test_what_is_no_message(data: bytes, path: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem) as caught:
        parse(pb.DecodeRequest, data)
    assert caught.value.field == path


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse(pb.GetModelRequest, b"\x08\x01")
    assert caught.value.field == "1"


def refusal(data: bytes) -> InvalidRequestError | None:
    """Why it is no request, or None if it is one."""
    try:
        parse(pb.DecodeRequest, data)
    except InvalidRequestError as error:
        return error
    return None


def check(data: bytes) -> None:
    error = refusal(data)
    assert error is None or (error.field and error.limit)


@given(st.binary(max_size=40))
@settings(deadline=None, max_examples=300)
def test_any_bytes_are_a_request_or_refused_by_name(data: bytes) -> None:
    check(data)


@given(records.calls.map(decode_request), st.data())
@settings(deadline=None, max_examples=100)
def test_any_damage_is_parsed_or_refused_by_name(request: pb.DecodeRequest, data: st.DataObject) -> None:
    sent = bytearray(request.SerializeToString())
    at = data.draw(st.integers(0, len(sent) - 1))
    sent[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(sent)))
    check(bytes(sent[:cut]))


@given(records.calls.map(decode_request))
@settings(deadline=None, max_examples=50)
def test_a_good_one_is_as_it_was(request: pb.DecodeRequest) -> None:
    assert parse(pb.DecodeRequest, request.SerializeToString()) == request
