"""Exports and imports of any size: by as many commands as they need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from forkdecode.calls.tree import verbs
from forkdecode.calls.tree.node import Node
from forkdecode.calls.tree.verbs import Nodes, Verb
from forkdecode.errors import invalid
from forkdecode.tree_types import MAX_EXPORTED_TOKENS, NodePath

_NODES = 4096
"""Of one command."""
_HEAD = 64
"""Bytes of a command besides its records."""


def exports(nodes: Nodes) -> list[Verb[list[NodePath]]]:
    """Commands that export the nodes, in order; one that does nothing for none."""
    parts: list[list[Node]] = [[]]
    left = MAX_EXPORTED_TOKENS
    for node in verbs.some(nodes):
        left -= node.num_tokens
        if parts[-1] and (left < 0 or len(parts[-1]) == _NODES):
            parts.append([])
            left = MAX_EXPORTED_TOKENS - node.num_tokens
        parts[-1].append(node)
    return list(map(verbs.export, parts))


class Importing:
    """An import of records, by commands of at most `max_bytes`. nodes: those made so far; whoever runs the
    commands adds what each of them made before the next is taken."""

    def __init__(self, paths: NodePath | Iterable[NodePath], max_bytes: int | None) -> None:
        """Raises InvalidRequestError for a record that stands twice."""
        self.nodes: list[Node] = []
        self._paths = (paths,) if isinstance(paths, NodePath) else tuple(paths)
        self._max_bytes = max_bytes
        numbers: set[int] = set()
        for path in self._paths:
            if isinstance(path, NodePath):
                if path.node in numbers:
                    raise invalid("paths", f"node {path.node} stands twice", "each node once")
                numbers.add(path.node)

    def verbs(self) -> Iterator[Verb[list[Node]]]:
        """One after another; one that does nothing for no records."""
        done = 0
        for part in self._parts():
            made = {path.node: node.id for path, node in zip(self._paths[:done], self.nodes, strict=True)}
            above = {path.parent for path in part if isinstance(path, NodePath) and path.parent in made}
            yield verbs.import_(part, tuple((name, made[name]) for name in sorted(above)))
            done += len(part)

    def _parts(self) -> Iterator[Sequence[NodePath]]:
        start, weight = 0, _HEAD
        for place, path in enumerate(self._paths):
            more = _most_bytes(path) if isinstance(path, NodePath) else 0
            full = self._max_bytes is not None and weight + more > self._max_bytes
            if place > start and (full or place - start == _NODES):
                yield self._paths[start:place]
                start, weight = place, _HEAD
            weight += more
        yield self._paths[start:]


def _most_bytes(path: NodePath) -> int:
    """At least as many as a record takes when it is sent, with where its parent is."""
    texts = [path.model, path.text, path.item or ""]
    if path.constraint is not None:
        texts += [value for value in asdict(path.constraint).values() if isinstance(value, str)]
    return 5 * len(path.token_ids) + 8 * len(path.logprobs) + 4 * sum(map(len, texts)) + 192
