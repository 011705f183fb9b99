"""Requests come out of their messages as they went in, what they share is sent once, and too much is refused
before it is made."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.engine import submission
from forkdecode.engine.submission import requests_of, submits
from forkdecode.errors import CapacityError
from forkdecode.scheduler.request import DecodeRequest, NodeRef
from forkdecode.step import ProcessorSpec
from forkdecode.types import BestOf, Greedy
from forkdecode.wire.messages import Submit
from forkdecode.wire.records import CODEC
from tests.scheduler.engines import request, score_request
from tests.wire.test_codec import bits

LIMIT = 2**24
VOCAB = 2000


def biased(count: int) -> list[DecodeRequest]:
    """Of one command."""
    ids, values = np.arange(VOCAB), np.full(VOCAB, 0.5, np.float32)
    first = dataclasses.replace(
        request("0", [1, 2], Greedy(), logit_bias=dict.fromkeys(range(VOCAB), 0.5)),
        processors=ProcessorSpec(bias_ids=ids, bias_values=values),
    )
    return [
        dataclasses.replace(first, request_id=str(i), prompt=np.array([1, i]), keep=NodeRef("tree", i))
        for i in range(count)
    ]


def read(messages: list[bytes]) -> list[Submit]:
    return [CODEC.decode(message) for message in messages]


def test_shared_terms_are_sent_once_and_shared_again() -> None:
    requests = biased(1000)
    alone = len(submits(requests[:1], 1, LIMIT)[0])
    messages = submits(requests, 7, LIMIT)
    assert sum(map(len, messages)) < alone + 1000 * 120 + alone * (len(messages) - 1)
    assert sum(map(len, messages)) < 4 * alone + 1000 * 120
    numbers, found = [], []
    for message in read(messages):
        made = requests_of(message)
        assert len({id(one.processors) for one in made}) == len({id(one.options) for one in made}) == 1
        numbers.append(message.number)
        found += made
    assert bits((found[0], found[-1])) == bits((requests[0], requests[-1]))
    assert [(one.request_id, one.prompt.tolist()) for one in found] == [
        (one.request_id, one.prompt.tolist()) for one in requests
    ]
    assert numbers == [7 + sum(len(one.requests) for one in read(messages)[:i]) for i in range(len(messages))]


@settings(max_examples=25)
@given(st.lists(st.integers(0, 5), max_size=60), st.integers(1, 9))
def test_requests_come_out_as_they_went_in(kinds: list[int], chunk: int) -> None:
    """Of some kinds, in any order: some share all, some nothing."""
    known = [
        request("a", [3], Greedy(), max_tokens=5),
        request("b", [3, 4], BestOf(best_of=3), logprobs=2, stop_token_ids=(7, 9)),
        score_request("c", [3], [[4, 5], [6]]),
        request("d", [3], Greedy(), logit_bias=dict.fromkeys(range(50), 0.5)),
    ]
    requests = [
        dataclasses.replace(known[kind], request_id=str(i), seed=i, stream=bool(i % 2))
        if kind < len(known)
        else request(str(i), [i], Greedy(), max_tokens=i + 1)
        for i, kind in enumerate(kinds)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(submission, "_CHUNK", chunk)
        messages = submits(requests, 1, LIMIT)
    made = read(messages)
    assert bits(tuple(one for message in made for one in requests_of(message))) == bits(tuple(requests))
    assert [message.number for message in made[1:]] == [one.number + len(one.requests) for one in made[:-1]]
    assert all(len(message.requests) >= chunk for message in made[:-1])


def test_the_first_are_sent_apart() -> None:
    made = read(submits([request(str(i), [3], Greedy()) for i in range(200)], 1, LIMIT))
    assert [len(message.requests) for message in made] == [64, 64, 64, 8]


@pytest.mark.parametrize(
    ("requests", "field", "name"),
    [
        ([request("r", range(30), Greedy(), logit_bias=dict.fromkeys(range(999), 0.5))], "logit_bias", "r"),
        ([request("r", [3] * 999, Greedy())], "prompt", "r"),
        ([score_request("r", [3], [[4] * 9999])], "continuations", "r"),
        ([request(str(i), [3] * 20, Greedy(), max_tokens=i + 1) for i in range(99)], "prompt", None),
    ],
    ids=["bias", "prompt", "score", "many"],
)
def test_too_much_at_once_is_refused_by_name(
    requests: list[DecodeRequest], field: str, name: str | None
) -> None:
    with pytest.raises(CapacityError, match=f"^{field}: ") as error:
        submits(requests, 1, 4000)
    assert (error.value.field, error.value.request_id) == (field, name)
    assert error.value.limit == "at most 4,000 bytes at a time"


def test_of_too_much_no_more_is_made_than_may_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    part = type(CODEC).part

    def counted(self: Any, record: Any) -> Any:
        nonlocal made
        made += 1
        return part(self, record)

    monkeypatch.setattr(type(CODEC), "part", counted)
    with pytest.raises(CapacityError):
        submits([request(str(i), [3] * 100, Greedy(), max_tokens=i + 1) for i in range(500)], 1, 50_000)
    assert made < 150
