"""What a replay compares with its journal, and what it checks of each plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from forkdecode.engine.journal import summary
from forkdecode.engine.plan_image import Difference, Image, first_difference, image_of
from forkdecode.engine.shadow import PlanError, ShadowCache, check_plan
from forkdecode.kv.block_pool import BlockAccountingError
from forkdecode.scheduler.events import GroupEvent
from forkdecode.scheduler.scheduler import Scheduler
from forkdecode.step import StepPlan

_BY_TOKEN = ("slots", "positions", "token_ids")
_BLOCKS = ("copies", "swap_out", "swap_in", "zero_blocks", "segments")
"""Parts of a plan whose entries are blocks."""


class Broken(Exception):  # noqa: N818 - it is a place, not a fault of the program
    """Where a replay ends. See replay.Break."""

    def __init__(self, where: str, field: str, expected: Any, got: Any, requests: Iterable[str] = ()) -> None:
        super().__init__(f"{where}: {field}: expected {expected}, got {got}")
        self.where = where
        self.field = field
        self.expected = expected
        self.got = got
        self.requests = tuple(dict.fromkeys(requests))


Named = Callable[[int], str]
"""The request of a group's number."""


def same_plan(image: Image | None, plan: StepPlan | None, scheduler: Scheduler, named: Named) -> None:
    """Raises Broken where the scheduler's plan is not the recorded one."""
    got = None if plan is None else image_of(plan)
    if image is not None and got is not None:
        difference = first_difference(image, got)
        if difference is not None:
            names = _concerned(difference, (image, got), scheduler, named)
            raise Broken("plan", difference.field, difference.expected, difference.got, names)
    elif (image is None) != (got is None):
        raise Broken("plan", "plan", *("none" if x is None else "a plan" for x in (image, got)))


def keeps_rules(plan: StepPlan, scheduler: Scheduler, shadow: ShadowCache, named: Named) -> None:
    """Runs the plan on the shadow. Raises Broken where it breaks a rule, or reads what it should not."""
    groups = {group.number: group for group in scheduler.groups.values()}
    try:
        check_plan(plan, scheduler.pool)
        shadow.run(plan)
        shadow.check(plan, groups)
    except PlanError as error:
        names = [named(number) for number in error.groups]
        raise Broken("rules", error.field, "a plan that keeps the rules", str(error), names) from error


def counts_agree(scheduler: Scheduler) -> None:
    """Raises Broken where blocks are counted otherwise than they are held."""
    try:
        scheduler.check()
    except BlockAccountingError as error:
        raise Broken("blocks", "counts", "those of the holders", str(error)) from error


def same_events(expected: Any, events: Sequence[GroupEvent]) -> None:
    """Raises Broken where events are not the recorded ones."""
    difference = first_difference(expected, summary(events), ("events",))
    if difference is not None:
        at = difference.path[1] if len(difference.path) > 1 else 0
        names = [one[int(at)][1] for one in (expected, summary(events)) if len(one) > int(at)]
        raise Broken("events", difference.field, difference.expected, difference.got, names)


def _concerned(
    difference: Difference, images: Iterable[Image], scheduler: Scheduler, named: Named
) -> list[str]:
    """Requests that a difference between plans is about: those whose part of the plan it is, and those that
    hold the blocks it names."""
    part, *index = difference.path
    names = [named(number) for image in images for number in _groups_of(image, part, index)]
    blocks = {v for v in (difference.expected, difference.got) if isinstance(v, int)}
    if part in _BLOCKS or "tails" in index or "trunk" in index:
        names += _holders(blocks, scheduler)
    return names


def _holders(blocks: set[int], scheduler: Scheduler) -> list[str]:
    return [
        name
        for name, group in scheduler.groups.items()
        if group.table is not None and blocks.intersection(group.table.references().tolist())
    ]


def _groups_of(image: Image, part: str | int, index: Sequence[str | int]) -> list[int]:
    """The groups that own an entry of a part of an image."""
    at = index[0] if index else None
    if not isinstance(at, int) or part not in (*_BY_TOKEN, "decodes", "segments", "selections"):
        return []
    if part == "selections":
        return [s["group_id"] for s in image[part][at : at + 1]]
    if part in _BY_TOKEN:
        first, last = at, at
    else:
        starts = [piece["token_start"] for piece in image[str(part)][at : at + 1]]
        first, last = (starts[0], starts[0]) if starts else (0, -1)
    rows = np.flatnonzero((image["logits_index"] >= first) & (image["logits_index"] <= last))
    return [
        s["group_id"]
        for row in rows.tolist()
        for s in image["selections"]
        if s["logits_start"] <= row < s["logits_start"] + s["rows"]
    ]
