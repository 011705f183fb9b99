"""What groups leave with the nodes of trees."""

from __future__ import annotations

import numpy as np

from forkdecode.errors import invalid
from forkdecode.scheduler.group import SequenceGroup
from forkdecode.scheduler.held_rows import HeldRows
from forkdecode.scheduler.request import DecodeRequest, NodeRef
from forkdecode.strategies.hypotheses import HypothesisBatch
from forkdecode.strategies.policy import Decision, Policy


def check_keep(request: DecodeRequest, policy: Policy) -> None:
    """Raises InvalidRequestError where candidates have no numbers before they are ranked."""
    if request.keep is not None and not policy.streams_candidates:
        raise invalid(
            "keep",
            "nodes keep candidates, and those of a beam have no numbers until it is done",
            "no beam; or a beam whose result another request goes on from",
        )


def hold_prompt(group: SequenceGroup, held: HeldRows) -> None:
    """The prompt is computed: its node holds all of it but the last token."""
    origin, table = group.request.origin, group.table
    if origin is not None and table is not None:
        held.hold(origin, table.row_blocks(0), group.request.prompt_len - 1, group.number)


def hold_finished(group: SequenceGroup, batch: HypothesisBatch, held: HeldRows) -> None:
    """Candidates that end in this step leave their rows, as they are before it moves them."""
    if group.request.keep is None:
        return
    for row, candidate, generated in zip(
        batch.row.tolist(), batch.candidate.tolist(), batch.generated.tolist(), strict=True
    ):
        _hold(group, row, candidate, generated, held)


def hold_live(group: SequenceGroup, held: HeldRows) -> None:
    """A group that is ended leaves the rows that it still has, if all of their tokens are computed."""
    if group.request.keep is None or group.table is None or group.pending or not group.rows.generated:
        return
    for row, candidate in enumerate(group.rows.candidate.tolist()):
        _hold(group, row, candidate, group.rows.generated, held)


def _hold(group: SequenceGroup, row: int, candidate: int, generated: int, held: HeldRows) -> None:
    table = group.table
    assert table is not None, "a candidate that has tokens has a row"
    length = group.request.prompt_len + generated - 1
    held.hold(_node(group, candidate), table.row_blocks(row), length, group.number)
    group.kept.add(candidate)


def let_go(group: SequenceGroup, decision: Decision, held: HeldRows) -> Decision:
    """The decision without the rows of candidates whose nodes have been released: nobody waits for them."""
    keep, released = group.request.keep, held.released
    if keep is None or group.releases_seen == released.count(keep.tree):
        return decision
    group.releases_seen = released.count(keep.tree)
    refs = (_node(group, candidate) for candidate in decision.candidate.tolist())
    wanted = [not released.for_group(group.number, ref) for ref in refs]
    return decision if all(wanted) else decision.only(np.flatnonzero(wanted))


def take_back(group: SequenceGroup, returned: set[int], held: HeldRows) -> tuple[int, ...]:
    """Candidates that are not returned leave nothing. Returns those that do."""
    for candidate in sorted(group.kept - returned):
        held.drop(_node(group, candidate))
    kept = tuple(sorted(group.kept & returned))
    group.kept.clear()
    return kept


def _node(group: SequenceGroup, candidate: int) -> NodeRef:
    keep = group.request.keep
    assert keep is not None
    return NodeRef(keep.tree, keep.node + candidate)
