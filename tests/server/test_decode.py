"""What a caller of a real server sees, against the engine in process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forkdecode import LLM, Event, Finished, Options, Strategy
from forkdecode.rpc.convert_events import Events
from forkdecode.rpc.convert_requests import DecodeCall, decode_request
from forkdecode.rpc.v1.decode_pb2_grpc import DecodeServiceStub
from tests.llm.models import PROMPT, STRATEGIES, assert_idle, outcome
from tests.server.servers import Running, running_server, tiny_llm


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with tiny_llm() as found:
        yield found
        assert_idle(found)


@pytest.fixture(scope="module")
def server(llm: LLM) -> Iterator[Running]:
    with running_server(llm) as running:
        yield running


@pytest.fixture(scope="module")
def stub(server: Running) -> Iterator[DecodeServiceStub]:
    with server.channel() as channel:
        yield DecodeServiceStub(channel)


def remote_events(stub: DecodeServiceStub, call: DecodeCall) -> list[Event]:
    events = Events(call.strategy)
    return [event for message in stub.Decode(decode_request(call)) for event in events.of(message)]


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("stream", [True, False])
def test_a_result_is_that_of_the_engine_in_process(
    stub: DecodeServiceStub, llm: LLM, name: str, stream: bool
) -> None:
    strategy: Strategy = STRATEGIES[name]
    options = Options(max_tokens=24, logprobs=2, stop=("ll",))
    last = remote_events(stub, DecodeCall(PROMPT, strategy, options, f"mine-{name}", stream))[-1]
    assert isinstance(last, Finished)
    expected = llm.decode(PROMPT, strategy, options=options)
    assert outcome(last.result) == outcome(expected)
    assert [c.logprobs for c in last.result.candidates] == [
        pytest.approx(c.logprobs) for c in expected.candidates
    ]
    assert last.result.request_id == f"mine-{name}"
    assert last.result.seed == expected.seed
    assert last.result.prompt_token_ids == expected.prompt_token_ids
