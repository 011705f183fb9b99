"""How many bytes of keys and values a step's attention moves, and would move without sharing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forkdecode.kv.forest_plan import ForestPlan


@dataclass(frozen=True, slots=True)
class BytesMoved:
    """Of one step.

    naive: every row holds its own context, and beams copy it when they are reordered (one read for
    attention, a read and a write for the copy). paged: every row reads its own context, and nothing is
    copied. forest: what is read by a plan that shares, and moved besides for the sake of sharing.
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


def plan_bytes(
    plan: ForestPlan, *, num_heads: int, num_kv_heads: int, head_dim: int, element_bytes: int
) -> int:
    """What one layer of this shape moves by a plan: each node once, for tiles of queries that read the same
    blocks lie side by side; and partial results, float32: head_dim values and a log-sum-exp for each query
    head, once out and once in."""
    token = 2 * num_kv_heads * head_dim * element_bytes
    parts = plan.num_parts * num_heads * (head_dim + 1) * 4 * 2
    return (plan.node_tokens + plan.segment_tokens) * token + parts


def bytes_moved(
    plan: ForestPlan, *, num_heads: int, num_kv_heads: int, head_dim: int, element_bytes: int
) -> BytesMoved:
    """plan_bytes of a plan of decode rows alone, beside what these would move without sharing; naive: if
    they are beams."""
    paged = plan.row_tokens * 2 * num_kv_heads * head_dim * element_bytes
    forest = plan_bytes(
        plan,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        element_bytes=element_bytes,
    )
    return BytesMoved(3 * paged, paged, forest)
