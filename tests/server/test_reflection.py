"""A caller that knows nothing but the address, as grpcurl does: all it needs comes from reflection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2

from forkdecode import LLM, Greedy
from forkdecode.server.auth import Caller, TokenBook
from tests.server.calls import refused
from tests.server.puppet import Puppet
from tests.server.servers import Running, running_server, tiny_llm

SERVICE = "forkdecode.rpc.v1.DecodeService"


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with tiny_llm() as found:
        yield found


@pytest.fixture(scope="module")
def server(llm: LLM) -> Iterator[Running]:
    with running_server(llm) as running:
        yield running


def ask(channel: grpc.Channel, version: str = "v1", **question: str) -> Any:
    """The answer of either version of reflection, whose messages are the same."""
    info = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=lambda sent: sent.SerializeToString(),
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    return next(info(iter([reflection_pb2.ServerReflectionRequest(**question)])))


def described(channel: grpc.Channel, version: str, symbol: str) -> DescriptorPool:
    """All that a server says of what `symbol` needs."""
    pool = DescriptorPool()
    answer = ask(channel, version, file_containing_symbol=symbol).file_descriptor_response
    for data in reversed(answer.file_descriptor_proto):  # what a file needs comes behind it
        pool.Add(descriptor_pb2.FileDescriptorProto.FromString(data))
    return pool


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_a_method_is_found_by_its_name(server: Running, version: str) -> None:
    with server.channel() as channel:
        pool = described(channel, version, f"{SERVICE}.Decode")
        assert pool.FindServiceByName(SERVICE).methods_by_name["Decode"].server_streaming
        for unknown in (f"{SERVICE}.Nothing", "Decode", ""):
            answer = ask(channel, version, file_containing_symbol=unknown)
            assert answer.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


class Curl:
    """Calls by name with JSON."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self._pool = described(channel, "v1", SERVICE)

    def __call__(self, name: str, request: dict[str, Any]) -> list[dict[str, Any]]:
        method = self._pool.FindServiceByName(SERVICE).FindMethodByName(name)
        message = json_format.ParseDict(request, GetMessageClass(method.input_type)())
        call = self._channel.unary_stream(
            f"/{SERVICE}/{name}",
            request_serializer=lambda sent: sent.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        return [json_format.MessageToDict(answer) for answer in call(message)]


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_services_are_listed_and_described(server: Running, version: str) -> None:
    with server.channel() as channel:
        listed = ask(channel, version, list_services="").list_services_response.service
        names = {service.name for service in listed}
        assert names == {
            SERVICE,
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        }
        for name in names:
            methods = described(channel, version, name).FindServiceByName(name).methods
            assert all(method.input_type.file.package == name.rpartition(".")[0] for method in methods)


@pytest.mark.parametrize("name", ["BadRequest", "ErrorInfo", "RetryInfo", "Status"])
def test_what_statuses_of_errors_hold_is_described(server: Running, name: str) -> None:
    with server.channel() as channel:
        found = described(channel, "v1", f"google.rpc.{name}").FindMessageTypeByName(f"google.rpc.{name}")
        assert found.fields


def test_calls_without_our_code(server: Running, llm: LLM) -> None:
    with server.channel() as channel:
        curl = Curl(channel)
        [model] = curl("GetModel", {})
        assert model["blockSize"] == 4
        request = {"prompt": {"text": "hello"}, "greedy": {}, "options": {"maxTokens": 6}, "stream": True}
        messages = curl("Decode", request)
        expected = llm.decode("hello", Greedy(), max_tokens=6)
        [candidate] = messages[-1]["finished"]["candidates"]
        assert candidate["tokenIds"] == list(expected.candidates[0].token_ids)
        assert candidate.get("text", "") == expected.text
        text = "".join(d.get("text", "") for m in messages for d in m.get("deltas", []))
        assert text == expected.text
        [score] = curl("Score", {"prompt": {"text": "hello"}, "continuations": [{"text": " world"}]})
        assert len(score["continuations"]) == 1
        [tokens] = curl("Tokenize", {"prompt": {"text": "hello"}})
        assert curl("Detokenize", tokens) == [{"text": "hello"}]


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_needs_a_token_where_calls_do(version: str) -> None:
    tokens = TokenBook({b"x" * 32: Caller("somebody")})
    with running_server(Puppet().backend(), tokens=tokens) as server, server.channel() as channel:
        code, _ = refused(lambda: ask(channel, version, list_services=""))
    assert code is grpc.StatusCode.UNAUTHENTICATED
