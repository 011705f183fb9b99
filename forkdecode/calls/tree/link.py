"""What carries a tree session's commands and events: a queue in this process, or a stream to a server."""

from __future__ import annotations

from typing import Protocol

from forkdecode.tree_types import Command, TreeEvent


class TreeLink(Protocol):
    """All methods may be called from any thread; receive() by one at a time."""

    def send(self, command: Command) -> None:
        """Hands a command over, in order; its answer is an event. Raises the ForkdecodeError that ended
        the session."""

    def receive(self, timeout: float | None = None) -> TreeEvent:
        """Waits for the next event; the first is TreeOpened. Raises TimeoutError after `timeout` seconds,
        and the ForkdecodeError that ended the session when it has no more events."""

    def close(self) -> None:
        """Ends the session: what runs is cancelled, all KV released; whoever waits gets
        EngineClosedError. Idempotent."""


class AsyncTreeLink(Protocol):
    """TreeLink for one event loop. Cancelling receive() loses no event."""

    async def send(self, command: Command) -> None:
        """TreeLink.send."""

    async def receive(self) -> TreeEvent:
        """TreeLink.receive."""

    async def close(self) -> None:
        """TreeLink.close."""

    def abandon(self) -> None:
        """close() for who cannot wait, from any thread: the tree has been dropped."""
