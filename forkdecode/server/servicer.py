"""The calls of DecodeService."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from google.protobuf.message import Message

from forkdecode.engine.port import Job
from forkdecode.errors import ForkdecodeError
from forkdecode.requests.prepare import Prepared
from forkdecode.requests.score import PreparedScore
from forkdecode.results import Event, ServedModel
from forkdecode.rpc.convert_events import event_message, model_response, score_response, stats_response
from forkdecode.rpc.convert_prompts import prompt_of
from forkdecode.rpc.convert_requests import MAX_REQUEST_ID, decode_call, score_call
from forkdecode.rpc.parse import parse
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.scheduler.events import GroupEvent
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.server.auth import Caller
from forkdecode.server.guard import Context, Guard
from forkdecode.server.methods import Call
from forkdecode.server.record import CallRecord, Recorder
from forkdecode.server.running import Charge
from forkdecode.server.serving import Serving
from forkdecode.server.stream import Outbox, Read, is_large_result, write_in_time
from forkdecode.server.workers import LARGE

T = TypeVar("T")
M = TypeVar("M", bound=Message)


class Servicer:
    """One method a call. Tokenising, and whatever else may take long, happens in worker threads."""

    def __init__(
        self,
        serving: Serving,
        model: ServedModel,
        guard: Guard,
        recorder: Recorder,
        *,
        stall_timeout: float,
        log_prompts: bool = False,
    ) -> None:
        self._engine = serving.engine
        self._requests = serving.requests
        self._running = serving.running
        self._courier = serving.courier
        self._workers = serving.workers
        self._model = model
        self._guard = guard
        self._recorder = recorder
        self._stall_timeout = stall_timeout
        self._log_prompts = log_prompts
        # Apart: results of many log-probabilities take seconds to become messages.
        self._converters = ThreadPoolExecutor(2, thread_name_prefix="forkdecode-results")
        # Apart: stats wait for the engine's step.
        self._askers = ThreadPoolExecutor(2, thread_name_prefix="forkdecode-stats")

    def close(self) -> None:
        """Ends its own threads."""
        for executor in (self._converters, self._askers):
            executor.shutdown(wait=False, cancel_futures=True)

    @property
    def calls(self) -> Mapping[str, Call]:
        """Its methods by name."""
        return {
            "Decode": self.decode,
            "Score": self.score,
            "Tokenize": self.tokenize,
            "Detokenize": self.detokenize,
            "GetModel": self.get_model,
            "GetStats": self.get_stats,
        }

    async def decode(self, messages: AsyncIterator[bytes], context: Context) -> None:
        """Decode: events of each step as one message, or the last alone."""
        record = CallRecord("Decode")

        async def work(data: bytes, caller: Caller) -> None:
            reader = self._workers.of(len(data))
            read = await _run(reader, self._read_decode, data, record)
            if isinstance(read, DecodeRequest):
                read = await _run(self._workers.of(0, waits=True), self._constrained, read, record)
            prepared, charge = read
            outbox = self._outbox(prepared.request, prepared.assembler.events)
            async with self._sent(outbox, charge, caller, record, len(data)):
                await self._stream(outbox, context)

        await self._guard.serve(messages, context, record, work)

    async def score(self, messages: AsyncIterator[bytes], context: Context) -> pb.ScoreResponse:
        """Score: one answer."""
        record = CallRecord("Score")

        async def work(data: bytes, caller: Caller) -> pb.ScoreResponse:
            prepared, charge = await _run(self._workers.of(len(data)), self._read_score, data, record)
            outbox = self._outbox(prepared.request, _no_events)
            async with self._sent(outbox, charge, caller, record, len(data)):
                last = await outbox.last()

            def answer() -> pb.ScoreResponse:
                return score_response(prepared.assembler.result(last))

            return await _run(self._converters, answer) if is_large_result(last) else answer()

        return await self._guard.serve(messages, context, record, work)

    async def tokenize(self, messages: AsyncIterator[bytes], context: Context) -> pb.TokenizeResponse:
        """Tokenize: a prompt as Decode would see it."""

        def read(data: bytes, record: CallRecord) -> pb.TokenizeResponse:
            request = _read(pb.TokenizeRequest, data, record)
            return pb.TokenizeResponse(token_ids=self._requests.tokenize(prompt_of(request.prompt)))

        return await self._in_worker_alone("Tokenize", messages, context, read)

    async def detokenize(self, messages: AsyncIterator[bytes], context: Context) -> pb.DetokenizeResponse:
        """Detokenize: the text of token ids."""

        def read(data: bytes, record: CallRecord) -> pb.DetokenizeResponse:
            request = _read(pb.DetokenizeRequest, data, record)
            return pb.DetokenizeResponse(text=self._requests.detokenize(request.token_ids))

        return await self._in_worker_alone("Detokenize", messages, context, read)

    async def get_model(self, messages: AsyncIterator[bytes], context: Context) -> pb.GetModelResponse:
        """GetModel: answered whatever the engine does."""
        record = CallRecord("GetModel")

        async def work(data: bytes, _: Caller) -> pb.GetModelResponse:
            _read(pb.GetModelRequest, data, record)
            return model_response(self._model)

        return await self._guard.serve(messages, context, record, work, takes_work=False)

    async def get_stats(self, messages: AsyncIterator[bytes], context: Context) -> pb.GetStatsResponse:
        """GetStats: a snapshot between two steps."""
        record = CallRecord("GetStats")

        async def work(data: bytes, _: Caller) -> pb.GetStatsResponse:
            _read(pb.GetStatsRequest, data, record)
            return stats_response(await _run(self._askers, self._engine.stats))

        return await self._guard.serve(messages, context, record, work, takes_work=False)

    async def _in_worker_alone(
        self,
        method: str,
        messages: AsyncIterator[bytes],
        context: Context,
        read: Callable[[bytes, CallRecord], T],
    ) -> T:
        """A call that is nothing but work for a worker."""
        record = CallRecord(method)

        async def work(data: bytes, _: Caller) -> T:
            return await _run(self._workers.of(len(data)), read, data, record)

        return await self._guard.serve(messages, context, record, work)

    def _read_decode(self, data: bytes, record: CallRecord) -> tuple[Prepared, Charge] | DecodeRequest:
        """The request without its constraint where one is to be made, which may take long."""
        message = _read(pb.DecodeRequest, data, record)
        self._note(record, message)
        call = decode_call(message)
        request = self._requests.unconstrained(
            call.prompt,
            call.strategy,
            call.options,
            {},
            chat=call.chat,
            request_id=call.request_id,
            stream=call.stream,
        )
        return self._constrained(request, record) if call.options.constraint is None else request

    def _constrained(self, request: DecodeRequest, record: CallRecord) -> tuple[Prepared, Charge]:
        prepared = self._requests.constrained(request)
        record.prepared(prepared.request)
        return prepared, Charge.of(prepared.request, self._model.block_size)

    def _read_score(self, data: bytes, record: CallRecord) -> tuple[PreparedScore, Charge]:
        request = _read(pb.ScoreRequest, data, record)
        self._note(record, request)
        call = score_call(request)
        prepared = self._requests.prepare_score(
            call.prompt,
            call.continuations,
            top_logprobs=call.top_logprobs,
            priority=call.priority,
            cache_salt=call.cache_salt,
            request_id=call.request_id,
        )
        record.prepared(prepared.request)
        return prepared, Charge.of(prepared.request, self._model.block_size)

    def _note(self, record: CallRecord, request: pb.DecodeRequest | pb.ScoreRequest) -> None:
        record.request_id = request.request_id[:MAX_REQUEST_ID]
        if self._log_prompts:
            record.prompt = str(request.prompt)

    def _outbox(self, request: DecodeRequest, read: Read) -> Outbox:
        return Outbox(request, read, self._courier, self._converters)

    @asynccontextmanager
    async def _sent(
        self, outbox: Outbox, charge: Charge, caller: Caller, record: CallRecord, size: int
    ) -> AsyncIterator[None]:
        """While the engine has a request: cancelled there if this is left before its end. size: of the
        request in bytes, as it was sent."""
        job = Job(outbox.request, outbox.sink)
        with self._running.charged(caller, charge), self._running.stream(outbox):
            if size < LARGE:
                self._engine.submit([job])
            else:
                await self._submit_in_worker(job)
            self._recorder.started(record, outbox)
            try:
                yield
            finally:
                if outbox.ended is None:
                    self._engine.cancel(outbox.request)

    async def _submit_in_worker(self, job: Job) -> None:
        submitted = asyncio.ensure_future(_run(self._workers.large, self._engine.submit, [job]))

        def cancel(done: asyncio.Future[None]) -> None:
            if not done.cancelled() and done.exception() is None:
                self._engine.cancel(job.request)

        try:
            await asyncio.shield(submitted)
        except asyncio.CancelledError:
            # The thread goes on all the same, and nobody will read what it has asked for.
            submitted.add_done_callback(cancel)
            raise

    async def _stream(self, outbox: Outbox, context: Context) -> None:
        # By itself: were it part of a first message that is never taken, no status could follow it.
        await context.send_initial_metadata(())
        name, is_last = outbox.request.request_id, False
        while not is_last:
            batch = await outbox.take()
            is_last = batch.is_last
            message = (
                await _run(self._converters, event_message, batch.events, name)
                if batch.is_large
                else event_message(batch.events, name)
            )
            await write_in_time(context, message, self._stall_timeout, outbox.request.request_id)
            name = ""


async def _run(executor: Executor, work: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(executor, work, *arguments)


def _read(kind: type[M], data: bytes, record: CallRecord) -> M:
    request = parse(kind, data)
    record.message = request
    return request


def _no_events(event: GroupEvent | ForkdecodeError) -> list[Event]:
    raise AssertionError(f"a score request has no events but its last, not {type(event).__name__}")
