"""What a verb that does not wait tells of a command that has ended already."""

from __future__ import annotations

import asyncio
from typing import Any

from forkdecode.calls.tree.asynchronous import AsyncTree
from forkdecode.calls.tree.reader import Reader
from forkdecode.calls.tree.verbs import Verb
from forkdecode.calls.tree.view import TreeView
from forkdecode.errors import NoLegalTokenError
from forkdecode.tree_types import Accepted, Command, Done, Stop, TreeEvent, TreeOpened


class Link:
    """Accepts each command, and says in the same moment that it has failed."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[TreeEvent] = asyncio.Queue()

    async def receive(self) -> TreeEvent:
        return await self.events.get()

    async def send(self, command: Command) -> None:
        self.events.put_nowait(Accepted(command.command_id, ()))
        self.events.put_nowait(Done(command.command_id, (), NoLegalTokenError("no legal token")))

    def abandon(self) -> None:
        """Nothing is held."""


def test_start_gives_children_though_their_decode_has_ended_with_an_error() -> None:
    async def run() -> list[Any]:
        link, view = Link(), TreeView()
        link.events.put_nowait(TreeOpened("t", "m", 0, ()))
        reader = Reader(link, view)  # type: ignore[arg-type]
        await reader.until(lambda: view.opened is not None)
        tree = AsyncTree(link, view, reader)  # type: ignore[arg-type]
        verb = Verb(lambda number: Stop(number, (1,)), lambda reply: reply.nodes, at_once=True)
        try:
            return await tree._run(verb)
        finally:
            reader.stop()

    assert asyncio.run(run()) == []
