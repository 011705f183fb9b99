"""Who waits, and in which order they are let in."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from forkdecode.scheduler.group import SequenceGroup


class WaitingQueue:
    """Waiting groups by rank: higher priority first, then earlier arrival.

    A group gains one level of priority for every `aging_steps` steps it waits, so that a stream of
    urgent requests cannot starve it. The priority it was admitted with stays with it: an old group
    is not preempted by the requests that it overtook.
    """

    def __init__(self, aging_steps: int) -> None:
        self._aging_steps = aging_steps
        self._looked = 0
        self._groups: list[SequenceGroup] = []

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[SequenceGroup]:
        return iter(self._groups)

    def push(self, group: SequenceGroup, step: int) -> None:
        group.waiting_since = step
        bisect.insort(self._groups, group, key=lambda g: g.rank)

    def remove(self, group: SequenceGroup) -> None:
        self._groups.remove(group)

    def age(self, step: int) -> None:
        """Raises the priority of those who have waited long enough; looks a few times per period."""
        if step - self._looked < self._aging_steps // 16:
            return
        self._looked = step
        aged = [g for g in self._groups if step - g.waiting_since >= self._aging_steps]
        for group in aged:
            group.priority += 1
            group.waiting_since = step
        if aged:
            self._groups.sort(key=lambda g: g.rank)

    def at(self, place: int) -> SequenceGroup | None:
        """The group at a place of the order, None behind the last."""
        found = self._groups[place : place + 1]
        return found[0] if found else None

    def pop(self, place: int) -> SequenceGroup:
        return self._groups.pop(place)
