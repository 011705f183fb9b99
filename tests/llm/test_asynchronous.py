"""AsyncLLM: the same results and errors; whoever stops waiting stops the work."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from forkdecode import (
    LLM,
    AsyncHandle,
    AsyncLLM,
    Beam,
    CancelledError,
    CapacityError,
    Delta,
    EngineClosedError,
    Finished,
    Greedy,
    InvalidRequestError,
    Sample,
    Started,
)
from tests.llm.models import PROMPT, STRATEGIES, TOKENIZER, outcome, tiny_llama

LONG: dict[str, Any] = {"max_tokens": 450, "ignore_eos": True}


def run(work: Callable[[AsyncLLM], Awaitable[None]], **settings: Any) -> None:
    """One engine and one loop for a test; at its end nothing may be left running."""

    async def main() -> None:
        given = {"tokenizer": TOKENIZER, "num_blocks": 4096, "threads": 1, **settings}
        async with await AsyncLLM.create(tiny_llama(), **given) as llm:
            await asyncio.wait_for(work(llm), 120)
            await idle(llm)

    asyncio.run(main())


async def idle(llm: AsyncLLM) -> None:
    async with asyncio.timeout(60):
        while True:
            stats = await llm.stats()
            if not stats.running_groups + stats.waiting_groups:
                assert stats.used_blocks == 0
                return


def test_the_same_results_as_from_threads(llm: LLM) -> None:
    async def work(other: AsyncLLM) -> None:
        assert other.info.vocab_size == llm.info.vocab_size
        assert other.tokenizer is TOKENIZER
        assert other.capacity.num_blocks == 4096
        found = await asyncio.gather(*(other.decode(PROMPT, s, max_tokens=6) for s in STRATEGIES.values()))
        for strategy, result in zip(STRATEGIES.values(), found, strict=True):
            expected = outcome(llm.decode(PROMPT, strategy, max_tokens=6))
            assert [c[:4] for c in outcome(result)] == [c[:4] for c in expected]
        batch = await other.decode(
            ["a", [5, 6], [{"role": "user", "content": "x"}]], Beam(width=2), max_tokens=3
        )
        assert [len(r.candidates) for r in batch] == [2, 2, 2]
        assert await other.decode([]) == []

    run(work)


def test_streams() -> None:
    async def work(llm: AsyncLLM) -> None:
        events = [e async for e in llm.stream(PROMPT, Sample(n=2, seed=1), max_tokens=5)]
        assert isinstance(events[0], Started)
        assert isinstance(events[-1], Finished)
        for candidate in events[-1].result.candidates:
            mine = [e for e in events if isinstance(e, Delta) and e.candidate == candidate.index]
            assert "".join(e.text for e in mine) == candidate.text
            assert sum((e.token_ids for e in mine), ()) == candidate.token_ids

    run(work)


def test_errors_are_the_same() -> None:
    async def work(llm: AsyncLLM) -> None:
        for call in (llm.decode, llm.submit):
            with pytest.raises(InvalidRequestError, match="strategy: Beam is a class"):
                await call("a", Beam)
            with pytest.raises(CapacityError):
                await call("a", Beam(width=9000), max_tokens=500)
        with pytest.raises(InvalidRequestError, match="temperatur: is not an option"):
            async for _ in llm.stream("a", temperatur=1):
                pass
        with pytest.raises(InvalidRequestError, match=r"prompt: is empty; .* \(prompt 2 of 2\)"):
            await llm.decode(["a", ""])
        handle = await llm.submit("a", request_id="x", **LONG)
        with pytest.raises(InvalidRequestError, match="'x' is in use"):
            await llm.decode(["b", "c"], request_id=["y", "x"], **LONG)
        stats = await llm.stats()
        assert stats.running_groups + stats.waiting_groups == 1
        handle.cancel()
        with pytest.raises(CancelledError) as caught:
            await handle.result()
        assert caught.value.partial is not None

    run(work)


def test_who_is_cancelled_cancels() -> None:
    async def decode(llm: AsyncLLM) -> None:
        await llm.decode(PROMPT, Beam(width=2), **LONG)

    async def batch(llm: AsyncLLM) -> None:
        await llm.decode([PROMPT] * 4, Sample(n=2), **LONG)

    async def stream(llm: AsyncLLM) -> None:
        async for _ in llm.stream(PROMPT, Greedy(), **LONG):
            pass

    async def handle_events(llm: AsyncLLM) -> None:
        async for _ in await llm.submit(PROMPT, Greedy(), stream=True, **LONG):
            pass

    async def work(llm: AsyncLLM) -> None:
        for use in (decode, batch, stream, handle_events):
            task = asyncio.create_task(use(llm))
            while not (await llm.stats()).running_groups:
                pass
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await idle(llm)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await decode(llm)
        await idle(llm)
        assert (await llm.stats()).finished_groups == 0

    run(work)


def test_streams_that_are_left_early() -> None:
    async def work(llm: AsyncLLM) -> None:
        closed = llm.stream(PROMPT, Sample(n=2), **LONG)
        await anext(closed)
        await closed.aclose()
        await idle(llm)
        async for _ in llm.stream(PROMPT, Sample(n=2), **LONG):
            break
        gc.collect()
        await idle(llm)
        never_read = llm.stream(PROMPT, **LONG)
        await never_read.aclose()
        await idle(llm)
        assert (await llm.stats()).failed_groups == 2

    run(work)


def test_a_timeout_of_ones_own_lets_it_go_on() -> None:
    async def work(llm: AsyncLLM) -> None:
        handle = await llm.submit(PROMPT, max_tokens=100, ignore_eos=True)
        for timeout in (0, -1.0):
            with pytest.raises(TimeoutError, match="is not done after"):
                await handle.result(timeout=timeout)
        for wrong in ("1", float("nan"), True):
            with pytest.raises(InvalidRequestError, match="timeout: "):
                await handle.result(timeout=wrong)  # type: ignore[arg-type]
        result = await handle.result(timeout=100)
        assert len(result.candidates[0].token_ids) == 100
        assert await handle.result() is result

    run(work)


def test_several_tasks_may_wait_for_one_request() -> None:
    async def work(llm: AsyncLLM) -> None:
        handle = await llm.submit(PROMPT, stream=True, max_tokens=30, ignore_eos=True)
        results = await asyncio.gather(handle.result(), handle.result(), handle.result())
        assert results[0] is results[1] is results[2]
        assert [e async for e in handle] == []

    run(work)


def test_close_in_the_middle() -> None:
    async def main() -> None:
        llm = AsyncLLM(tiny_llama(), tokenizer=TOKENIZER, num_blocks=4096, threads=1)
        tasks = [asyncio.create_task(llm.decode(PROMPT, Beam(width=2), **LONG)) for _ in range(3)]
        while not (await llm.stats()).running_groups:
            pass
        await llm.close()
        await llm.close()
        for task in tasks:
            with pytest.raises(EngineClosedError):
                await task
        for call in (llm.decode(PROMPT), llm.submit(PROMPT), llm.stats()):
            with pytest.raises(EngineClosedError):
                await call

    asyncio.run(asyncio.wait_for(main(), 120))


def test_a_loop_that_ends_in_the_middle() -> None:
    """The engine outlives the loop: it drops what nobody can hear of, and serves the next loop."""
    llm = AsyncLLM(tiny_llama(), tokenizer=TOKENIZER, num_blocks=4096, threads=1)
    kept: list[AsyncHandle] = []

    async def leave() -> None:
        kept.append(await llm.submit(PROMPT, Sample(n=2), stream=True, **LONG))

    async def come_back() -> None:
        await idle(llm)
        result = await llm.decode(PROMPT, Beam(width=2), max_tokens=4)
        assert len(result.candidates) == 2
        stats = await llm.stats()
        assert (stats.failed_groups, stats.finished_groups) == (1, 1)
        await llm.close()

    asyncio.run(leave())
    asyncio.run(asyncio.wait_for(come_back(), 120))
