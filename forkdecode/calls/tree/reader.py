"""Who receives an AsyncTree's events, and wakes those who wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from forkdecode.calls.tree import verbs
from forkdecode.calls.tree.link import AsyncTreeLink
from forkdecode.calls.tree.view import Reply, TreeView
from forkdecode.errors import EngineClosedError, ForkdecodeError


class Reader:
    """Receives a session's events and wakes those who wait for something to become true. It knows nothing
    of the tree, so that a tree that is dropped is gone."""

    def __init__(self, link: AsyncTreeLink, view: TreeView) -> None:
        self._link = link
        self._view = view
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self.loop = asyncio.get_running_loop()
        self._dropping: set[asyncio.Task[None]] = set()
        self._task = self.loop.create_task(self._read())

    async def until(self, done: Callable[[], bool]) -> None:
        """Raises what ended the session before `done` was true."""
        if done():
            return
        if self._view.error is not None:
            raise self._view.error
        future: asyncio.Future[None] = self.loop.create_future()
        self._waiting[future] = done
        try:
            await future
        finally:
            del self._waiting[future]

    def drop(self, reply: Reply) -> None:
        """Whoever sent the command will never learn of what it generates: that is pruned."""
        task = self.loop.create_task(self._drop(reply))
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)

    async def _drop(self, reply: Reply) -> None:
        with contextlib.suppress(ForkdecodeError):
            await self.until(lambda: reply.answered)
            if nodes := verbs.running(reply):
                number, _ = self._view.expect()
                await self._link.send(verbs.prune(nodes, True).command(number))

    def stop(self) -> None:
        """No event is received any more; who waits is told."""
        self._task.cancel()
        self._fail(EngineClosedError("the tree was closed"))

    async def _read(self) -> None:
        while True:
            try:
                self._view.apply(await self._link.receive())
            except ForkdecodeError as error:
                return self._fail(error)
            for future, done in self._waiting.items():
                if not future.done() and done():
                    future.set_result(None)

    def _fail(self, error: ForkdecodeError) -> None:
        if self._view.error is None:
            self._view.fail(error)
        for future, done in self._waiting.items():
            if future.done():
                continue
            if done():
                future.set_result(None)
            else:
                future.set_exception(self._view.error or error)
