"""What a tree has been: when its nodes came, stopped and were pruned, for pictures of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forkdecode.calls.picture import Picture, PictureNode
from forkdecode.calls.tree.node import Node
from forkdecode.results import Usage

MAX_PRUNED = 10_000
"""Pruned nodes that are remembered; the ones pruned first are forgotten first."""


@dataclass(slots=True, eq=False)
class _Seen:
    """born, ended, gone: counted in changes of the tree."""

    node: Node
    born: int
    ended: int | None = None
    gone: int | None = None
    shared: int | None = None
    computed: int | None = None


class TreeHistory:
    """Not thread-safe, like the view that keeps it."""

    def __init__(self, max_pruned: int = MAX_PRUNED) -> None:
        self._seen: dict[int, _Seen] = {}
        self._pruned: dict[int, None] = {}
        self._max_pruned = max_pruned
        self._forgotten = 0
        self._now = 0

    def came(self, nodes: Sequence[Node]) -> None:
        """These are new, all by one command; of a session that is resumed some may be known."""
        if nodes:
            self._now += 1
        for node in nodes:
            ended = None if node.is_generating else self._now
            known = self._seen.get(node.id)
            born = self._now if known is None else known.born
            self._seen[node.id] = _Seen(node, born, ended)

    def stopped(self, node: Node) -> None:
        """It grows no more."""
        seen = self._seen[node.id]
        if seen.ended is None:
            self._now += 1
            seen.ended = self._now

    def pruned(self, nodes: Sequence[Node]) -> None:
        """They are gone, all by one command."""
        self._now += 1
        for node in nodes:
            self._seen[node.id].gone = self._now
            self._pruned[node.id] = None
        while len(self._pruned) > self._max_pruned:
            first = next(iter(self._pruned))
            del self._pruned[first], self._seen[first]
            self._forgotten += 1

    def cost(self, children: Sequence[Node], usages: Sequence[Usage]) -> None:
        """What the requests of a command took, whose children these are, in order. Not told where a
        request was lost: nobody knows then whose usage is whose."""
        if not usages or len(children) % len(usages):
            return
        each = len(children) // len(usages)
        for i, child in enumerate(children):
            usage, seen = usages[i // each], self._seen.get(child.id)
            if seen is not None:
                seen.computed = 0 if i % each else usage.prompt_tokens - usage.cached_tokens
                seen.shared = usage.prompt_tokens - seen.computed

    def picture(self, title: str, scores: Mapping[Node, float], block_size: int | None = None) -> Picture:
        """Of all that is remembered; steps are the changes of the tree. block_size: of its KV."""
        seen = sorted(self._seen.values(), key=lambda one: one.node.id)
        places = {one.node.id: place for place, one in enumerate(seen)}
        steps = _Steps(seen)
        nodes = tuple(
            PictureNode(
                name=str(one.node.id),
                parent=None if one.node.parent is None else places.get(one.node.parent.id),
                kind=_kind(one.node),
                text=one.node.text,
                tokens=len(one.node.token_ids),
                born=steps.place(one.born),
                ended=None if one.ended is None else steps.place(one.ended),
                gone=None if one.gone is None else steps.place(one.gone),
                reason=one.node.finish_reason,
                score=scores.get(one.node),
                logprob=one.node.cumulative_logprob if _kind(one.node) == "generated" else None,
                shared=one.shared,
                computed=one.computed,
                item=one.node.item,
            )
            for one in seen
        )
        notes = f"{self._forgotten} nodes that were pruned long ago are not shown" if self._forgotten else ""
        return Picture(title, steps.labels, nodes, notes, block_size=block_size)


class _Steps:
    """The changes that what is remembered went through, numbered anew."""

    def __init__(self, seen: Sequence[_Seen]) -> None:
        said: dict[int, Counter[str]] = {}
        for one in seen:
            said.setdefault(one.born, Counter())["new"] += 1
            if one.ended is not None and one.ended != one.born:
                said.setdefault(one.ended, Counter())["stopped"] += 1
            if one.gone is not None:
                said.setdefault(one.gone, Counter())["pruned"] += 1
        self._places = {change: place for place, change in enumerate(sorted(said))}
        self.labels = tuple(
            f"change {place + 1} of {len(said)}: "
            + ", ".join(f"{n} {what}" for what, n in said[change].items())
            for change, place in self._places.items()
        )

    def place(self, change: int) -> int:
        return self._places[change]


def _kind(node: Node) -> str:
    if node.finish_reason is not None or node.is_generating:
        return "generated"
    return "prompt" if node.parent is None else "given"
