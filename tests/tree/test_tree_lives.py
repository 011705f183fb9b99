"""Trees of an LLM from threads and from coroutines, and how they end."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import forkdecode
from forkdecode import LLM, AsyncLLM, EngineClosedError, InvalidRequestError, NodeStopped, Sample
from forkdecode.calls.tree import Node
from tests.llm.models import PROMPT, TOKENIZER, ids, tiny_llama
from tests.tree.words import LONG, WORDS


def test_threads_share_a_tree(llm: LLM) -> None:
    with llm.tree(PROMPT, seed=4) as tree:
        forks = tree.fork(tree.root, 8)
        start = threading.Barrier(8)

        def work(node: Node) -> list[tuple[int, ...]]:
            start.wait()
            found = []
            for _ in range(3):
                [child] = tree.decode(node, Sample(), **WORDS)
                found.append(child.token_ids)
                node = child
            return found

        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(work, forks))
        assert len(tree.nodes) == 1 + 8 + 24
    with llm.tree(PROMPT, seed=4) as tree:
        start = threading.Barrier(1)
        assert [work(node) for node in tree.fork(tree.root, 8)] == together


def test_a_tree_that_is_closed_or_dropped_leaves_nothing(llm: LLM) -> None:
    tree = llm.tree(PROMPT)
    tree.start(tree.root, Sample(n=2), **LONG)
    tree.close()
    tree.close()
    with pytest.raises(EngineClosedError):
        tree.fork(tree.root)
    dropped = llm.tree(PROMPT)
    dropped.decode(dropped.root, **WORDS)
    del dropped
    gc.collect()
    assert llm.stats().held_nodes == 0


def test_waiting_ends_when_another_thread_closes_the_tree(llm: LLM) -> None:
    tree = llm.tree(PROMPT)
    nodes = tree.start(tree.root, Sample(n=2), **LONG)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(tree.wait, nodes)
        tree.close()
        assert isinstance(waiting.exception(), EngineClosedError) or not nodes[0].is_generating


def test_an_engine_that_is_closed_ends_what_runs() -> None:
    llm = LLM(tiny_llama(), tokenizer=TOKENIZER, num_blocks=512, threads=1)
    tree = llm.tree(PROMPT)
    [node] = tree.start(tree.root, **LONG)
    llm.close()
    tree.wait(node)
    if node.error is not None:  # it may have been done before
        assert isinstance(node.error, EngineClosedError)
        assert node.finish_reason == "failed"
    with pytest.raises(EngineClosedError):
        tree.decode(tree.root)
    tree.close()


def test_coroutines() -> None:
    async def main() -> None:
        async with await AsyncLLM.create(
            tiny_llama(), tokenizer=TOKENIZER, num_blocks=4096, threads=1
        ) as llm:
            async with await llm.tree(PROMPT, seed=4) as tree:
                root = tree.root
                forks = await tree.fork(root, 3)
                parts = await asyncio.gather(*(tree.decode(f, Sample(n=2), **WORDS) for f in forks))
                assert [len(part) for part in parts] == [2, 2, 2]
                child = parts[0][0]
                own = [child.path_token_ids, child.text]
                again = await tree.decode(forks, Sample(n=2), seed=0, **WORDS)
                assert [n.token_ids for n in again] == [n.token_ids for part in parts for n in part]
                assert [(await tree.extend(child, "!")).path_token_ids[:-1], child.text] == own
                events = [event async for event in tree.stream(root, Sample(n=2), **WORDS)]
                assert sum(isinstance(event, NodeStopped) for event in events) == 2
                assert (await tree.decode([]), await tree.prune([])) == ([], None)
                assert [event async for event in tree.stream([])] == []
                scores = await tree.score(child, ["a"])
                assert scores[0].token_ids == ids("a")
                await tree.pin(child)
                await tree.unpin(child)
                assert (await tree.truncate(child, child.num_tokens - 1)).token_ids == child.token_ids[:-1]
                paths = await tree.export(child)
                assert (await tree.import_(paths))[0].path_text == child.path_text
                await tree.finish(child)
                with pytest.raises(InvalidRequestError, match="finished"):
                    await tree.decode(child)
                await _cancelled(tree)
                async with await llm.tree(PROMPT, seed=4) as other:
                    await _refuses(tree, other.root)
            with pytest.raises(EngineClosedError):
                await tree.fork(root)
            dropped = await llm.tree(PROMPT)
            await dropped.start(dropped.root, **LONG)
            del dropped
            gc.collect()
            while (stats := await llm.stats()).held_nodes + stats.running_groups:
                await asyncio.sleep(0)
            # What the last step's copies have read is free from the next step on.
            await llm.decode(PROMPT, max_tokens=2)
            assert (await llm.stats()).used_blocks == 0

    asyncio.run(main())


async def _refuses(tree: forkdecode.AsyncTree, node: Node) -> None:
    """Of another tree."""
    for verb in (lambda: tree.fork(node), lambda: tree.prune([node]), lambda: tree.wait(node)):
        with pytest.raises(InvalidRequestError, match="is of another tree"):
            await verb()


async def _cancelled(tree: forkdecode.AsyncTree) -> None:
    """A decode whose await is cancelled leaves no nodes; a stream that is left stops its own."""
    before = tree.nodes
    task = asyncio.create_task(tree.decode(tree.root, Sample(n=2), **LONG))
    while len(tree.nodes) == len(before):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while tree.nodes != before:
        await asyncio.sleep(0)
    stream = tree.stream(tree.root, **LONG)
    event = await anext(stream)
    await stream.aclose()
    node = tree.node(event.node)
    await tree.wait(node)
    assert node.finish_reason == "cancelled"
    started = await tree.start(tree.root, Sample(n=2), **LONG)
    waiting = asyncio.create_task(tree.wait(started))
    await tree.stop(started[0])
    await tree.prune(started[1])
    await waiting
