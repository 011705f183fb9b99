"""What a KV cache would hold, without a model: in each slot the token and position written there.

With it a plan can be checked for what no count of blocks shows: that every row reads its own tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from forkdecode.kv.block_pool import BlockPool
from forkdecode.scheduler.group import SequenceGroup, Span
from forkdecode.step import I32, I64, StepPlan


class PlanError(Exception):
    """A plan that breaks a rule. field: the part of it at fault. groups: numbers of those concerned."""

    def __init__(self, field: str, problem: str, groups: tuple[int, ...] = ()) -> None:
        super().__init__(problem)
        self.field = field
        self.groups = groups


@dataclass(frozen=True, slots=True)
class Reader:
    """A row whose logits are wanted: where its `count` query tokens begin in the step, at which position
    the first of them stands, and the row's blocks from position 0."""

    field: str
    group: int
    row: int
    token_start: int
    count: int
    position: int
    blocks: I32


def readers(plan: StepPlan) -> Iterator[Reader]:
    """All rows of the step but those that are only prefilled."""
    owner = _owners(plan)
    for i, rows in enumerate(plan.decodes):
        for r in range(rows.rows):
            token = rows.token_start + r
            blocks = np.concatenate([rows.trunk, rows.tails[r]])
            yield Reader(f"decodes[{i}].tails[{r}]", *owner[token], token, 1, rows.context_len - 1, blocks)
    for i, part in enumerate(plan.segments):
        if part.token_start in owner:
            found = owner[part.token_start]
            yield Reader(
                f"segments[{i}].blocks",
                *found,
                part.token_start,
                part.token_count,
                part.position,
                part.blocks,
            )


def _owners(plan: StepPlan) -> Mapping[int, tuple[int, int]]:
    """Of each query token whose logits are wanted: its group and row."""
    return {
        int(plan.logits_index[s.logits_start + r]): (s.group_id, r)
        for s in plan.selections
        for r in range(s.rows)
    }


class ShadowCache:
    """num_blocks blocks of block_size slots, host_slots swapped blocks. Memory is taken as it is used."""

    def __init__(self, num_blocks: int, host_slots: int, block_size: int) -> None:
        self._size = block_size
        self._kv = np.zeros((num_blocks, block_size), np.int64)
        self._host = np.zeros((max(1, host_slots), block_size), np.int64)

    def run(self, plan: StepPlan) -> None:
        """Does to the slots what the runner does to the KV cache, in the same order."""
        self._host[plan.swap_out.target] = self._kv[plan.swap_out.source]
        self._kv[plan.zero_blocks] = 0
        self._kv[plan.swap_in.target] = self._host[plan.swap_in.source]
        self._kv[plan.copies.target] = self._kv[plan.copies.source]
        self._kv.reshape(-1)[plan.slots] = _written(plan.token_ids, plan.positions)

    def check(self, plan: StepPlan, groups: Mapping[int, SequenceGroup]) -> None:
        """Raises PlanError unless each row reads its own tokens. groups: by number. After run()."""
        for reader in readers(plan):
            group = groups[reader.group]
            length = reader.position + reader.count
            found = self._kv[reader.blocks].reshape(-1)[:length]
            history = group.tokens_of(Span(reader.row, 0, reader.position + 1))
            known = plan.token_ids[reader.token_start + 1 : reader.token_start + reader.count]
            wanted = _written(np.concatenate([history, known]), np.arange(length, dtype=np.int64))
            wrong = np.flatnonzero(found != wanted)
            if len(wrong):
                at = int(wrong[0])
                raise PlanError(
                    reader.field,
                    f"row {reader.row} reads {_shown(found[at])} in slot {at % self._size} of block "
                    f"{reader.blocks[at // self._size]}, where its own {_shown(wanted[at])} should be",
                    (group.number,),
                )


def _written(tokens: I64, positions: I64) -> I64:
    """Of a slot that nothing was written to: 0."""
    return tokens + ((positions + 1) << 32)


def _shown(value: Any) -> str:
    position = (int(value) >> 32) - 1
    return "nothing" if position < 0 else f"token {int(value) & 0xFFFFFFFF} of position {position}"


def check_plan(plan: StepPlan, pool: BlockPool) -> None:
    """Raises PlanError for a plan that would spoil the cache: of a step just scheduled, not yet committed."""
    _check_moves(plan)
    _check_coverage(plan)
    _check_writes(plan, pool)


def _check_moves(plan: StepPlan) -> None:
    for name in ("copies", "swap_in", "swap_out"):
        moves = getattr(plan, name)
        targets, counts = np.unique(moves.target, return_counts=True)
        if (counts > 1).any():
            raise PlanError(f"{name}.target", f"{int(targets[counts > 1][0])} is written twice")
    both = np.intersect1d(plan.copies.source, plan.copies.target)
    if len(both):
        raise PlanError("copies", f"block {int(both[0])} is source and target")


def _check_coverage(plan: StepPlan) -> None:
    total = len(plan.token_ids)
    covered = np.zeros(total + 1, np.int64)
    spans = [(d.token_start, d.rows) for d in plan.decodes]
    spans += [(s.token_start, s.token_count) for s in plan.segments]
    for start, count in spans:
        covered[start : start + count] += 1
    wrong = np.flatnonzero(covered[:total] != 1)
    if len(wrong) or len(plan.positions) != total or len(plan.slots) != total:
        at = int(wrong[0]) if len(wrong) else total
        raise PlanError("token_ids", f"token {at} of {total} is computed {covered[at]} times")
    slots, counts = np.unique(plan.slots, return_counts=True)
    if (counts > 1).any():
        slot = int(slots[counts > 1][0])
        owner = _owners(plan)
        tokens = np.flatnonzero(plan.slots == slot).tolist()
        groups = tuple(dict.fromkeys(owner[t][0] for t in tokens if t in owner))
        raise PlanError("slots", f"tokens {tokens} of the step write slot {slot}", groups)


def _check_writes(plan: StepPlan, pool: BlockPool) -> None:
    """Tokens go where their tables say, and rows that select write to blocks of their own."""
    size = pool.block_size
    for reader in readers(plan):
        groups = (reader.group,)
        length = reader.position + reader.count
        if len(reader.blocks) != -(-length // size):
            raise PlanError(
                reader.field, f"{len(reader.blocks)} blocks of {size} for {length} tokens", groups
            )
        here = slice(reader.token_start, reader.token_start + reader.count)
        positions = np.arange(reader.position, length)
        if (plan.positions[here] != positions).any():
            raise PlanError(
                f"positions[{reader.token_start}]", f"row {reader.row} begins at {reader.position}", groups
            )
        last = reader.blocks[positions // size].astype(np.int64) * size + positions % size
        wrong = np.flatnonzero(plan.slots[here] != last)
        if len(wrong):
            at = reader.token_start + int(wrong[0])
            text = f"row {reader.row} writes {plan.slots[at]}, its table says {last[wrong[0]]}"
            raise PlanError(f"slots[{at}]", text, groups)
        written = np.unique(plan.slots[here] // size)
        shared = written[pool.ref_count[written] != 1]
        if len(shared):
            holders = pool.ref_count[shared[0]]
            text = f"row {reader.row} writes to block {shared[0]}, which has {holders} holders"
            raise PlanError(reader.field, text, groups)
