"""Assembles one StepPlan from what the scheduler decided, group by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from forkdecode.kv.block_table import BlockTable
from forkdecode.kv.step_reads import StepReads
from forkdecode.kv.table_batch import Extensions
from forkdecode.scheduler.group import SequenceGroup, Span
from forkdecode.scheduler.narrowed import narrowed
from forkdecode.scheduler.stats import StepBlocks
from forkdecode.step import (
    I32,
    I64,
    BlockMoves,
    DecodeRows,
    QuerySegment,
    SelectionRequest,
    SelectionResult,
    StepPlan,
)

SHARING_ROWS = 4
"""From this many rows on, several tokens in a step are computed position by position, each reading the
rows' trunk once. With fewer it costs less to read it once for each row (measured on a CPU: 2 rows of
240 tokens after 500 take 0.77 of the time then, 4 of 120 take 1.24)."""


@dataclass(slots=True)
class Moves:
    """Blocks to be moved or cleared before the next step that computes anything."""

    copies: list[BlockMoves] = field(default_factory=list)
    swap_out: list[BlockMoves] = field(default_factory=list)
    swap_in: list[BlockMoves] = field(default_factory=list)
    zero_blocks: list[I32] = field(default_factory=list)
    swapped: list[SequenceGroup] = field(default_factory=list)
    """Groups that exist nowhere else than in what swap_out and swap_in have still to move."""

    def __bool__(self) -> bool:
        return any((self.copies, self.swap_out, self.swap_in, self.zero_blocks, self.swapped))


@dataclass(slots=True)
class PlanBuilder:
    """Tokens whose logits are wanted come first in the step, prefill and recompute after them."""

    step: int
    block_size: int
    moves: Moves
    reads: StepReads
    groups: list[SequenceGroup] = field(default_factory=list)
    """Groups whose rows decode in this step, one entry a selection, in their order."""
    touched: list[SequenceGroup] = field(default_factory=list)
    """Groups that compute anything in this step."""
    broken: list[tuple[SequenceGroup, Exception]] = field(default_factory=list)
    """Groups that could not say what they want of this step."""
    blocks: list[StepBlocks] = field(default_factory=list)
    """Of `touched`, while the step runs."""
    left: Mapping[int, I32] = field(default_factory=dict)
    """Of groups whose rows have changed since the step was planned, by number: which of the rows that it was
    planned with go on."""
    _decodes: list[DecodeRows] = field(default_factory=list)
    _known: list[QuerySegment] = field(default_factory=list)
    _by_position: list[tuple[int, I64]] = field(default_factory=list)
    """Where logits begin whose tokens lie row after row, and the tokens in the order of positions."""
    _selections: list[SelectionRequest] = field(default_factory=list)
    _segments: list[tuple[BlockTable, Span]] = field(default_factory=list)
    _ids: list[I64] = field(default_factory=list)
    _positions: list[I64] = field(default_factory=list)
    _slots: list[I64] = field(default_factory=list)
    _segment_ids: list[I64] = field(default_factory=list)
    _sources: I64 | None = None
    rows: int = 0
    """Tokens whose logits are wanted."""
    segment_tokens: int = 0
    unshared: tuple[int, int] = (0, 0)
    """What the plan's attention would move if rows shared nothing: BytesMoved.naive and paged."""

    @property
    def tokens(self) -> int:
        return self.rows + self.segment_tokens

    @property
    def selections(self) -> Sequence[SelectionRequest]:
        """One for each of `groups`."""
        return self._selections

    def answers(self, results: Sequence[SelectionResult]) -> Sequence[SelectionResult]:
        """The results of the step's selections, for the rows that are left of its groups."""
        if not self.left:
            return results
        return [
            narrowed(result, self.left[group.number]) if group.number in self.left else result
            for group, result in zip(self.groups, results, strict=True)
        ]

    def decode(self, group: SequenceGroup, table: BlockTable, slots: I64, copies: BlockMoves) -> None:
        """All rows of `group` compute their last token, into `slots` [R, 1]."""
        rows = len(slots)
        selection = group.selection_request(self.rows)  # may raise: before anything is planned
        self.moves.copies.append(copies)
        self._decodes.append(DecodeRows(self.rows, table.trunk, table.tails, table.length))
        self._selections.append(selection)
        self._ids.append(group.last_token)
        self._positions.append(np.full(rows, table.length - 1, np.int64))
        self._slots.append(slots[:, 0])
        self.reads.rows([rows], [table.length], [group.reorders])
        self.groups.append(group)
        self._touch(group)
        self.rows += rows

    def decode_all(
        self, groups: Sequence[SequenceGroup], tables: Sequence[BlockTable], extended: Extensions
    ) -> None:
        """All rows of these groups compute their last token. Groups that can't say what they want of the step
        join `broken` and are not in it."""
        selections, kept, row = [], [], self.rows
        for place, (group, table) in enumerate(zip(groups, tables, strict=True)):
            try:
                selections.append(group.selection_request(row))
            except Exception as error:
                self.broken.append((group, error))
                continue
            kept.append(place)
            row += len(table.tails)
        if len(kept) < len(groups):
            extended = extended.only(kept, [len(t.tails) for t in tables])
            groups, tables = [groups[i] for i in kept], [tables[i] for i in kept]
        if groups:
            self._ids += [group.last_token for group in groups]
            self._decode_rows(groups, tables, extended, selections)

    def decode_ahead(
        self,
        groups: Sequence[SequenceGroup],
        tables: Sequence[BlockTable],
        extended: Extensions,
        selections: Sequence[SelectionRequest],
        sources: Sequence[I64],
    ) -> None:
        """All rows of these groups compute the tokens that the step before draws for them: see
        StepPlan.token_source."""
        self._sources = np.concatenate(sources)
        self._ids.append(np.zeros(len(self._sources), np.int64))
        self._decode_rows(groups, tables, extended, selections)

    def _decode_rows(
        self,
        groups: Sequence[SequenceGroup],
        tables: Sequence[BlockTable],
        extended: Extensions,
        selections: Sequence[SelectionRequest],
    ) -> None:
        self._selections += selections
        for table in tables:
            self._decodes.append(DecodeRows(self.rows, table.trunk, table.tails, table.length))
            self.rows += len(table.tails)
        rows, lengths = [len(t.tails) for t in tables], [t.length for t in tables]
        self.reads.rows(rows, lengths, [g.reorders for g in groups])
        self._positions.append((np.array(lengths) - 1).repeat(rows))
        self._slots.append(extended.slots)
        self.moves.copies.append(extended.copies)
        self.groups += groups
        self.touched += groups

    def decode_known(self, group: SequenceGroup, table: BlockTable, slots: I64, copies: BlockMoves) -> None:
        """All rows of `group` compute their last token and those that are known to follow it but for
        the last, into `slots` [R, n], n > 1.

        There is a selection for each position, of all rows: logits are in this order, however the
        tokens are laid out.
        """
        rows, count = slots.shape
        known = group.known_tokens(count)
        self._selections += group.gather_requests(self.rows, known)
        self.moves.copies.append(copies)
        ids = np.concatenate([group.last_token[:, None], known[:, :-1]], axis=1)
        positions = np.broadcast_to(np.arange(table.length - count, table.length), slots.shape)
        if rows < SHARING_ROWS:
            self._known += _by_rows(table, self.rows, count)
            tokens = np.arange(self.rows, self.rows + rows * count)
            self._by_position.append((self.rows, tokens.reshape(rows, count).T.ravel()))
        else:
            self._decodes += _by_positions(table, self.rows, count)
            ids, positions, slots = ids.T, positions.T, slots.T
        self._ids.append(ids.ravel())
        self._positions.append(positions.ravel())
        self._slots.append(slots.ravel())
        self.reads.rows([rows], [table.length], [False], count)
        self.groups += [group] * count
        self._touch(group)
        self.rows += rows * count

    def segment(self, group: SequenceGroup, table: BlockTable, span: Span) -> None:
        """One row of `group` computes the tokens of `span`; its blocks are in the table already."""
        self._segments.append((table, span))
        self._segment_ids.append(group.tokens_of(span))
        self.reads.chunk(span.start, span.end)
        self._touch(group)
        self.segment_tokens += span.length

    def _touch(self, group: SequenceGroup) -> None:
        if not self.touched or self.touched[-1] is not group:
            self.touched.append(group)

    def build(self) -> StepPlan | None:
        """The plan, or None when there is nothing to compute."""
        if not self.tokens:
            return None
        self.unshared = self.reads.unshared()
        segments, offset = list(self._known), self.rows
        for table, span in self._segments:
            blocks = table.row_blocks(span.row)[: -(-span.end // self.block_size)]
            segments.append(QuerySegment(offset, span.length, span.start, blocks))
            positions = np.arange(span.start, span.end, dtype=np.int64)
            in_block = positions % self.block_size
            self._positions.append(positions)
            self._slots.append(
                blocks[positions // self.block_size].astype(np.int64) * self.block_size + in_block
            )
            offset += span.length
        logits_index = np.arange(self.rows, dtype=np.int64)
        for start, tokens in self._by_position:
            logits_index[start : start + len(tokens)] = tokens
        return StepPlan(
            step=self.step,
            token_ids=np.concatenate(self._ids + self._segment_ids),
            positions=np.concatenate(self._positions),
            slots=np.concatenate(self._slots),
            segments=tuple(segments),
            decodes=tuple(self._decodes),
            logits_index=logits_index,
            selections=tuple(self._selections),
            copies=BlockMoves.concat(self.moves.copies),
            swap_out=BlockMoves.concat(self.moves.swap_out),
            swap_in=BlockMoves.concat(self.moves.swap_in),
            zero_blocks=np.concatenate([np.empty(0, np.int32), *self.moves.zero_blocks]),
            token_source=self._sources,
        )


def _by_rows(table: BlockTable, token_start: int, count: int) -> list[QuerySegment]:
    """The last `count` tokens of each row, a row after the other."""
    start = table.length - count
    return [
        QuerySegment(token_start + row * count, count, start, table.row_blocks(row))
        for row in range(table.rows)
    ]


def _by_positions(table: BlockTable, token_start: int, count: int) -> list[DecodeRows]:
    """The last `count` tokens of each row, a position after the other."""
    found, size = [], table.pool.block_size
    for i in range(count):
        context = table.length - count + i + 1
        tails = table.tails[:, : -(-context // size) - len(table.trunk)]
        found.append(DecodeRows(token_start + i * table.rows, table.trunk, tails, context))
    return found
