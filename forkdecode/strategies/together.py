"""Selections in which no candidate ends, of many groups at once: what each policy's `decide` would say, in
few numpy calls for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from forkdecode.parts import parts
from forkdecode.step import F32, I32, I64, SelectionResult
from forkdecode.strategies.beam import BeamPolicy
from forkdecode.strategies.policy import GroupRows, Policy


class GoingOn(NamedTuple):
    """What a group does whose first R' candidates go on and nothing else happens: the next rows, and of each
    [R'] what a Decision and its result tell. stays: whether every row goes on in its place.

    The arrays are the group's own, but for columns of `rows`, which are parts of what all groups share.
    """

    rows: GroupRows
    parents: I32
    tokens: I64
    logprobs: F32
    selection_logprobs: F32
    stays: bool


def go_on_together(
    policies: Sequence[Policy],
    results: Sequence[SelectionResult],
    rows: Sequence[GroupRows],
    counts: Sequence[int],
) -> list[GoingOn | None]:
    """What each group does. results: no candidate of them ends; rows: before them; counts: what the policies'
    goes_on said. None for a group that has to be asked alone."""
    found: list[GoingOn | None] = [None] * len(policies)
    beams: list[int] = []
    draws: list[int] = []
    for place, (policy, count) in enumerate(zip(policies, counts, strict=True)):
        if count:
            (beams if isinstance(policy, BeamPolicy) else draws).append(place)
    for places, go_on in ((beams, beams_go_on), (draws, draws_go_on)):
        if len(places) > 1:
            all_ = go_on([results[i] for i in places], [rows[i] for i in places], [counts[i] for i in places])
            for place, one in zip(places, all_ or (), strict=all_ is not None):
                found[place] = one
    return found


def beams_go_on(
    results: Sequence[SelectionResult], rows: Sequence[GroupRows], counts: Sequence[int]
) -> list[GoingOn] | None:
    """Beams: the first `counts` candidates of each are its next rows. None where parents are no rows of their
    groups."""
    numbers = np.array(counts)
    picks = _firsts(np.array([len(r.tokens) for r in results]), numbers)
    parents = np.concatenate([r.rows for r in results])[picks]
    sizes = np.array([len(r.candidate) for r in rows])
    if not ((parents >= 0) & (parents < sizes.repeat(numbers))).all():
        return None
    sources = parents + (sizes.cumsum() - sizes).repeat(numbers)
    logprobs = np.concatenate([r.logprobs for r in results])[picks]
    cumulative = np.concatenate([r.cumulative for r in rows])[sources] + logprobs
    columns = zip(
        rows,
        parts(parents, counts),
        parts(np.concatenate([r.tokens for r in results])[picks], counts),
        parts(logprobs, counts),
        parts(np.concatenate([r.selection_logprobs for r in results])[picks], counts),
        parts(np.concatenate([r.lineage for r in rows])[sources], counts),
        parts(cumulative, counts),
        parts(np.concatenate([r.scores for r in results])[picks], counts),
        strict=True,
    )
    candidates = {n: np.arange(n, dtype=np.int32) for n in set(counts)}
    return [
        GoingOn(
            GroupRows(
                before.generated + 1,
                before.position + 1,
                lineage,
                candidates[len(parent)],
                sums,
                scores,
                before.root,
            ),
            parent.copy(),
            token.copy(),
            raw.copy(),
            chosen.copy(),
            stays=False,
        )
        for before, parent, token, raw, chosen, lineage, sums, scores in columns
    ]


def draws_go_on(
    results: Sequence[SelectionResult], rows: Sequence[GroupRows], counts: Sequence[int]
) -> list[GoingOn] | None:
    """Samples: each goes on in its place. None where a result has them elsewhere."""
    numbers = np.array(counts)
    places = np.arange(int(numbers.sum())) - (numbers.cumsum() - numbers).repeat(numbers)
    if not np.array_equal(np.concatenate([r.rows for r in results]), places):
        return None
    raw = np.concatenate([r.logprobs for r in results])
    chosen = np.concatenate([r.selection_logprobs for r in results])
    cumulative = np.concatenate([r.cumulative for r in rows]) + raw
    selection = np.concatenate([r.selection for r in rows]) + chosen
    identity = {n: np.arange(n, dtype=np.int32) for n in set(counts)}
    sums = zip(rows, results, parts(cumulative, counts), parts(selection, counts), strict=True)
    return [
        GoingOn(
            GroupRows(
                before.generated + 1,
                before.position + 1,
                before.lineage,
                before.candidate,
                total,
                processed,
                before.root,
            ),
            identity[len(total)],
            result.tokens.copy(),
            result.logprobs.copy(),
            result.selection_logprobs.copy(),
            stays=True,
        )
        for before, result, total, processed in sums
    ]


def _firsts(lengths: I64, counts: I64) -> I64 | slice:
    """Where the first `counts` of each group's candidates are among those of all."""
    if np.array_equal(lengths, counts):
        return slice(None)
    starts = (lengths.cumsum() - lengths) - (counts.cumsum() - counts)
    return np.asarray(np.arange(int(counts.sum())) + starts.repeat(counts), np.int64)
