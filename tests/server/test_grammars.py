"""Grammars of a service: what it sends parses, and what is wrong with one is told with its position."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from forkdecode import LLM, Beam, Finished, InvalidRequestError, JsonSchema, Lark, Regex, Sample, Strategy
from forkdecode.constraints.grammar import Grammars
from forkdecode.constraints.grammar_text import GrammarSpec
from forkdecode.requests import tokenizing
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.rpc.v1.decode_pb2_grpc import DecodeServiceStub
from forkdecode.tree_types import Accepted, Decode, Done, Fork
from forkdecode.types import Options
from tests.llm.grammar_oracle import check
from tests.llm.models import EOS_ID, PROMPT, outcome
from tests.server.calls import refused, remote_events, request_of
from tests.server.servers import Running
from tests.server.tree_calls import raw

SPECS: dict[str, GrammarSpec] = {
    "regex": Regex(r"[äöü]{2,4}|\d{1,3}"),
    "schema": JsonSchema({"type": "array", "items": {"enum": ["é", 1]}, "minItems": 1, "maxItems": 2}),
    "lark": Lark('start: "a" start "b" | /[0-9]/'),
    "gbnf": Lark('root ::= "(" root ")" | [a-c]', "gbnf"),
}
STRATEGIES: dict[str, Strategy] = {"samples": Sample(n=4, seed=5), "beam": Beam(width=4)}
WRONG: dict[str, tuple[GrammarSpec, str, str]] = {
    "regex": (Regex("ab[c"), "constraint.pattern", "    ab[c\n      ^\nerror: unclosed character class"),
    "schema": (JsonSchema({"not": {}}), "constraint.schema", 'Unimplemented keys: ["not"]'),
    "lark": (Lark('start: "a" x\nx: y'), "constraint.grammar", 'at 2(4): unknown name: "y"'),
    "gbnf": (Lark('root ::= "a" (', "gbnf"), "constraint.grammar", "Expected ')' at line 1"),
    "endless": (Lark('start: "a" start'), "constraint.grammar", "always leads to itself again"),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", SPECS)
def test_what_is_served_parses(stub: DecodeServiceStub, llm: LLM, name: str, strategy: str) -> None:
    asked = request_of(STRATEGIES[strategy], prompt=PROMPT, max_tokens=24, constraint=SPECS[name])
    last = remote_events(stub, STRATEGIES[strategy], asked)[-1]
    assert isinstance(last, Finished)
    for candidate in last.result.candidates:
        check(SPECS[name], candidate, llm._session.requests.token_bytes, (EOS_ID,))
    expected = llm.decode(PROMPT, STRATEGIES[strategy], max_tokens=24, constraint=SPECS[name])
    assert outcome(last.result) == outcome(expected)


@pytest.mark.parametrize("name", WRONG)
def test_an_error_has_the_position_and_names_its_field(stub: DecodeServiceStub, name: str) -> None:
    spec, field, why = WRONG[name]
    code, error = refused(lambda: stub.Decode(request_of(constraint=spec)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert isinstance(error, InvalidRequestError)
    assert error.field == field
    assert why in str(error)


def test_grammars_that_take_long_hold_up_nobody_else(
    stub: DecodeServiceStub, llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than there are threads for, while a stream runs and others ask."""
    go, compile_now = threading.Event(), Grammars._compile

    def compile_late(self: Grammars, key: Any) -> Any:
        go.wait(60)
        return compile_now(self, key)

    monkeypatch.setattr(Grammars, "_compile", compile_late)
    running = stub.Decode(request_of(max_tokens=100, ignore_eos=True))
    next(running)
    slow = [stub.Decode(request_of(constraint=Regex(f"x{i}*"), max_tokens=4)) for i in range(6)]
    try:
        for strategy in STRATEGIES.values():
            events = remote_events(stub, strategy, request_of(strategy, prompt=PROMPT, max_tokens=4))
            assert isinstance(events[-1], Finished)
        assert stub.Tokenize(pb.TokenizeRequest(prompt=pb.Prompt(text="a"))).token_ids
        assert list(running)
    finally:
        go.set()
    for call in slow:
        assert list(call)


def test_long_prompts_with_grammars_hold_up_one_another_alone(
    stub: DecodeServiceStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than there are threads for, which are tokenized one after the other."""
    long, go, entered, plain = "abcdefgh" * 30, threading.Event(), threading.Event(), tokenizing.encode_prompt

    def late(tokenizer: Any, prompt: Any, **more: Any) -> tuple[int, ...]:
        if prompt == long:
            entered.set()
            go.wait(60)
        return plain(tokenizer, prompt, **more)

    monkeypatch.setattr(tokenizing, "LONG_TEXT", 128)
    monkeypatch.setattr("forkdecode.server.workers.LARGE", 128)
    monkeypatch.setattr(tokenizing, "encode_prompt", late)
    slow = [stub.Decode(request_of(prompt=long, constraint=Regex("x*"), max_tokens=2)) for _ in range(5)]
    assert entered.wait(60)
    try:
        for spec in (None, Regex("y*")):
            assert list(stub.Decode(request_of(constraint=spec, max_tokens=2), timeout=30))
    finally:
        go.set()
    for call in slow:
        assert list(call)


def test_grammars_of_sessions_hold_up_no_other_session(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than there are threads for what is small."""
    go, entered, compile_now = threading.Event(), threading.Semaphore(0), Grammars._compile

    def compile_late(self: Grammars, key: Any) -> Any:
        entered.release()
        go.wait(60)
        return compile_now(self, key)

    monkeypatch.setattr(Grammars, "_compile", compile_late)
    with ExitStack() as stack:
        sessions = [stack.enter_context(raw(server)) for _ in range(4)]
        for session in sessions:
            session.open()
        other = sessions.pop()
        for i, session in enumerate(sessions):
            session.command(Decode(1, (0,), Sample(), Options(constraint=Regex(f"z{i}*"), max_tokens=2)))
        for _ in range(2):
            assert entered.acquire(timeout=60)
        other.command(Fork(1, 0))
        assert other.await_event(Accepted).nodes
        go.set()
        for session in sessions:
            assert session.await_event(Done).error is None


def test_what_takes_no_grammar_is_refused_by_name(stub: DecodeServiceStub) -> None:
    code, error = refused(lambda: stub.Decode(request_of(constraint=Regex("a"), ignore_eos=True)))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert error.field == "ignore_eos"
    code, error = refused(lambda: stub.Decode(request_of(constraint=Regex("a"), forced_prefix="b")))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert error.field == "forced_prefix"
