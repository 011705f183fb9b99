"""A tree's verbs: each a command and what its caller gets of the reply. Shared by Tree and AsyncTree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from forkdecode.calls.tree.node import Node
from forkdecode.calls.tree.view import Reply
from forkdecode.checks import check_items, shown
from forkdecode.errors import invalid
from forkdecode.results import ScoredContinuation
from forkdecode.tree_types import (
    MAX_COUNTED_SEED,
    Command,
    Decode,
    Export,
    Extend,
    Finish,
    Fork,
    Import,
    NodePath,
    Pin,
    Prune,
    ScoreNodes,
    Stop,
    Truncate,
    Unpin,
)
from forkdecode.types import Greedy, Sample, make_options

T = TypeVar("T")
Nodes: TypeAlias = Node | Sequence[Node]
"""One node or several; of none at all nothing is done."""


@dataclass(frozen=True, slots=True)
class Verb(Generic[T]):
    """command: made of an id. read: what the caller gets, once the reply has ended or, with at_once,
    been accepted. stream: whether the nodes' events are wanted one by one. nothing: it is about no node at
    all, so there is nothing to be sent, and `read` takes Reply.of_nothing(). about: the nodes that it was
    given."""

    command: Callable[[int], Command]
    read: Callable[[Reply], T]
    at_once: bool = False
    stream: bool = False
    nothing: bool = False
    about: Sequence[Node] = ()

    def ready(self, reply: Reply) -> bool:
        """Whether `read` may be called."""
        return reply.answered if self.at_once else reply.ended


def decode(
    nodes: Nodes,
    strategy: Any,
    step: Any,
    seed: Any,
    options: Any,
    given: Mapping[str, Any],
    *,
    at_once: bool,
    stream: bool = False,
) -> Verb[list[Node]]:
    """Each node's draws get the next seed of its own, unless the caller names one."""
    chosen = some(nodes)
    if options is not None and given:
        raise invalid(min(given), "stands beside an Options object", "either options= or keywords")
    made = make_options(given) if options is None else options
    strategy = Greedy() if strategy is None else strategy

    def command(number: int) -> Command:
        if seed is None and isinstance(strategy, Sample) and strategy.seed is None:
            seeds: tuple[int, ...] | None = tuple(_take_seeds(node, 1) for node in chosen)
        else:
            seeds = None if seed is None else (seed,) * len(chosen)
            _skip_seed(chosen, strategy.seed if seed is None and isinstance(strategy, Sample) else seed)
        return Decode(number, _ids(chosen), strategy, made, step, seeds)

    return Verb(
        command,
        lambda reply: reply.nodes,
        at_once=at_once,
        stream=stream,
        nothing=not chosen,
        about=chosen,
    )


def fork(node: Node, n: Any, seeds: Any) -> Verb[list[Node]]:
    """By default the forks get the next seeds of the node."""
    chosen = _one(node)

    def command(number: int) -> Command:
        given = seeds
        if given is None and isinstance(n, int) and n > 0:
            first = _take_seeds(chosen, n)
            given = range(first, first + n)
        return Fork(number, chosen.id, n, given)

    return _made(command, about=(chosen,))


def extend(node: Node, continuation: Any) -> Verb[Node]:
    return _first(node, lambda number, one: Extend(number, one, continuation))


def truncate(node: Node, num_tokens: Any) -> Verb[Node]:
    return _first(node, lambda number, one: Truncate(number, one, num_tokens))


def score(
    nodes: Nodes, continuations: Any, top_logprobs: Any, priority: Any
) -> Verb[list[tuple[ScoredContinuation, ...]]]:
    """The scores of each node, in the order of `nodes`."""
    chosen = some(nodes)
    ids = _ids(chosen)
    return Verb(
        lambda number: ScoreNodes(number, ids, continuations, top_logprobs, priority),
        lambda reply: [reply.scored[node] for node in ids],
        nothing=not ids,
        about=chosen,
    )


def prune(nodes: Nodes, subtree: Any) -> Verb[None]:
    return _quiet(nodes, lambda number, ids: Prune(number, ids, subtree))


def pin(nodes: Nodes, ttl: Any) -> Verb[None]:
    return _quiet(nodes, lambda number, ids: Pin(number, ids, ttl))


def unpin(nodes: Nodes) -> Verb[None]:
    return _quiet(nodes, Unpin)


def stop(nodes: Nodes) -> Verb[None]:
    return _quiet(nodes, Stop)


def finish(nodes: Nodes) -> Verb[None]:
    return _quiet(nodes, Finish)


def export(nodes: Nodes) -> Verb[list[NodePath]]:
    chosen = some(nodes)
    ids = _ids(chosen)
    return Verb(
        lambda number: Export(number, ids), lambda reply: list(reply.paths), nothing=not ids, about=chosen
    )


def import_(paths: Sequence[NodePath], parents: tuple[tuple[int, int], ...]) -> Verb[list[Node]]:
    return _made(lambda number: Import(number, tuple(paths), parents), nothing=not paths)


def _made(
    command: Callable[[int], Command], *, nothing: bool = False, about: Sequence[Node] = ()
) -> Verb[list[Node]]:
    return Verb(command, lambda reply: reply.nodes, at_once=True, nothing=nothing, about=about)


def _first(node: object, command: Callable[[int, int], Command]) -> Verb[Node]:
    """command: made of an id and the node's number."""
    one = _one(node)
    return Verb(
        lambda number: command(number, one.id), lambda reply: reply.nodes[0], at_once=True, about=(one,)
    )


def _quiet(nodes: Nodes, command: Callable[[int, tuple[int, ...]], Command]) -> Verb[None]:
    """command: made of an id and the nodes' numbers."""
    chosen = some(nodes)
    ids = _ids(chosen)
    return Verb(lambda number: command(number, ids), lambda reply: None, nothing=not ids, about=chosen)


def check_own(nodes: Iterable[Node], session: str) -> None:
    """Raises InvalidRequestError for a node of another tree: by its number it would be one of this."""
    for node in nodes:
        if node._session != session:
            raise invalid("nodes", f"{node!r} is of another tree", "Nodes of this tree")


def running(reply: Reply) -> list[Node]:
    """The nodes of a command that are still being generated."""
    return [node for node in reply.nodes if node.is_generating and not node.is_pruned]


def _one(node: object) -> Node:
    if not isinstance(node, Node):
        raise invalid("node", f"{shown(node)} is not a node", "a Node of this tree")
    return node


def some(nodes: object) -> list[Node]:
    """One node or several as a list. Raises InvalidRequestError for what is none."""
    items = [nodes] if isinstance(nodes, Node) else check_items("nodes", nodes, "nodes")
    for item in items:
        if not isinstance(item, Node):
            raise invalid("nodes", f"{shown(item)} is not a node", "Nodes of this tree")
    return [item for item in items if isinstance(item, Node)]


def _ids(nodes: Iterable[Node]) -> tuple[int, ...]:
    return tuple(node.id for node in nodes)


def _take_seeds(node: Node, count: int) -> int:
    """The first of `count` seeds that no draw from the node and no fork of it has had yet."""
    first = node._next_seed
    node._next_seed += count
    return first


def _skip_seed(nodes: Iterable[Node], seed: object) -> None:
    """A seed that the caller names is not given again by itself."""
    if isinstance(seed, int) and 0 <= seed < MAX_COUNTED_SEED:
        for node in nodes:
            node._next_seed = max(node._next_seed, seed + 1)
