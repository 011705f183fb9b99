"""A tree session for event loops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TypeVar, Unpack, overload

from forkdecode.calls.timeout import check_timeout
from forkdecode.calls.tree import verbs
from forkdecode.calls.tree.drawing import draw, write_page
from forkdecode.calls.tree.link import AsyncTreeLink
from forkdecode.calls.tree.node import Node
from forkdecode.calls.tree.parts import Importing, exports
from forkdecode.calls.tree.patience import Wait
from forkdecode.calls.tree.reader import Reader
from forkdecode.calls.tree.saved import read_saved, while_open, write_saved
from forkdecode.calls.tree.verbs import Nodes, Verb
from forkdecode.calls.tree.view import Reply, TreeView
from forkdecode.checks import check_float
from forkdecode.errors import ForkdecodeError, invalid
from forkdecode.results import ScoredContinuation
from forkdecode.tree_types import NodeDelta, NodePath, NodeStopped, TreeLimits, TreeOpened
from forkdecode.types import Greedy, OptionKeywords, Options, Sample

T = TypeVar("T")


class AsyncTree:
    """Tree for asyncio: the same arguments, results and errors, for any number of tasks of one event loop.
    Made by AsyncLLM.tree and AsyncClient.tree. Cancelling decode() prunes what it was generating."""

    def __init__(
        self, link: AsyncTreeLink, view: TreeView, reader: Reader, timeout: float | None = None
    ) -> None:
        """Use create()."""
        assert view.opened is not None, "the session's first event is there"
        self._opened: TreeOpened = view.opened
        self._link = link
        self._timeout = timeout
        self._view = view
        self._reader = reader
        self._finalizer = weakref.finalize(self, _abandon, reader, link)

    @classmethod
    async def create(cls, link: AsyncTreeLink, timeout: float | None = None) -> AsyncTree:
        """Waits for the session to be opened. timeout: see there."""
        view = TreeView()
        reader = Reader(link, view)
        try:
            await reader.until(lambda: view.opened is not None)
        except BaseException:
            _abandon(reader, link)
            raise
        return cls(link, view, reader, timeout)

    @property
    def name(self) -> str:
        """The session's name, unique where it runs."""
        return self._opened.tree

    @property
    def model(self) -> str:
        """The name of the model that decodes it."""
        return self._opened.model

    @property
    def secret(self) -> str:
        """Resumes the session on its server, together with the name; "" in process. Keep it secret."""
        return self._opened.secret

    @property
    def limits(self) -> TreeLimits:
        """The limits that apply to the session."""
        return self._opened.limits

    @property
    def max_positions(self) -> int | None:
        """The most tokens that a path can have with the model; None if the server does not report it."""
        return self._opened.max_positions

    @property
    def seed(self) -> int:
        """The same prompt, seed and commands make the same tree."""
        return self._opened.seed

    @property
    def timeout(self) -> float | None:
        """Seconds for each method, None for no limit: at first the client's, and None in process. May be
        set. A method that takes longer raises DeadlineError, a TimeoutError; decode() then prunes what it was
        generating."""
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self._timeout = check_timeout("timeout", seconds)

    @property
    def root(self) -> Node:
        """The node of the prompt, or the first one imported. Raises InvalidRequestError before there is
        one."""
        root = self._view.root or next(iter(self.nodes), None)
        if root is None:
            raise invalid("prompt", "this tree was opened without one", "import_() first")
        return root

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes that are not pruned, by number."""
        return tuple(self._view.nodes.values())

    def node(self, number: int) -> Node:
        """The node with a number. Raises InvalidRequestError."""
        if number not in self._view.nodes:
            raise invalid("node", f"{number!r} is not in this tree", "numbers of live nodes")
        return self._view.nodes[number]

    async def decode(
        self,
        nodes: Nodes,
        strategy: Greedy | Sample | None = None,
        *,
        step: str | Sequence[str] = (),
        seed: int | None = None,
        options: Options | None = None,
        **given: Unpack[OptionKeywords],
    ) -> list[Node]:
        """Tree.decode, awaited."""
        verb = verbs.decode(nodes, strategy, step, seed, options, given, at_once=False)
        return await self._run(verb)

    async def start(
        self,
        nodes: Nodes,
        strategy: Greedy | Sample | None = None,
        *,
        step: str | Sequence[str] = (),
        seed: int | None = None,
        options: Options | None = None,
        **given: Unpack[OptionKeywords],
    ) -> list[Node]:
        """Tree.start, awaited: returns children that are being generated; see wait()."""
        return await self._run(verbs.decode(nodes, strategy, step, seed, options, given, at_once=True))

    async def stream(
        self,
        nodes: Nodes,
        strategy: Greedy | Sample | None = None,
        *,
        step: str | Sequence[str] = (),
        seed: int | None = None,
        options: Options | None = None,
        **given: Unpack[OptionKeywords],
    ) -> AsyncGenerator[NodeDelta | NodeStopped, None]:
        """Tree.stream as an async generator: the command is sent when the first event is requested. Closing
        it stops the children where they are."""
        verb = verbs.decode(nodes, strategy, step, seed, options, given, at_once=True, stream=True)
        wait = Wait(self._timeout)
        reply = await self._send(verb)
        events = reply.events
        assert events is not None, "this reply streams"
        try:
            while True:
                await self._until(wait, lambda: bool(events) or reply.ended)
                while events:
                    yield events.popleft()
                if reply.error is not None:
                    raise reply.error
                if reply.ended:
                    return
        finally:
            if (running := verbs.running(reply)) and self._view.error is None:
                await self._send(verbs.stop(running))

    async def wait(self, nodes: Nodes, timeout: float | None = None) -> None:
        """Tree.wait, awaited."""
        chosen = verbs.some(nodes)
        verbs.check_own(chosen, self.name)
        seconds = self._timeout if timeout is None else max(0.0, check_float("timeout", timeout))
        await self._until(Wait(seconds), lambda: not any(node.is_generating for node in chosen))

    async def fork(self, node: Node, n: int = 1, *, seeds: Sequence[int] | None = None) -> list[Node]:
        """Tree.fork, awaited."""
        return await self._run(verbs.fork(node, n, seeds))

    async def extend(self, node: Node, continuation: str | Sequence[int]) -> Node:
        """Tree.extend, awaited."""
        return await self._run(verbs.extend(node, continuation))

    @overload
    async def score(
        self,
        nodes: Node,
        continuations: Sequence[str | Sequence[int]] = (),
        *,
        top_logprobs: int = 0,
        priority: int = 0,
    ) -> tuple[ScoredContinuation, ...]: ...

    @overload
    async def score(
        self,
        nodes: Sequence[Node],
        continuations: Sequence[str | Sequence[int]] = (),
        *,
        top_logprobs: int = 0,
        priority: int = 0,
    ) -> list[tuple[ScoredContinuation, ...]]: ...

    async def score(
        self,
        nodes: Nodes,
        continuations: Sequence[str | Sequence[int]] = (),
        *,
        top_logprobs: int = 0,
        priority: int = 0,
    ) -> tuple[ScoredContinuation, ...] | list[tuple[ScoredContinuation, ...]]:
        """Tree.score, awaited."""
        scores = await self._run(verbs.score(nodes, continuations, top_logprobs, priority))
        return scores[0] if isinstance(nodes, Node) else scores

    async def prune(self, nodes: Nodes, *, subtree: bool = True) -> None:
        """Tree.prune, awaited."""
        await self._run(verbs.prune(nodes, subtree))

    async def truncate(self, node: Node, num_tokens: int) -> Node:
        """Tree.truncate, awaited."""
        return await self._run(verbs.truncate(node, num_tokens))

    async def pin(self, nodes: Nodes, ttl: float | None = None) -> None:
        """Tree.pin, awaited."""
        await self._run(verbs.pin(nodes, ttl))

    async def unpin(self, nodes: Nodes) -> None:
        """Tree.unpin, awaited."""
        await self._run(verbs.unpin(nodes))

    async def stop(self, nodes: Nodes) -> None:
        """Tree.stop, awaited."""
        await self._run(verbs.stop(nodes))

    async def finish(self, nodes: Nodes) -> None:
        """Tree.finish, awaited."""
        await self._run(verbs.finish(nodes))

    async def export(self, nodes: Nodes) -> list[NodePath]:
        """Tree.export, awaited."""
        return [path for verb in exports(nodes) for path in await self._run(verb)]

    async def import_(self, paths: NodePath | Iterable[NodePath]) -> list[Node]:
        """Tree.import_, awaited."""
        importing = Importing(paths, self._opened.max_command_bytes)
        try:
            for verb in importing.verbs():
                made = await self._run(verb)
                importing.nodes += made
        except BaseException:
            with contextlib.suppress(ForkdecodeError):
                await asyncio.shield(self.prune(importing.nodes, subtree=False))
            raise
        return importing.nodes

    def render(
        self,
        path: str | os.PathLike[str],
        *,
        title: str | None = None,
        scores: Mapping[Node, float] | None = None,
    ) -> None:
        """Tree.render; nothing to await."""
        write_page(path, draw(self._view, title, scores))

    async def save(
        self,
        path: str | os.PathLike[str],
        *,
        title: str | None = None,
        scores: Mapping[Node, float] | None = None,
    ) -> None:
        """Tree.save, awaited."""
        paths: list[NodePath] = []
        with while_open(self._view):
            paths = await self.export([node for node in self.nodes if not node.is_generating])
        picture = draw(self._view, title, scores)
        await asyncio.to_thread(write_saved, path, picture, paths)

    async def load(self, path: str | os.PathLike[str]) -> list[Node]:
        """Tree.load, awaited."""
        return await self.import_(await asyncio.to_thread(read_saved, path))

    async def close(self) -> None:
        """Ends the session and frees everything it holds. Idempotent."""
        if self._finalizer.detach() is not None:
            self._reader.stop()
            await self._link.close()

    async def __aenter__(self) -> AsyncTree:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, verb: Verb[T]) -> T:
        wait = Wait(self._timeout)
        reply = await self._send(verb)
        try:
            await self._until(wait, lambda: verb.ready(reply))
        except BaseException:
            if not reply.ended:  # cancelled, or late
                self._reader.drop(reply)
            raise
        # What fails after it was accepted is the children's, and who waits for those is told.
        if reply.error is not None and not (verb.at_once and reply.accepted):
            raise reply.error
        return verb.read(reply)

    async def _until(self, wait: Wait, done: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(wait.left()):
                await self._reader.until(done)
        except TimeoutError as error:
            raise wait.failure(error) from None

    async def _send(self, verb: Verb[T]) -> Reply:
        if self._view.error is not None:
            raise self._view.error
        if verb.nothing:
            return Reply.of_nothing()
        verbs.check_own(verb.about, self.name)
        number, reply = self._view.expect(stream=verb.stream)
        try:
            await self._link.send(verb.command(number))
        except asyncio.CancelledError:  # it may have been sent
            self._reader.drop(reply)
            raise
        except BaseException:
            self._view.forget(number)
            raise
        return reply


def _abandon(reader: Reader, link: AsyncTreeLink) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has been closed
        reader.loop.call_soon_threadsafe(reader.stop)
    link.abandon()
