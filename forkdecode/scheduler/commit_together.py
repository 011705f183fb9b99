"""The commit of many groups of a step at once, where no candidate ends: most of them, in most steps. What
they would do one by one (scheduler/commit.py), in few numpy calls for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from forkdecode.scheduler.commit import among
from forkdecode.scheduler.events import GroupEvent, TokensAppended
from forkdecode.scheduler.group import SequenceGroup
from forkdecode.scheduler.moving import Moving
from forkdecode.scheduler.outcome import top_of_rows
from forkdecode.step import SelectionResult
from forkdecode.strategies.hypotheses import NO_HYPOTHESES
from forkdecode.strategies.policy import GroupRows, Policy
from forkdecode.strategies.together import GoingOn, go_on_together


def all_going_on(groups: Sequence[SequenceGroup], results: Sequence[SelectionResult]) -> list[GoingOn | None]:
    """What each selection's group does, None where it has to be committed alone. Changes nothing."""
    found: list[GoingOn | None] = [None] * len(groups)
    places = [i for i, (g, r) in enumerate(zip(groups, results, strict=True)) if _plain(g, r)]
    places = _without_ends(places, groups, results)
    if len(places) < 2:
        return found
    policies = [groups[i].policy for i in places]
    answers = [results[i] for i in places]
    rows = [groups[i].rows for i in places]
    counts = [_going_on(p, a, r) for p, a, r in zip(policies, answers, rows, strict=True)]
    together = go_on_together(policies, answers, rows, counts)
    for place, going in zip(places, together, strict=True):
        found[place] = going
    return found


def _going_on(policy: Policy, result: SelectionResult, rows: GroupRows) -> int:
    """Policy.goes_on; 0 where it raises, as a caller's scorer may: decide() is asked then, and what it raises
    ends its group alone."""
    try:
        return policy.goes_on(result, rows)
    except Exception:
        return 0


def _plain(group: SequenceGroup, result: SelectionResult) -> bool:
    """Whether candidates of this selection can only end by what they are, and one is there."""
    return (
        group.plain
        and group.prompt_done
        and group.table is not None
        and result.error is None
        and result.ended is None
        and group.rows.generated + 1 < group.request.options.max_tokens
        and len(result.tokens) > 0
    )


def _without_ends(
    places: list[int], groups: Sequence[SequenceGroup], results: Sequence[SelectionResult]
) -> list[int]:
    """Those of `places` none of whose candidates is an end token."""
    by_ends: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for place in places:
        by_ends[groups[place].ends].append(place)
    kept: list[int] = []
    for ends, same in by_ends.items():
        if not ends:
            kept += same
            continue
        tokens = [results[i].tokens for i in same]
        sizes = np.array([len(t) for t in tokens])
        hits = among(np.concatenate(tokens), np.array(ends))
        ended = np.logical_or.reduceat(hits, sizes.cumsum() - sizes)
        kept += [place for place, any_ in zip(same, ended.tolist(), strict=True) if not any_]
    return kept


def commit_going_on(
    group: SequenceGroup, result: SelectionResult, going: GoingOn, moving: Moving
) -> list[GroupEvent]:
    """Advances `group` by one token, as commit_selection does; returns its events, but for beam_events."""
    group.history.append(going.parents, going.tokens, going.logprobs, going.selection_logprobs, result.top)
    group.costs.generated_tokens += len(going.tokens)
    if not going.stays:
        moving.add(group, going.parents)
    streams = group.request.stream
    events = _appended(group, result, going) if streams and group.policy.streams_candidates else []
    group.move(going.rows, going.parents, going.tokens, group.stop_state)
    return events


def beam_events(group: SequenceGroup, going: GoingOn) -> list[GroupEvent]:
    """What a streamed beam tells of a step that commit_going_on has advanced it by. To be asked before the
    next, whatever has become of the group."""
    if group.beam_stream is None:
        return []
    return group.beam_stream.events(
        group.request_id, group.history, group.policy, going.parents, NO_HYPOTHESES, going.rows
    )


def _appended(group: SequenceGroup, result: SelectionResult, going: GoingOn) -> list[GroupEvent]:
    top = None
    if result.top is not None:
        by_row = top_of_rows(result.top)
        top = tuple(by_row[r] for r in going.parents)
    return [
        TokensAppended(
            group.request_id,
            going.rows.candidate,
            going.tokens,
            going.logprobs,
            going.selection_logprobs,
            top,
        )
    ]
