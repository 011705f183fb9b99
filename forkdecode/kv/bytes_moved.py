"""How many bytes of keys and values a step's attention moves, and would move without sharing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forkdecode.kv.forest_plan import ForestPlan


@dataclass(frozen=True, slots=True)
class BytesMoved:
    """Of one step.

    naive: beams that each hold their own context and copy it when they are reordered (one read for
    attention, a read and a write for the copy). paged: every row reads its own context. forest: what
    rows share is read once.
    """

    naive: int
    paged: int
    forest: int

    @property
    def gain(self) -> float:
        """What rows without sharing read for each byte that the forest moves."""
        return self.paged / self.forest if self.forest else 1.0

    def __add__(self, other: BytesMoved) -> BytesMoved:
        return BytesMoved(self.naive + other.naive, self.paged + other.paged, self.forest + other.forest)


NO_BYTES = BytesMoved(0, 0, 0)


def bytes_moved(
    plan: ForestPlan, *, num_heads: int, num_kv_heads: int, head_dim: int, element_bytes: int
) -> BytesMoved:
    """Of a step's decode rows, counted from its plan, for one layer of this shape. The forest's partial
    results are counted too, float32: head_dim values and a log-sum-exp for each query head, once out and
    once in."""
    token = 2 * num_kv_heads * head_dim * element_bytes
    paged = plan.row_tokens * token
    parts = plan.num_parts * num_heads * (head_dim + 1) * 4 * 2
    return BytesMoved(3 * paged, paged, plan.node_tokens * token + parts)
