"""decode_many: in order, bounded, the same in process and by a server, for threads and coroutines."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from forkdecode import LLM, AsyncClient, AsyncLLM, Client, InvalidRequestError, Sample
from forkdecode.calls.handle import Handle
from forkdecode.calls.many import in_order, in_order_async
from tests.llm.models import TOKENIZER, assert_idle, settle, tiny_llama
from tests.server.servers import running_server, tiny_llm

PROMPTS = [f"prompt {i}" for i in range(12)]


def tokens(result: Any) -> list[tuple[int, ...]]:
    """Not the scores: they differ in the last bit where a prompt's blocks were cached."""
    return [candidate.token_ids for candidate in result.candidates]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with tiny_llm() as llm:
        yield llm


@pytest.fixture(scope="module")
def client(llm: LLM) -> Iterator[Client]:
    with running_server(llm) as server, Client(server.address) as client:
        yield client


class Desk:
    """Gives handles that end when the test says so."""

    def __init__(self) -> None:
        self.handles: dict[int, Handle] = {}
        self.cancelled: list[int] = []
        self.most = 0
        self.ended = 0

    def start(self, prompt: int, _: Any, __: Any, ___: Any, heard: Callable[[], None]) -> Handle:
        self.handles[prompt] = Handle(str(prompt), self._read, lambda: self.cancelled.append(prompt), heard)
        self.most = max(self.most, len(self.handles) - self.ended)
        return self.handles[prompt]

    def end(self, number: int) -> None:
        self.ended += 1
        self.handles[number].put(number)

    @staticmethod
    def _read(number: int) -> Any:
        from forkdecode import Finished

        return [Finished(str(number), number)]  # type: ignore[arg-type]


def test_order_and_bounds_whatever_ends_first() -> None:
    desk = Desk()
    results: list[Any] = []

    def read() -> None:
        results.extend(
            in_order(desk.start, range(100), None, None, None, 3, False, return_errors=False)  # type: ignore[arg-type]
        )

    reader = threading.Thread(target=read)
    reader.start()
    seen: set[int] = set()
    while len(seen) < 100:
        for number in sorted(set(desk.handles) - seen, reverse=True):  # the newest first
            seen.add(number)
            desk.end(number)
    reader.join(60)
    assert results == list(range(100))
    assert desk.most <= 3


def test_the_first_is_slow_and_the_rest_don_t_pile_up() -> None:
    desk = Desk()
    results = in_order(desk.start, range(100), None, None, None, 2, False, return_errors=False)  # type: ignore[arg-type]
    got: list[Any] = []
    reader = threading.Thread(target=lambda: got.append(next(results)))
    reader.start()
    while len(desk.handles) < 16:
        for number in range(1, len(desk.handles)):
            if not desk.handles[number].done and number not in got and number > desk.ended:
                desk.end(number)
    desk.end(0)
    reader.join(60)
    assert got == [0]
    assert len(desk.handles) == 16  # 8 x concurrency, the slow one included
    results.close()  # type: ignore[attr-defined]
    assert desk.cancelled == list(range(1, 16))


@pytest.mark.parametrize("concurrency", [1, 5, 100])
def test_both_give_the_same(llm: LLM, client: Client, concurrency: int) -> None:
    strategies = [Sample(n=2, seed=i) for i in range(len(PROMPTS))]
    expected = [tokens(r) for r in llm.decode(PROMPTS, strategies, max_tokens=4)]
    for one in (llm, client):
        found = one.decode_many(iter(PROMPTS), strategies, concurrency=concurrency, max_tokens=4)
        assert [tokens(r) for r in found] == expected
        assert list(one.decode_many([])) == []
    assert_idle(llm)


def test_errors(llm: LLM, client: Client) -> None:
    prompts = ["a", [-1], "b", [9999], "c"]
    for one in (llm, client):
        found = list(one.decode_many(prompts, return_errors=True, max_tokens=2))
        assert [type(r).__name__ for r in found] == ["DecodeResult", "InvalidRequestError"] * 2 + [
            "DecodeResult"
        ]
        with pytest.raises(InvalidRequestError, match="prompt: "):
            list(one.decode_many(prompts, max_tokens=2))
        for wrong, field in (
            ({"concurrency": 0}, "concurrency"), ({"progress": 1}, "progress"),
            ({"return_errors": None}, "return_errors"),
            ({"prompts": "abc"}, "prompts"), ({"strategy": [Sample()]}, "strategy"),
            ({"request_id": "x"}, "request_id"),
        ):  # fmt: skip
            with pytest.raises(InvalidRequestError) as caught:
                one.decode_many(**{"prompts": ["a", "b"], **wrong})
            assert caught.value.field == field


@pytest.mark.parametrize("wrong", [[-1], [9999]], ids=["known here", "known by the engine"])
def test_what_came_before_an_error_is_given_first(llm: LLM, client: Client, wrong: list[int]) -> None:
    prompts: list[Any] = ["a", "b", wrong, "c"]
    for one in (llm, client):
        results = one.decode_many(prompts, max_tokens=2)
        assert next(results).candidates
        assert next(results).candidates
        with pytest.raises(InvalidRequestError, match="prompt: "):
            next(results)
        assert list(results) == []

    async def main() -> None:
        async with AsyncClient(client._settings.address) as remote:
            results = remote.decode_many(prompts, max_tokens=2)
            assert (await anext(results)).candidates
            assert (await anext(results)).candidates
            with pytest.raises(InvalidRequestError, match="prompt: "):
                await anext(results)

    asyncio.run(main())


def test_leaving_early_ends_the_rest(llm: LLM, client: Client) -> None:
    for one in (llm, client):
        results = one.decode_many(PROMPTS, max_tokens=40, ignore_eos=True, concurrency=4)
        next(results)
        results.close()  # type: ignore[attr-defined]
        one.decode("a", max_tokens=1)  # behind those that were given up, which may only just arrive
        settle(llm)


def test_coroutines(client: Client, llm: LLM) -> None:
    expected = [tokens(r) for r in llm.decode(PROMPTS, Sample(n=2, seed=1), max_tokens=4)]
    address = client._settings.address

    async def work(one: AsyncClient | AsyncLLM) -> None:
        found = one.decode_many(PROMPTS, Sample(n=2, seed=1), concurrency=3, max_tokens=4)
        assert [tokens(r) async for r in found] == expected
        kinds = [
            type(r).__name__ async for r in one.decode_many(["a", [9999]], return_errors=True, max_tokens=1)
        ]
        assert kinds == ["DecodeResult", "InvalidRequestError"]
        with pytest.raises(InvalidRequestError):
            _ = [r async for r in one.decode_many(["a", [9999]], max_tokens=1)]

    async def main() -> None:
        async with AsyncClient(address) as remote:
            await work(remote)
        async with AsyncLLM(tiny_llama(), tokenizer=TOKENIZER, num_blocks=1024, threads=1) as local:
            await work(local)

    asyncio.run(main())


def test_coroutines_are_bounded() -> None:
    running = most = started = 0

    async def decode(number: int, *_: Any) -> Any:
        nonlocal running, most, started
        started += 1
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return number

    async def main() -> None:
        calls = [(i, None, None, None) for i in range(50)]
        results = in_order_async(decode, calls, 3, False, return_errors=False)
        assert [r async for r in results] == list(range(50))
        assert most == 3
        rest = in_order_async(decode, calls, 1, False, return_errors=False)
        assert await anext(rest) == 0
        assert started <= 50 + 8
        await rest.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())


def test_a_bar_on_a_terminal_alone(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, wanted, shown in (
        (Terminal(), True, True),
        (Terminal(), False, False),
        (io.StringIO(), True, False),
    ):
        monkeypatch.setattr("sys.stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        assert len(list(llm.decode_many(["a"] * 3, progress=wanted, max_tokens=1))) == 3
        assert ("3/3" in stream.getvalue()) == shown
