"""The events of the children of one decode, as they happen."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from forkdecode.calls.tree.node import Node
from forkdecode.calls.tree.view import Reply
from forkdecode.tree_types import NodeDelta, NodeStopped


class NodeStream:
    """Iterate over it for NodeDelta and NodeStopped. Closing it, leaving its `with`, or dropping it stops
    children that are still being generated where they are."""

    def __init__(self, reply: Reply, wait: Callable[[Callable[[], bool]], object], close: Callable[[], None]):
        """wait: until something is true. close: stops what is generated; may be called in any thread."""
        assert reply.events is not None, "this reply streams"
        self._events = reply.events
        self._reply = reply
        self._wait = wait
        self._close = close

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The children."""
        return tuple(self._reply.nodes)

    def __iter__(self) -> NodeStream:
        return self

    def __next__(self) -> NodeDelta | NodeStopped:
        if not self._events:
            self._wait(lambda: bool(self._events) or self._reply.ended)
        if self._events:
            return self._events.popleft()
        if self._reply.error is not None:
            raise self._reply.error
        raise StopIteration

    def close(self) -> None:
        """Idempotent."""
        if not self._reply.ended:
            self._close()

    def __enter__(self) -> NodeStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
