"""What a caller of a real server sees, against the engine in process."""

from __future__ import annotations

import grpc
import pytest

from forkdecode import LLM, Beam, Committed, Finished, Greedy, InvalidRequestError, Options, Strategy
from forkdecode.rpc.convert_events import served_model
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.rpc.v1.decode_pb2_grpc import DecodeServiceStub
from tests.llm.models import EOS_ID, PROMPT, STRATEGIES, TOKENIZER, VOCAB, ids, outcome
from tests.server.calls import refused, remote_events, request_of
from tests.server.servers import Running, running_server

CHAT = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "world"}]


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("stream", [True, False])
def test_a_result_is_that_of_the_engine_in_process(
    stub: DecodeServiceStub, llm: LLM, name: str, stream: bool
) -> None:
    strategy: Strategy = STRATEGIES[name]
    options = Options(max_tokens=24, logprobs=2, stop=("ll",))
    request = request_of(
        strategy, prompt=PROMPT, name=f"mine-{name}", stream=stream, max_tokens=24, logprobs=2, stop=("ll",)
    )
    events = remote_events(stub, strategy, request)
    last = events[-1]
    assert isinstance(last, Finished)
    assert stream or events == [last]
    expected = llm.decode(PROMPT, strategy, options=options)
    assert outcome(last.result) == outcome(expected)
    for got, wanted in zip(last.result.candidates, expected.candidates, strict=True):
        assert got.logprobs is not None
        assert wanted.logprobs is not None
        assert [t.token_id for t in got.logprobs] == [t.token_id for t in wanted.logprobs]
    assert last.result.request_id == f"mine-{name}"
    assert last.result.seed == expected.seed
    assert last.result.prompt_token_ids == expected.prompt_token_ids


def test_a_streamed_beam_commits_what_it_returns(stub: DecodeServiceStub) -> None:
    strategy = Beam(width=3, num_return_sequences=1)
    events = remote_events(stub, strategy, request_of(strategy, prompt=PROMPT, max_tokens=30))
    committed = [event for event in events if isinstance(event, Committed)]
    last = events[-1]
    assert isinstance(last, Finished)
    assert committed
    tokens = [token for event in committed for token in event.token_ids]
    assert tuple(tokens) == last.result.candidates[0].token_ids[: len(tokens)]
    assert last.result.text.startswith("".join(event.text for event in committed))


def test_chat_and_token_prompts(stub: DecodeServiceStub, llm: LLM) -> None:
    for prompt in (CHAT, ids("hello world")):
        last = remote_events(stub, Greedy(), request_of(Greedy(), prompt=prompt, max_tokens=8))[-1]
        assert isinstance(last, Finished)
        assert outcome(last.result) == outcome(llm.decode(prompt, Greedy(), max_tokens=8))


def test_scores_are_those_of_the_engine_in_process(stub: DecodeServiceStub, llm: LLM) -> None:
    continuations = ["hello", ids(" world")]
    request = pb.ScoreRequest(
        prompt=pb.Prompt(text=PROMPT),
        continuations=[
            pb.Continuation(text="hello"),
            pb.Continuation(token_ids=pb.TokenIds(ids=ids(" world"))),
        ],
        top_logprobs=1,
        request_id="score me",
    )
    found = stub.Score(request)
    expected = llm.score(PROMPT, continuations, top_logprobs=1)
    assert found.request_id == "score me"
    assert [c.cumulative_logprob for c in found.continuations] == [
        pytest.approx(c.cumulative_logprob) for c in expected.continuations
    ]
    assert [c.text for c in found.continuations] == ["hello", " world"]
    assert all(len(token.top) == 1 for c in found.continuations for token in c.logprobs)


def test_tokens_and_texts(stub: DecodeServiceStub, llm: LLM) -> None:
    for prompt, wanted in (
        (pb.Prompt(text="hello world"), llm.tokenize("hello world")),
        (pb.Prompt(chat=pb.Chat(messages=[pb.ChatMessage(**turn) for turn in CHAT])), llm.tokenize(CHAT)),
        (pb.Prompt(token_ids=pb.TokenIds(ids=[5, 6])), (5, 6)),
    ):
        assert tuple(stub.Tokenize(pb.TokenizeRequest(prompt=prompt)).token_ids) == tuple(wanted)
    tokens = [*ids("hé世"), EOS_ID]
    assert stub.Detokenize(pb.DetokenizeRequest(token_ids=tokens)).text == "hé世"
    half = pb.DetokenizeRequest(token_ids=ids("世")[:1])
    assert stub.Detokenize(half).text == TOKENIZER.decode(ids("世")[:1])
    code, error = refused(lambda: stub.Detokenize(pb.DetokenizeRequest(token_ids=[len(VOCAB)])))
    assert (code, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, "token_ids")
    code, error = refused(lambda: stub.Tokenize(pb.TokenizeRequest()))
    assert (code, error.field) == (grpc.StatusCode.INVALID_ARGUMENT, "prompt")


def test_the_model_and_the_stats(stub: DecodeServiceStub, llm: LLM) -> None:
    model = served_model(stub.GetModel(pb.GetModelRequest()))
    assert (model.vocab_size, model.max_positions, model.eos_ids) == (len(VOCAB), 512, (EOS_ID,))
    assert (model.block_size, model.num_blocks, model.dtype) == (4, 4096, "float32")
    assert model.has_tokenizer
    assert model.has_chat_template
    assert model.max_request_bytes == 4 * 2**20
    stats = stub.GetStats(pb.GetStatsRequest())
    assert stats.total_blocks == 4096
    assert stats.steps == llm.stats().steps


def test_a_wrong_request_is_refused_by_field(stub: DecodeServiceStub, server: Running) -> None:
    request = request_of(max_tokens=600, name="too-long")
    code, error = refused(lambda: stub.Decode(request))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert type(error) is InvalidRequestError
    assert (error.field, error.request_id) == ("max_tokens", "too-long")
    assert error.limit is not None
    assert server.ended("too-long")["status"] == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("method", "data"),
    [
        (method, data)
        for method in ("Decode", "Score", "Tokenize", "GetModel")
        for data in (b"\xff", b"z\x05")
    ],
)
def test_bytes_that_are_no_request_are_refused(server: Running, method: str, data: bytes) -> None:
    with server.channel() as channel:
        call = channel.unary_stream(f"/forkdecode.rpc.v1.DecodeService/{method}")
        code, error = refused(lambda: call(data))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert type(error) is InvalidRequestError
    assert error.field == "request"


def test_a_request_that_is_too_big_is_refused(llm: LLM) -> None:
    with running_server(llm, max_request_bytes=2048) as server, server.channel() as channel:
        stub = DecodeServiceStub(channel)
        code, _ = refused(lambda: stub.Decode(request_of(prompt="x" * 4096)))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert stub.GetModel(pb.GetModelRequest()).max_request_bytes == 2048


def test_a_name_in_use_is_refused(stub: DecodeServiceStub) -> None:
    running = stub.Decode(request_of(name="twin", max_tokens=400, ignore_eos=True))
    next(running)
    code, error = refused(lambda: stub.Decode(request_of(name="twin", max_tokens=4)))
    running.cancel()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert error.field == "request_id"
