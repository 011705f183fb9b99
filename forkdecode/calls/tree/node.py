"""One node of a tree, as far as its caller knows it."""

from __future__ import annotations

from collections.abc import Iterator

from forkdecode.errors import ForkdecodeError
from forkdecode.results import TokenLogprob
from forkdecode.tree_types import NodeDelta, NodeInfo, NodeReason, NodeState, NodeStopped


class Node:
    """A path of tokens: its parent's path followed by its own tokens. Read its attributes, and pass it to a
    tree's methods.

    The path grows while the node is generated, and then never changes. A character belongs to the text of the
    node whose token completes it.
    """

    __slots__ = (
        "__weakref__",
        "_before_ids",
        "_before_text",
        "_children",
        "_cumulative_logprob",
        "_depth",
        "_error",
        "_finish_reason",
        "_id",
        "_item",
        "_lineage",
        "_logprobs",
        "_next_seed",
        "_parent",
        "_pruned",
        "_session",
        "_start",
        "_state",
        "_texts",
        "_token_ids",
    )

    def __init__(self, info: NodeInfo, parent: Node | None, session: str = "") -> None:
        """session: the name of the one that it is of."""
        self._session = session
        self._id = info.node
        self._parent = parent
        self._children: list[Node] = []
        self._depth = info.depth
        self._state = info.state
        self._start = info.start
        self._token_ids = list(info.token_ids)
        self._texts = [info.text]
        self._logprobs: list[TokenLogprob] | None = None
        self._lineage = info.lineage
        self._next_seed = info.next_seed
        self._finish_reason = info.finish_reason
        self._cumulative_logprob = info.cumulative_logprob
        self._before_ids, self._before_text = info.before_ids, info.before_text
        self._item = info.item
        self._error: ForkdecodeError | None = None
        self._pruned = False

    def __repr__(self) -> str:
        return f"<Node {self.id} {'pruned' if self.is_pruned else self.state} {self.text!r:.60}>"

    @property
    def id(self) -> int:
        """Its number in the tree."""
        return self._id

    @property
    def parent(self) -> Node | None:
        """The parent; None for a root, or if the parent was already gone when the node became known."""
        return self._parent

    @property
    def children(self) -> tuple[Node, ...]:
        """The children that are not pruned."""
        return tuple(self._children)

    @property
    def depth(self) -> int:
        """Number of edges from the root."""
        return self._depth

    @property
    def state(self) -> NodeState:
        """ "generating", "stopped" or "finished"."""
        return self._state

    @property
    def is_generating(self) -> bool:
        """Whether its path is still growing."""
        return self._state == "generating"

    @property
    def is_finished(self) -> bool:
        """Whether nothing more can be decoded from it."""
        return self._state == "finished"

    @property
    def is_pruned(self) -> bool:
        """Whether it has been pruned from the tree; what was known of it can still be read."""
        return self._pruned

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Its own tokens, including the EOS or stop token."""
        return tuple(self._token_ids)

    @property
    def text(self) -> str:
        """Its own text, without EOS and stop texts; step delimiters stay."""
        if len(self._texts) > 1:
            self._texts[:] = ["".join(self._texts)]
        return self._texts[0]

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...] | None:
        """One record for each of its own tokens, if the decode asked for them."""
        return None if self._logprobs is None else tuple(self._logprobs)

    @property
    def cumulative_logprob(self) -> float:
        """Sum of its generated tokens' log-probabilities; final once it has stopped. Given tokens count 0."""
        return self._cumulative_logprob

    @property
    def path_logprob(self) -> float:
        """Sum of cumulative_logprob along the path."""
        return sum(node.cumulative_logprob for node in self.path())

    @property
    def finish_reason(self) -> NodeReason | None:
        """Why its generation stopped; None while it continues, and for nodes that were not generated."""
        return self._finish_reason

    @property
    def error(self) -> ForkdecodeError | None:
        """The error that ended its generation, if it failed."""
        return self._error

    @property
    def item(self) -> str | None:
        """The key of the catalogue item that its path has completed, if it was decoded under a catalogue."""
        return self._item

    @property
    def lineage(self) -> int:
        """The value its random draws are derived from."""
        return self._lineage

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the path, counting those of the prompt."""
        return self._start + len(self._token_ids)

    def path(self) -> tuple[Node, ...]:
        """The nodes from the root to this one."""
        return tuple(reversed(list(self._upwards())))

    @property
    def path_token_ids(self) -> tuple[int, ...]:
        """The token ids of the whole path, including the prompt's."""
        path = self.path()
        own = (token for node in path for token in node._token_ids)
        return (*path[0]._before_ids, *own)

    @property
    def path_text(self) -> str:
        """The text of the whole path, including the prompt's."""
        path = self.path()
        return path[0]._before_text + "".join(node.text for node in path)

    @property
    def completion(self) -> str:
        """The text of the path after the root."""
        return "".join(node.text for node in self.path() if node.parent is not None or node._start)

    def _upwards(self) -> Iterator[Node]:
        node: Node | None = self
        while node is not None:
            yield node
            node = node._parent

    # -- for the view that hears of it ------------------------------------------------------------

    def _grow(self, delta: NodeDelta) -> None:
        self._token_ids.extend(delta.token_ids)
        if delta.text:
            self._texts.append(delta.text)
        if delta.logprobs is not None:
            self._logprobs = [] if self._logprobs is None else self._logprobs
            self._logprobs.extend(delta.logprobs)

    def _stop(self, stopped: NodeStopped) -> None:
        self._cumulative_logprob = stopped.cumulative_logprob
        self._error = stopped.error
        self._item = stopped.item
        self._finish_reason = stopped.finish_reason
        self._state = stopped.state
