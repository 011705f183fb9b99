"""Nodes of a picture while a journal is read: they grow, split where paths part, and end."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from forkdecode.calls.picture import PictureNode

Bytes = Callable[[int], bytes]
"""The bytes of a token id."""


@dataclass(slots=True, eq=False)
class Sketch:
    """A stretch of tokens. start: their position in the whole path. grown: the step at which each came.
    gone: when no row went on from it; kept: something that was returned goes through it."""

    name: str
    parent: Sketch | None
    kind: str
    start: int
    born: int
    tokens: list[int] = field(default_factory=list)
    grown: list[int] = field(default_factory=list)
    logprob: float = 0.0
    children: list[Sketch] = field(default_factory=list)
    ended: int | None = None
    gone: int | None = None
    kept: bool = False
    reason: str | None = None
    score: float | None = None
    shared: int | None = None
    computed: int | None = None

    @property
    def end(self) -> int:
        """Position after its last token."""
        return self.start + len(self.tokens)

    def child(self, name: str, kind: str, step: int) -> Sketch:
        """A new one that goes on from its end."""
        made = Sketch(name, self, kind, self.end, step)
        self.children.append(made)
        return made

    def add(self, token: int, step: int, logprob: float = 0.0) -> None:
        self.tokens.append(token)
        self.grown.append(step)
        self.logprob += logprob

    def split(self, at: int) -> Sketch:
        """Keeps its first `at` tokens. What came after becomes a child, which is returned."""
        rest = Sketch(f"{self.name}\u2026", self, self.kind, self.start + at, self.grown[at])
        rest.tokens, self.tokens = self.tokens[at:], self.tokens[:at]
        rest.grown, self.grown = self.grown[at:], self.grown[:at]
        rest.children, self.children = self.children, [rest]
        for child in rest.children:
            child.parent = rest
        rest.ended, self.ended = self.ended, rest.born
        rest.gone, rest.kept, rest.reason, rest.score = self.gone, self.kept, self.reason, self.score
        self.gone, self.reason, self.score = None, None, None
        rest.logprob, self.logprob = self.logprob, 0.0  # of its parts nothing is known
        return rest

    def upwards(self) -> Iterator[Sketch]:
        """Itself, then what it goes on from."""
        at: Sketch | None = self
        while at is not None:
            yield at
            at = at.parent


def grow_to(root: Sketch, tokens: Sequence[int], step: int) -> Sketch:
    """The end of a path of tokens below `root`, whose own are not part of it; what is missing is added."""
    at, place = root, 0
    while place < len(tokens):
        below = next((c for c in at.children if c.tokens and c.tokens[0] == tokens[place]), None)
        if below is None:
            if at is root or at.children:
                at = at.child(f"{at.name}/{len(at.children)}", "generated", step)
            for token in tokens[place:]:
                at.add(token, step)
            return at
        same = 0
        while (
            same < min(len(below.tokens), len(tokens) - place) and below.tokens[same] == tokens[place + same]
        ):
            same += 1
        if same < len(below.tokens):
            below.split(same)
        at, place = below, place + same
    return at


def finished(roots: Sequence[Sketch], bytes_of: Bytes | None) -> tuple[list[Sketch], tuple[PictureNode, ...]]:
    """All nodes, parents first, and what the page shows of them. bytes_of: None shows token ids."""
    order: list[Sketch] = []
    todo = list(reversed(roots))
    while todo:
        node = todo.pop()
        order.append(node)
        todo += reversed(node.children)
    for node in reversed(order):  # what nothing goes on from any more has gone with the last of it
        if node.children and node.gone is None and not node.kept and node.kind == "generated":
            ends = [child.gone for child in node.children]
            if None not in ends:
                node.gone = max(end for end in ends if end is not None)
    places = {id(node): place for place, node in enumerate(order)}
    return order, tuple(_shown(node, places, bytes_of) for node in order)


def _shown(node: Sketch, places: dict[int, int], bytes_of: Bytes | None) -> PictureNode:
    pieces = _pieces(node.tokens, bytes_of)
    whole = node.kind == "generated"
    return PictureNode(
        name=node.name,
        parent=None if node.parent is None else places[id(node.parent)],
        kind=node.kind,
        text="".join(pieces),
        tokens=len(node.tokens),
        born=node.born,
        ended=node.ended,
        gone=node.gone,
        reason=node.reason,
        score=node.score,
        logprob=node.logprob if whole and node.logprob else None,
        shared=node.shared,
        computed=node.computed,
        pieces=pieces if whole else (),
        grown=tuple(node.grown) if whole else (),
    )


def _pieces(tokens: Sequence[int], bytes_of: Bytes | None) -> tuple[str, ...]:
    """A character is of the token that completes it."""
    if bytes_of is None:
        return tuple(f"{token} " for token in tokens)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return tuple(decoder.decode(bytes_of(token), i == len(tokens) - 1) for i, token in enumerate(tokens))
