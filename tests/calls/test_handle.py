"""Handles end whatever happens while their listener reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from forkdecode import GroupFailedError
from forkdecode.calls.handle import AsyncHandle, Handle
from forkdecode.calls.ranking import ranked
from forkdecode.results import Candidate, DecodeResult, Event, Finished, Usage
from forkdecode.types import BestOf

USAGE = Usage(*(0,) * 12, *(0.0,) * 4)
FOUND = tuple(Candidate(i, (1,), "a", "length", -1.0, -1.0, -1.0, None) for i in range(3))


def interrupted(_: object) -> list[float]:
    raise KeyboardInterrupt


def read_ranked(item: object) -> list[Event]:
    """As LLM and clients do with the last of a request."""
    strategy = BestOf(best_of=3, rank_by=interrupted)
    return [Finished("r", ranked(DecodeResult("r", (5,), strategy, 1, FOUND, USAGE)))]


def read_interrupted(item: object) -> list[Event]:
    raise KeyboardInterrupt


def read_broken(item: object) -> list[Event]:
    raise LookupError("a fault of ours")


READS: dict[str, tuple[Callable[[Any], list[Event]], type[BaseException], str]] = {
    "an interrupt in a scorer": (read_ranked, KeyboardInterrupt, "the scorer failed: KeyboardInterrupt"),
    "an interrupt while reading": (read_interrupted, KeyboardInterrupt, "was not read: KeyboardInterrupt"),
    "a fault while reading": (read_broken, LookupError, "was not read: LookupError: a fault of ours"),
}


@pytest.mark.parametrize("case", READS)
@pytest.mark.parametrize("way", ["result", "next"])
def test_the_handle_ends_though_its_reader_was_interrupted(case: str, way: str) -> None:
    read, kind, text = READS[case]
    cancelled: list[bool] = []
    handle = Handle("r", read, lambda: cancelled.append(True))
    handle.put(object())
    with pytest.raises(kind):
        handle.result(60) if way == "result" else next(handle)
    assert handle.done
    with pytest.raises(GroupFailedError, match=text) as caught:
        handle.result(60) if way == "result" else next(handle)
    assert caught.value.request_id == "r"
    if read is read_ranked:  # the engine was done, and what it found is still to be had
        assert caught.value.partial is not None
        assert caught.value.partial.candidates == FOUND
        assert not cancelled
    else:
        assert cancelled == [True]


@pytest.mark.parametrize("case", READS)
def test_so_does_that_of_an_event_loop(case: str) -> None:
    read, kind, text = READS[case]

    async def run() -> None:
        handle = AsyncHandle("r", read, lambda: None)
        handle.put_here(object())
        with pytest.raises(kind):
            await handle.result(60)
        assert handle.done
        with pytest.raises(GroupFailedError, match=text):
            await handle.result(60)

    asyncio.run(run())
