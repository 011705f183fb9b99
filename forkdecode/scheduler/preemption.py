"""Taking a whole group out of the block pool, and putting it back."""

from __future__ import annotations

from dataclasses import dataclass

from forkdecode.config import Preemption
from forkdecode.kv.block_pool import BlockPool
from forkdecode.kv.block_table import BlockTable
from forkdecode.kv.swap import HostPool
from forkdecode.scheduler.group import Parked, SequenceGroup, Span
from forkdecode.scheduler.held_rows import HeldRows
from forkdecode.scheduler.plan import Moves
from forkdecode.step import I32, BlockMoves


@dataclass(frozen=True, slots=True)
class PreemptionCost:
    """What recompute and swap cost, in the same unit.

    recompute_per_token: FLOPs, two for each weight. swap_per_block: the FLOPs that the device could
    do while one block goes out and comes back.
    """

    recompute_per_token: float
    swap_per_block: float

    @staticmethod
    def of(weights: int, bytes_per_block: int, flops_per_byte: float) -> PreemptionCost:
        """weights: number of parameters. flops_per_byte: FLOPs done in the time that one byte takes
        between device and host."""
        return PreemptionCost(2.0 * weights, 2.0 * bytes_per_block * flops_per_byte)

    def swaps(self, mode: Preemption, blocks: int, tokens: int) -> bool:
        """Whether to swap `blocks` blocks with `tokens` tokens rather than compute them again."""
        if mode == "auto":
            return blocks * self.swap_per_block < tokens * self.recompute_per_token
        return mode == "swap"


class Preemptor:
    """Parks groups (recompute or swap, whichever costs less or is forced) and resumes them."""

    def __init__(
        self,
        mode: Preemption,
        cost: PreemptionCost,
        pool: BlockPool,
        host: HostPool,
        held: HeldRows,
    ) -> None:
        self._mode = mode
        self._cost = cost
        self._pool = pool
        self._host = host
        self._held = held

    def park(self, group: SequenceGroup, moves: Moves) -> int:
        """Frees all of the group's blocks. Returns how many were swapped out."""
        table = group.table
        assert table is not None, "a parked group cannot be parked again"
        image = table.image()
        slots: I32 | None = None
        if self._swaps(group, image.num_unique):
            slots = self._host.allocate(image.num_unique)
            self._host.moving(slots)
            moves.swap_out.append(BlockMoves(image.unique_old, slots))
            moves.swapped.append(group)
        table.release()
        group.table = None
        group.parked = Parked(image, slots, tuple(group.pending))
        group.pending = []
        group.costs.preemptions += 1
        swapped = 0 if slots is None else len(slots)
        group.costs.swapped_blocks += swapped
        return swapped

    def _swaps(self, group: SequenceGroup, blocks: int) -> bool:
        tokens = blocks * self._pool.block_size - sum(span.length for span in group.pending)
        return bool(blocks) and self._cost.swaps(self._mode, blocks, tokens) and self._held.give_slots(blocks)

    def resume(self, group: SequenceGroup, cached: I32, moves: Moves) -> int:
        """Gives a parked group blocks again; `cached`: of those that its rows share, the leading ones that
        the pool has already, none if it is swapped in. Returns how many tokens are to be computed again."""
        parked = group.parked
        assert parked is not None
        group.table = BlockTable.restore(self._pool, parked.image, cached)
        group.parked = None
        if parked.host_slots is not None:
            self.swap_in(group, BlockMoves(parked.host_slots, group.table.image().unique_old), moves)
            self._host.free(parked.host_slots)
            group.pending = list(parked.pending)
            return 0
        group.pending = [Span(*span) for span in parked.image.segments(len(cached))]
        tokens = sum(span.length for span in group.pending)
        group.costs.recomputed_tokens += tokens
        return tokens

    def swap_in(self, group: SequenceGroup, blocks: BlockMoves, moves: Moves) -> None:
        """Plans to fetch blocks that the group begins with."""
        self._host.moving(blocks.source)
        moves.swap_in.append(blocks)
        moves.swapped.append(group)
        group.costs.swapped_blocks += len(blocks)

    def drop(self, group: SequenceGroup, moves: Moves) -> None:
        """Forgets a group that has ended and holds no blocks any more. What is still to be done to swap it
        out or in is not done: its blocks are somebody else's by then."""
        slots = None if group.parked is None else group.parked.host_slots
        if slots is not None:
            if any(out.target is slots for out in moves.swap_out):
                moves.swap_out = [out for out in moves.swap_out if out.target is not slots]
                self._host.staying(slots)
            self._host.free(slots)
        moves.swap_in = [self._into_held(move) for move in moves.swap_in]
        group.parked = None

    def _into_held(self, moves: BlockMoves) -> BlockMoves:
        """Those of the moves whose target somebody holds."""
        held = self._pool.ref_count[moves.target] > 0
        return moves if held.all() else BlockMoves(moves.source[held], moves.target[held])
