"""Steps whose partial results would take too much memory, in slices of their tokens.

A query whose context is split leaves a part for each split, of all heads, in float32: a prompt's chunk of
2,048 tokens behind 128K others leaves 17 GB a layer. So such a step's attention runs slice after slice. A
group is cut where its own parts are too many, whatever else is in the step, so that its results don't depend
on its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from forkdecode.model.step_shape import StepShape
from forkdecode.step import DecodeRows, QuerySegment

Group = QuerySegment | DecodeRows
_WHOLE_TILES = 64
"""Queries: a multiple of what any tile holds."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Tokens start .. stop of a step, and what of it they are; its tokens count from `start`."""

    start: int
    stop: int
    shape: StepShape


def sliced(step: StepShape, most: int, parts_of: Callable[[StepShape], int]) -> list[Slice]:
    """The step in slices of `most` parts at most, where groups can be cut so far.

    parts_of: how many parts a step's plan has; those of several groups are at most the sum of each one's.
    """
    groups: list[Group] = [*step.segments, *step.decodes]
    groups.sort(key=lambda group: group.token_start)
    pieces = [piece for group in groups for piece in _cut(group, most, parts_of)]
    begins, total = [0], 0
    for piece, parts in pieces:
        if total and total + parts > most:
            begins.append(piece.token_start)
            total = 0
        total += parts
    bounds = [*begins, step.num_tokens]
    return [Slice(a, b, _within([piece for piece, _ in pieces], a, b)) for a, b in pairwise(bounds)]


def _cut(group: Group, most: int, parts_of: Callable[[StepShape], int]) -> Iterator[tuple[Group, int]]:
    """Halves of halves of a group, and the parts of each."""
    start, n = group.token_start, _tokens(group)
    parts = parts_of(_within([group], start, start + n))
    if parts <= most or n == 1:
        yield group, parts
        return
    half = n // 2 // _WHOLE_TILES * _WHOLE_TILES or n // 2
    for first, last in pairwise((0, half, n)):
        yield from _cut(_part(group, first, last), most, parts_of)


def _tokens(group: Group) -> int:
    return group.token_count if isinstance(group, QuerySegment) else group.rows


def _part(group: Group, first: int, last: int) -> Group:
    """Of its tokens those from first to last."""
    start = group.token_start + first
    if isinstance(group, DecodeRows):
        return replace(group, token_start=start, tails=group.tails[first:last])
    return replace(group, token_start=start, token_count=last - first, position=group.position + first)


def _within(groups: list[Group], start: int, stop: int) -> StepShape:
    """The groups of these that begin there, as a step of its own."""
    own = [replace(g, token_start=g.token_start - start) for g in groups if start <= g.token_start < stop]
    segments = [g for g in own if isinstance(g, QuerySegment)]
    return StepShape(segments, [g for g in own if isinstance(g, DecodeRows)], stop - start)
