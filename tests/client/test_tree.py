"""Tree sessions by a server are those in process: same nodes, scores, errors; and what only a client does."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from forkdecode import LLM, AsyncClient, Client, Greedy, NodeDelta, NodePath, Sample, TreeLimits
from forkdecode.calls.picture import Picture
from forkdecode.calls.tree import AsyncTree, Node, Tree
from forkdecode.constraint_types import FromCatalogue, Regex
from forkdecode.errors import (
    CancelledError,
    CapacityError,
    DeadlineError,
    EngineClosedError,
    ForkdecodeError,
    InvalidRequestError,
    UnavailableError,
)
from forkdecode.tree_types import Fork
from tests.client.scripted import fails, scripted
from tests.server.puppet import Puppet
from tests.server.servers import Running, running_server

PROMPT = "hello you"
WORDS = Regex("([ab]{2} ){4}c")
MANY = Regex("([abc]{3}[xyz])*")


def told(node: Node) -> tuple[Any, ...]:
    """All that there is to know of a node."""
    parent = None if node.parent is None else node.parent.id
    ends = (node.state, node.finish_reason, node.cumulative_logprob, node.logprobs)
    path = (node.path_token_ids, node.path_text, node.completion)
    return (node.id, parent, node.depth, node.token_ids, node.text, node.lineage, *ends, *path)


def script(tree: Tree) -> list[Any]:
    """Every verb, and what it gives."""
    found: list[Any] = [tree.seed, told(tree.root)]
    first = tree.decode(tree.root, Sample(3, temperature=1.5), max_tokens=6, logprobs=2)
    second = tree.decode(first, Greedy(), max_tokens=4, stop=["z"], step="e", repetition_penalty=1.2)
    again = tree.decode(tree.root, Sample(2), max_tokens=3)
    given = tree.extend(first[0], " ab")
    cut = tree.truncate(second[0], tree.root.num_tokens + 3)
    twins = tree.fork(given, 2)
    drawn = tree.decode(twins, Sample(), seed=7, max_tokens=5)
    events = list(tree.stream(cut, Sample(2), max_tokens=4))
    assert sum(len(e.token_ids) for e in events if isinstance(e, NodeDelta)) <= 8
    held = tree.decode(twins[0], Sample(2), max_tokens=3, constraint=WORDS)
    more = tree.decode(held, Sample(), max_tokens=20, constraint=WORDS)
    assert all(re.fullmatch(WORDS.pattern, held[i].text + more[i].text) for i in range(2))
    found += map(told, [*first, *second, *again, given, cut, *twins, *drawn, *held, *more])
    found.append(tree.score([*first, given], ["ab", (3, 4)], top_logprobs=2))
    found.append(tree.score(first[1]))
    tree.pin(first[2], 10.0)
    tree.unpin(first[2])
    tree.prune(first[1])
    tree.finish(drawn[0])
    found.append(tree.export([tree.root, first[0], given, twins[0], held[0]]))
    found += map(told, tree.nodes)
    found += map(told, tree.import_(found[-1 - len(tree.nodes)]))
    return found


async def async_script(tree: AsyncTree) -> list[Any]:
    """A shorter one for event loops."""
    first = await tree.decode(tree.root, Sample(3, temperature=1.5), max_tokens=6)
    second = await asyncio.gather(*(tree.decode(node, Sample(2), max_tokens=4) for node in first))
    given = await tree.extend(first[0], " ab")
    scores = await tree.score(first, ["ab"])
    events = [event async for event in tree.stream(given, Sample(2), max_tokens=4)]
    await tree.prune(first[1])
    flat = [told(node)[3:] for node in (*first, *(n for pair in second for n in pair), given)]
    return [flat, scores, len(events) > 0, await tree.export(tree.root)]


@pytest.fixture
def tree(client: Client) -> Iterator[Tree]:
    with client.tree(PROMPT, seed=5) as tree:
        yield tree


def await_no_trees(server: Running) -> None:
    """Until the server has none."""
    for _ in range(10_000):
        if not server.server.trees.count:
            return
        server.begin(asyncio.sleep(0)).result()
    raise AssertionError(f"{server.server.trees.count} sessions are left")


def lose(tree: Tree) -> None:
    """The connection breaks."""
    link: Any = tree._link
    link._loop.post(link._call._call.cancel)


def any_change(draw: random.Random, tree: Tree) -> Callable[[Tree], Any]:
    """A command that can be given to this tree, and to one that is the same."""
    number = draw.choice([node.id for node in tree.nodes if not node.is_finished])
    count, text = draw.randint(1, 3), draw.choice(["a", "bc", " you"])
    base, size = tree.root.num_tokens, tree.node(number).num_tokens
    length = draw.randint(base, size)
    changes: list[Callable[[Tree], Any]] = [
        lambda tree: tree.decode(tree.node(number), Sample(count, temperature=2.0), max_tokens=count),
        lambda tree: tree.decode(tree.node(number), max_tokens=count, logprobs=1),
        lambda tree: tree.decode(tree.node(number), Sample(count), max_tokens=count, constraint=MANY),
        lambda tree: tree.extend(tree.node(number), text),
        lambda tree: tree.fork(tree.node(number), count),
        lambda tree: tree.truncate(tree.node(number), length),
        lambda tree: tree.import_(tree.export(tree.node(number))),
    ]
    if number:
        changes += [
            lambda tree: tree.prune(tree.node(number), subtree=count > 1),
            lambda tree: tree.finish(tree.node(number)),
        ]
    return draw.choice(changes)


def refusal(change: Callable[[Tree], Any], tree: Tree) -> str | None:
    """Gives a command; what refuses it, if it is refused."""
    try:
        change(tree)
    except InvalidRequestError as error:
        return str(error)
    return None


def kept(node: Node) -> tuple[Any, ...]:
    """What of a node outlives its connection."""
    ends = (node.state, node.finish_reason, node.cumulative_logprob)
    path = (node.path_token_ids, node.path_text)
    return (node.id, node.depth, node.token_ids, node.text, node.lineage, *ends, *path)


class TestTheSameAsInProcess:
    def test_a_script(self, llm: LLM, client: Client) -> None:
        with llm.tree(PROMPT, seed=5) as here:
            expected = script(here)
        with client.tree(PROMPT, seed=5) as there:
            assert script(there) == expected

    def test_a_script_of_an_event_loop(self, llm: LLM, server: Running) -> None:
        async def remote() -> list[Any]:
            async with AsyncClient(server.address) as client, await client.tree(PROMPT, seed=5) as tree:
                return await async_script(tree)

        async def local() -> list[Any]:
            from forkdecode.tree.local import AsyncLocalLink
            from forkdecode.tree_types import OpenTree

            link = await AsyncLocalLink.open(llm._session.opener(OpenTree(PROMPT, seed=5), None))
            async with await AsyncTree.create(link) as tree:
                return await async_script(tree)

        assert asyncio.run(remote()) == asyncio.run(local())

    @pytest.mark.parametrize(
        "verb",
        [
            lambda tree: tree.decode(tree.root, max_tokens=0),
            lambda tree: tree.decode(tree.root, Sample(), max_tokens=100_000),
            lambda tree: tree.decode([tree.root, tree.root]),
            lambda tree: tree.decode(tree.root, allowed_token_ids=(10**6,)),
            lambda tree: tree.decode(tree.root, constraint=Regex("(")),
            lambda tree: tree.decode(tree.root, constraint=FromCatalogue("nobody knows")),
            lambda tree: tree.decode(tree.root, constraint="(a)"),
            lambda tree: tree.decode(tree.root, constraint=Regex("a"), ignore_eos=True),
            lambda tree: tree.decode(tree.root, constraint=Regex("a"), forced_prefix="b"),
            lambda tree: tree.fork(tree.root, 0),
            lambda tree: tree.fork(tree.root, 100),
            lambda tree: tree.extend(tree.root, ""),
            lambda tree: tree.extend(tree.root, (10**6,)),
            lambda tree: tree.truncate(tree.root, 10_000),
            lambda tree: tree.score(tree.root, [""]),
            lambda tree: tree.score(tree.root, [(10**6,)]),
            lambda tree: tree.pin(tree.root, -1.0),
            lambda tree: tree.import_(NodePath("m", 0, None, (10**6,), 0, "", 3)),
        ],
    )
    def test_refused(self, llm: LLM, client: Client, verb: Callable[[Tree], Any]) -> None:
        limits = TreeLimits(max_nodes=20)
        told: list[Any] = []
        for opener in (llm, client):
            with opener.tree(PROMPT, limits=limits) as tree:
                with pytest.raises(ForkdecodeError) as caught:
                    verb(tree)
                error = caught.value
                told.append((type(error), str(error), error.field, error.limit))
                assert len(tree.decode(tree.root, max_tokens=2)) == 1
        assert told[0] == told[1]

    def test_a_function_stays_here(self, client: Client, tree: Tree) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            tree.decode(tree.root, prefix_allowed_tokens_fn=lambda batch_id, path: [1])
        assert caught.value.field == "prefix_allowed_tokens_fn"
        assert len(tree.decode(tree.root, max_tokens=2)) == 1

    @pytest.mark.parametrize("prompt", ["", (), (10**6,), [{"role": "user"}], b"x"])
    def test_refused_prompts(self, llm: LLM, client: Client, prompt: Any) -> None:
        for opener in (llm, client):
            with pytest.raises(InvalidRequestError) as caught:
                opener.tree(prompt)
            assert caught.value.field == "prompt"

    def test_exported_here_imported_there(self, llm: LLM, client: Client) -> None:
        def grown(tree: Tree, node: Node) -> list[Any]:
            return [(n.token_ids, n.text) for n in tree.decode(node, Sample(3), max_tokens=5)]

        for opener, other in ((llm, client), (client, llm)):
            with opener.tree(PROMPT, seed=5) as tree, other.tree() as copy:
                [child] = tree.decode(tree.root, Sample(), max_tokens=4)
                twins = copy.import_(tree.export([tree.root, child]))
                assert twins[1].parent is twins[0]
                assert grown(copy, twins[1]) == grown(tree, child)


class TestSessions:
    def test_resumed_after_a_lost_connection(self, client: Client, tree: Tree) -> None:
        nodes = tree.decode(tree.root, Sample(2), max_tokens=4)
        lose(tree)
        with pytest.raises(ForkdecodeError):
            tree.wait(tree.start(tree.root))
        with client.resume_tree(tree.name, tree.secret) as again:
            assert [node.text for node in again.nodes] == [node.text for node in (tree.root, *nodes)]
            again.extend(nodes[1], " d")  # what was known of it before is of the same session
            [child] = again.decode(again.node(1), max_tokens=2)
            assert child.path_text.startswith(nodes[0].path_text)
        with pytest.raises(InvalidRequestError) as caught:
            client.resume_tree(tree.name, tree.secret)
        assert caught.value.field == "tree"

    @pytest.mark.parametrize("number", range(6))
    def test_lost_and_resumed_at_any_point(self, llm: LLM, client: Client, number: int) -> None:
        draw = random.Random(number)
        with llm.tree(PROMPT, seed=number) as here, ExitStack() as stack:
            there = stack.enter_context(client.tree(PROMPT, seed=number))
            for _ in range(30):
                change = any_change(draw, here)
                assert refusal(change, there) == refusal(change, here)
                if draw.random() < 0.3:
                    lose(there)
                    there = stack.enter_context(client.resume_tree(there.name, there.secret))
            assert list(map(kept, there.nodes)) == list(map(kept, here.nodes))

    def test_by_another_client(self, server: Running, llm: LLM) -> None:
        async def taken_over(name: str, secret: str) -> str:
            async with AsyncClient(server.address) as other:
                tree = await other.resume_tree(name, secret)
                [node] = await tree.decode(tree.root, max_tokens=3)
                return node.text

        with Client(server.address) as client, client.tree(PROMPT) as tree:
            assert asyncio.run(taken_over(tree.name, tree.secret))
            with pytest.raises(ForkdecodeError):
                tree.wait(tree.start(tree.root))
        await_no_trees(server)

    def test_closing_frees_all(self, server: Running, client: Client, llm: LLM) -> None:
        tree = client.tree(PROMPT)
        tree.start(tree.root, Sample(4), max_tokens=400, ignore_eos=True)
        tree.close()
        tree.close()
        await_no_trees(server)
        with pytest.raises(EngineClosedError, match="the tree was closed"):
            tree.fork(tree.root)

    def test_a_dropped_tree_is_closed(self, server: Running, client: Client) -> None:
        tree = client.tree(PROMPT)
        tree.decode(tree.root, max_tokens=2)
        del tree
        gc.collect()
        await_no_trees(server)

    def test_a_closed_client_closes_its_trees(self, server: Running, llm: LLM) -> None:
        client = Client(server.address)
        trees = [client.tree(PROMPT) for _ in range(3)]
        client.close()
        await_no_trees(server)
        for tree in trees:
            with pytest.raises(EngineClosedError):
                tree.fork(tree.root)

    def test_an_event_loop_that_ends_without_a_word(self, server: Running, llm: LLM) -> None:
        async def forgetful() -> None:
            client = AsyncClient(server.address)
            tree = await client.tree(PROMPT)
            await tree.decode(tree.root, max_tokens=2)
            await client.close()

        asyncio.run(forgetful())
        await_no_trees(server)

    def test_a_command_too_long_to_be_sent_is_refused_here(self, client: Client, tree: Tree) -> None:
        path = NodePath("m", 0, None, (2**31 - 1,) * 1_200_000, 0, "", 3)
        with pytest.raises(InvalidRequestError, match=r"import_nodes: the command has .* bytes"):
            tree.import_(path)
        assert tree.fork(tree.root)

    def test_limits(self, client: Client) -> None:
        with client.tree(PROMPT, limits=TreeLimits(max_nodes=3)) as tree:
            assert tree.limits.max_nodes == 3
            with pytest.raises(CapacityError) as caught:
                tree.fork(tree.root, 3)
            assert caught.value.field == "max_nodes"
        wrong: Any = {"max_nodes": 3}
        with pytest.raises(InvalidRequestError, match=r"^limits: "):
            client.tree(PROMPT, limits=wrong)

    def test_why_it_ended_is_told_even_as_commands_are_sent(self) -> None:
        """gRPC's own write() makes INTERNAL of a call that ends meanwhile, whatever its status."""
        error = CapacityError("max_nodes: too many", field="max_nodes", limit="at most 9")
        with scripted(fails(error)) as script, Client(script.address, retries=0) as client:
            for _ in range(20):
                tree = client.tree()
                for number in range(100):
                    tree._link.send(Fork(number, 0))
                with pytest.raises(CapacityError) as caught:
                    tree.import_(NodePath("m", 0, None, (1,), 0, "", 3))
                assert str(caught.value) == str(error)

    @pytest.mark.parametrize("error", [CancelledError("idle"), CapacityError("the reader is too slow")])
    def test_a_tree_that_was_ended_is_saved_as_it_was(self, error: ForkdecodeError, tmp_path: Path) -> None:
        with scripted(fails(error)) as script, Client(script.address, retries=0) as client:
            tree = client.tree()
            node = NodePath("m", 0, None, (1,), 0, "", 3)
            with pytest.raises(type(error)):
                tree.import_(node)
            tree.save(tmp_path / "ended.fd")

            async def check() -> None:
                async with AsyncClient(script.address, retries=0) as other:
                    tree = await other.tree()
                    with pytest.raises(type(error)):
                        await tree.import_(node)
                    await tree.save(tmp_path / "too.fd")

            asyncio.run(check())
        for name in ("ended", "too"):
            assert Picture.of_json(json.loads((tmp_path / f"{name}.fd").read_text()))

    def test_the_clients_timeout_is_that_of_each_method(self) -> None:
        puppet = Puppet()  # generates nothing
        with (
            running_server(puppet.backend()) as running,
            Client(running.address, timeout=600) as client,
            client.tree("hello") as tree,
        ):
            assert tree.timeout == 600
            nodes = tree.start(tree.root)
            tree.timeout = 0.05
            stream = tree.stream
            late: list[Callable[[], object]] = [
                lambda: tree.decode(tree.root), lambda: tree.score(tree.root, ["a"]),
                lambda: tree.wait(nodes), lambda: list(stream(tree.root)),
            ]  # fmt: skip
            for method in late:
                with pytest.raises(DeadlineError, match=r"timeout: not done after 0.05 s"):
                    method()
            with pytest.raises(TimeoutError, match=r"not done after 0.01 s"):
                tree.wait(nodes, timeout=0.01)
            with pytest.raises(InvalidRequestError) as caught:
                tree.timeout = 0
            assert caught.value.field == "timeout"

    def test_the_clients_timeout_in_an_event_loop(self) -> None:
        puppet = Puppet()

        async def work(address: str) -> None:
            async with AsyncClient(address, timeout=600) as client, await client.tree("hello") as tree:
                assert tree.timeout == 600
                nodes = await tree.start(tree.root)
                tree.timeout = 0.05
                late: list[Awaitable[object]] = [
                    tree.decode(tree.root), tree.score(tree.root, ["a"]), tree.wait(nodes),
                    anext(tree.stream(tree.root)),
                ]  # fmt: skip
                for method in late:
                    with pytest.raises(DeadlineError, match=r"timeout: not done after 0.05 s"):
                        await method
                await asyncio.to_thread(puppet.await_cancel)  # of what decode() had begun

        with running_server(puppet.backend()) as running:
            asyncio.run(work(running.address))

    def test_a_server_that_is_not_there(self) -> None:
        with Client("127.0.0.1:1", retries=0) as client, pytest.raises(UnavailableError):
            client.tree(PROMPT)
