"""The rows of all groups of a step take their new places together."""

from __future__ import annotations

from forkdecode.kv.table_batch import advance_all
from forkdecode.scheduler.group import SequenceGroup
from forkdecode.step import I32


class Moving:
    """Gathers what a step's decisions do to the groups' tables."""

    def __init__(self) -> None:
        self._groups: list[SequenceGroup] = []
        self._parents: list[I32] = []

    def add(self, group: SequenceGroup, parents: I32) -> None:
        """Row i of the group continues row parents[i]: at once if the group ends or has more selections in
        this step, else in finish()."""
        table = group.table
        assert table is not None, "a group that decodes has a table"
        if not len(parents) or group.policy.forced is not None:
            table.advance(parents)
            return
        self._groups.append(group)
        self._parents.append(parents)

    @property
    def parents(self) -> dict[int, I32]:
        """Of each group that was added and that its policy has go on, by number: the rows that its next ones
        continue."""
        return {group.number: of for group, of in zip(self._groups, self._parents, strict=True)}

    def finish(self) -> list[tuple[SequenceGroup, Exception]]:
        """Moves them. Returns the groups whose parents are none of their rows, and why."""
        found = [
            (group, group.table, parents)
            for group, parents in zip(self._groups, self._parents, strict=True)
            if group.table is not None  # it has not failed since
        ]
        if len(found) > 1:
            try:
                advance_all([table for _, table, _ in found], [parents for _, _, parents in found])
            except ValueError:
                pass  # nothing has changed; one by one they tell whose fault it is
            else:
                return []
        wrong: list[tuple[SequenceGroup, Exception]] = []
        for group, table, parents in found:
            try:
                table.advance(parents)
            except ValueError as error:
                wrong.append((group, error))
        return wrong
