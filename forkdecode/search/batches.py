"""Which expansions of a search become one command of a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from forkdecode.calls.tree import Node
from forkdecode.errors import NoLegalTokenError
from forkdecode.search.operations import Start


@dataclass(slots=True)
class Batch:
    """Starts that are alike in all but their node, none of which stands twice. places: which they are."""

    first: Start
    places: list[int] = field(default_factory=list)
    nodes: set[int] = field(default_factory=set)

    def takes(self, start: Start) -> bool:
        """Whether it may be one of them."""
        mine = (self.first.sample, self.first.step, self.first.options)
        return start.node.id not in self.nodes and mine == (start.sample, start.step, start.options)

    def add(self, place: int, start: Start) -> None:
        """Takes it in."""
        self.places.append(place)
        self.nodes.add(start.node.id)


def batches(starts: Sequence[Start]) -> list[Batch]:
    """As few as can be, in the order of their first starts."""
    made: list[Batch] = []
    for place, start in enumerate(starts):
        batch = next((batch for batch in made if batch.takes(start)), None)
        if batch is None:
            batch = Batch(start)
            made.append(batch)
        batch.add(place, start)
    return made


def share(batch: Batch, children: Sequence[Node], made: list[list[Node]]) -> None:
    """Gives each start its children, which come node by node."""
    each = len(children) // len(batch.places)
    for number, place in enumerate(batch.places):
        made[place] = list(children[number * each : (number + 1) * each])


def check_decoded(nodes: Sequence[Node]) -> None:
    """Raises what ended a node's generation, but for a dead end: the search knows what to do about that."""
    for node in nodes:
        if node.error is not None and not isinstance(node.error, NoLegalTokenError):
            raise node.error
