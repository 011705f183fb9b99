"""Many requests, a bounded number of them at work at a time, their results in order."""

from __future__ import annotations

import asyncio
import queue
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol, TypeAlias

from forkdecode.calls.arguments import spread
from forkdecode.calls.handle import Handle
from forkdecode.calls.one_process import OneProcess
from forkdecode.checks import check_bool, check_int, check_items
from forkdecode.errors import ForkdecodeError, invalid
from forkdecode.results import DecodeResult
from forkdecode.types import OptionKeywords, Options

Call: TypeAlias = tuple[Any, Any, Any, Any]
"""A prompt, its strategy, options and request id."""
MAX_CONCURRENCY = 65_536
_AHEAD = 8
"""Results that wait for an earlier one are at most so many times the concurrency."""


class ManyKeywords(OptionKeywords, total=False):
    """decode_many's keyword arguments apart from prompts, a strategy and return_errors; see
    LLM.decode_many."""

    options: Options | Sequence[Options] | None
    chat: bool
    request_id: Sequence[str] | None
    concurrency: int
    progress: bool


class Start(Protocol):
    """Sends one request. `heard` is called, in any thread, when its outcome is there."""

    def __call__(
        self, prompt: Any, strategy: Any, options: Any, name: Any, heard: Callable[[], None], /
    ) -> Handle: ...


def in_order(
    start: Start,
    prompts: Iterable[Any],
    strategy: Any,
    options: Any,
    request_id: Any,
    concurrency: int,
    progress: bool,
    *,
    return_errors: bool,
) -> Generator[DecodeResult | ForkdecodeError, None, None]:
    """The results of all prompts. strategy, options and request_id are one for all, or a list.

    progress: show a bar while standard error is a terminal. return_errors: a request's error takes
    its result's place; else it is raised, and ends the others. The arguments are checked at once;
    requests are sent, and checked, as the results are asked for.
    """
    calls = list_calls(prompts, strategy, options, request_id)
    check_int("concurrency", concurrency, 1, MAX_CONCURRENCY)
    check_bool("return_errors", return_errors)
    return _in_order(start, calls, concurrency, check_bool("progress", progress), return_errors)


def _in_order(
    start: Start, calls: list[Call], concurrency: int, progress: bool, return_errors: bool
) -> Generator[DecodeResult | ForkdecodeError, None, None]:
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    process = OneProcess()
    done: set[int] = set()
    waiting: deque[Handle | ForkdecodeError] = deque()
    sent = taken = running = 0
    refused = False
    with shown_progress(len(calls), progress) as advance:
        try:
            while taken < len(calls):
                ahead = min(len(calls), taken + _AHEAD * concurrency)
                while sent < ahead and running < concurrency and not refused:
                    try:
                        waiting.append(start(*calls[sent], partial(ended.put, sent)))
                        running += 1
                    except ForkdecodeError as error:
                        refused = not return_errors  # raised in its turn; what would follow isn't sent
                        waiting.append(error)
                        done.add(sent)
                        advance()
                    sent += 1
                if taken not in done:
                    process.check()
                    done.add(ended.get())
                    running -= 1
                    advance()
                    continue
                done.remove(taken)
                taken += 1
                yield _outcome(waiting.popleft(), return_errors)
        finally:
            for handle in waiting:
                if isinstance(handle, Handle):
                    handle.cancel()


def _outcome(handle: Handle | ForkdecodeError, return_errors: bool) -> DecodeResult | ForkdecodeError:
    try:
        if isinstance(handle, ForkdecodeError):
            raise handle
        return handle.result()
    except ForkdecodeError as error:
        if not return_errors:
            raise
        return error


async def in_order_async(
    decode: Callable[[Any, Any, Any, Any], Awaitable[DecodeResult]],
    calls: list[Call],
    concurrency: int,
    progress: bool,
    *,
    return_errors: bool,
) -> AsyncGenerator[DecodeResult | ForkdecodeError, None]:
    """The same for coroutines; see in_order."""
    check_int("concurrency", concurrency, 1, MAX_CONCURRENCY)
    check_bool("return_errors", return_errors)
    free = asyncio.Semaphore(concurrency)
    tasks: deque[asyncio.Task[DecodeResult | ForkdecodeError]] = deque()

    async def one(call: Call) -> DecodeResult | ForkdecodeError:
        async with free:
            try:
                return await decode(*call)
            except ForkdecodeError as error:
                if not return_errors:
                    raise
                return error
            finally:
                advance()

    with shown_progress(len(calls), check_bool("progress", progress)) as advance:
        left = iter(calls)
        try:
            while True:
                for call in left:
                    tasks.append(asyncio.create_task(one(call)))
                    if len(tasks) == _AHEAD * concurrency:
                        break
                if not tasks:
                    return
                result = await tasks[0]
                tasks.popleft()
                yield result
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def list_calls(prompts: Any, strategy: Any, options: Any, request_id: Any) -> list[Call]:
    """A tuple (prompt, strategy, options, request id) for each prompt. Raises InvalidRequestError."""
    items = check_items("prompts", prompts, "prompts")
    count = len(items)
    if isinstance(request_id, str):
        raise invalid("request_id", "is one for a list of prompts", "a list of ids, or None")
    names = spread("request_id", request_id, count)
    return list(
        zip(items, spread("strategy", strategy, count), spread("options", options, count), names, strict=True)
    )


@contextmanager
def shown_progress(total: int, wanted: bool) -> Iterator[Callable[[], None]]:
    """A bar on standard error, where that is a terminal; yields what moves it on by one."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    shown = wanted and console.is_terminal
    columns = (TextColumn("decoding"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console) if shown else nullcontext()
    with bar as progress:
        if progress is None:
            yield lambda: None
        else:
            task = progress.add_task("", total=total)
            yield lambda: progress.advance(task)
