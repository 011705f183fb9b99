"""Node lists of a step, which attention on a GPU runs from: one for all layers of equal shape and window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from forkdecode.kv.bytes_moved import plan_bytes
from forkdecode.kv.forest_items import ItemShape
from forkdecode.kv.forest_plan import ForestPlan, ForestPlanner
from forkdecode.model.forest_lister import compiled_lister
from forkdecode.model.node_slices import Slice, sliced
from forkdecode.model.step_shape import StepShape
from forkdecode_kernels.node_list import (
    NodeCapacity,
    NodeList,
    NodeListPart,
    NodeSlice,
    SlicedNodes,
    node_list,
)
from forkdecode_kernels.triton.device import family
from forkdecode_kernels.triton.tiles import share_heads, tile_queries

Key = tuple[int, int, int, int | None]
"""A kind of layers: query heads, kv heads, head dim, window."""
LayerCounts = Mapping[Key, int]
"""How many layers of each kind there are."""


LEAST_ITEMS, LEAST_BLOCKS, LEAST_PARTS = 64, 4096, 1024
"""What a list that stays in place has room for in any case: see roomy."""
PART_BYTES = 512 * 1024 * 1024
"""Of a step's partial results, of all heads of a layer."""


class Planners:
    """A planner for each kind of layer, kept from step to step.

    batch_invariant: every node is split at fixed lengths, so that a group's results don't depend on its
    batch; else where it keeps the GPU busy, in tiles of two shapes. part_bytes: partial results of a layer
    that there is memory for.
    """

    def __init__(
        self,
        block_size: int,
        device: torch.device,
        part_bytes: int = PART_BYTES,
        batch_invariant: bool = True,
    ) -> None:
        self._invariant = batch_invariant
        self._block_size = block_size
        self._device = device
        self._part_bytes = part_bytes
        self._processors = 1
        if device.type == "cuda":
            self._processors = torch.cuda.get_device_properties(device).multi_processor_count
        self._planners: dict[Key, ForestPlanner] = {}
        self._element_bytes: dict[Key, int] = {}

    def plan_all(self, step: StepShape) -> dict[Key, ForestPlan]:
        """Those of all kinds of layers that were ever planned for, which after a step are the model's."""
        return {key: self.plan(key, width, step) for key, width in self._element_bytes.items()}

    def plan(self, key: Key, element_bytes: int, step: StepShape) -> ForestPlan:
        """The node list of a step for one kind of layer, on the host."""
        planner = self._planners.get(key)
        if planner is None:
            planner = self._planners[key] = self._planner(key, element_bytes)
            self._element_bytes[key] = element_bytes
        return planner.plan(step.segments, step.decodes, step.num_tokens)

    def too_large(self, planned: Mapping[Key, ForestPlan]) -> bool:
        """Whether some list has more parts than there is memory for: see NodePlans."""
        return any(plan.num_parts > self._most_parts(key) for key, plan in planned.items())

    def room(self, key: Key, plan: ForestPlan) -> NodeCapacity:
        """For a list that stays in place, with room to grow."""
        return roomy(NodeCapacity.of(plan), self._most_parts(key), causal=plan.causal)

    def slices(self, key: Key, element_bytes: int, step: StepShape) -> list[Slice]:
        """A step that is too large for one list of a kind of layer, in slices."""
        return sliced(step, self._most_parts(key), lambda part: self.plan(key, element_bytes, part).num_parts)

    def _most_parts(self, key: Key) -> int:
        """Of a list. A part is [H, D] values and [H] sums, float32."""
        heads, _, dim, _ = key
        return max(1, self._part_bytes // (4 * heads * (dim + 1)))

    def _planner(self, key: Key, element_bytes: int) -> ForestPlanner:
        heads, kv_heads, dim, window = key
        group, kind = heads // kv_heads, family(self._device)
        tiles = tile_queries(dim, element_bytes, group, kind)
        # What keeps processors busy are programs: a kv head of many query heads has several.
        programs = kv_heads * -(-group // share_heads(dim, element_bytes, group, kind))
        shape = ItemShape(self._block_size, tiles, group, programs, self._processors)
        return ForestPlanner(shape, window=window, invariant=self._invariant, lister=compiled_lister)


class NodePlans:
    """An AttentionPlans: makes each node list when the first layer of its kind asks, in slices where its
    partial results would take too much memory."""

    def __init__(self, planners: Planners, step: StepShape, device: torch.device) -> None:
        self._planners = planners
        self._step = step
        self._device = device
        self._made: list[tuple[Key, ForestPlan]] = []

    def plan(self, num_heads: int, kv: torch.Tensor, window: int | None) -> NodeList | SlicedNodes:
        """Lists in memory of their own. kv [2, K, B, S, D]."""
        key, width = key_of(num_heads, kv, window), kv.element_size()
        planned = self._planners.plan(key, width, self._step)
        if not self._planners.too_large({key: planned}):
            return self._listed(key, planned)
        return SlicedNodes(
            tuple(
                NodeSlice(s.start, s.stop, self._listed(key, self._planners.plan(key, width, s.shape)))
                for s in self._planners.slices(key, width, self._step)
            )
        )

    def _listed(self, key: Key, planned: ForestPlan) -> NodeList:
        self._made.append((key, planned))
        return node_list(planned, self._device)

    def moved(self, layers: LayerCounts, element_bytes: int) -> int:
        """See AttentionPlans."""
        return moved_by(self._made, layers, element_bytes)


class StaticLists:
    """An AttentionPlans over memory that stays in place from step to step: a list for each kind of layer."""

    def __init__(self, lists: Mapping[Key, NodeListPart]) -> None:
        self._lists = lists
        self._written: Mapping[Key, ForestPlan] = {}

    def plan(self, num_heads: int, kv: torch.Tensor, window: int | None) -> NodeList:
        """The list of its kind. kv [2, K, B, S, D]."""
        return self._lists[key_of(num_heads, kv, window)].nodes

    def moved(self, layers: LayerCounts, element_bytes: int) -> int:
        """See AttentionPlans."""
        return moved_by(self._written.items(), layers, element_bytes)

    def fit(self, planned: Mapping[Key, ForestPlan]) -> bool:
        """Whether there is room for the lists of another step."""
        return all(
            planned[key].causal == part.nodes.causal and _fits(NodeCapacity.of(planned[key]), part.capacity)
            for key, part in self._lists.items()
        )

    def write(self, planned: Mapping[Key, ForestPlan]) -> None:
        """Takes lists that fit, on the host."""
        for key, part in self._lists.items():
            part.write(planned[key])
        self._written = planned


def key_of(num_heads: int, kv: torch.Tensor, window: int | None) -> Key:
    """The kind of layer. kv [2, K, B, S, D]."""
    return num_heads, kv.shape[1], kv.shape[4], window


def moved_by(planned: Iterable[tuple[Key, ForestPlan]], layers: LayerCounts, element_bytes: int) -> int:
    """Bytes that attention of so many layers moves by these plans. See AttentionPlans.moved."""
    return sum(
        layers[heads, kv_heads, dim, window]
        * plan_bytes(plan, num_heads=heads, num_kv_heads=kv_heads, head_dim=dim, element_bytes=element_bytes)
        for (heads, kv_heads, dim, window), plan in planned
    )


def roomy(exact: NodeCapacity, most_parts: int, *, causal: bool) -> NodeCapacity:
    """Room to grow, in steps so coarse that steps of one number of tokens have few sizes: for each a graph is
    captured, which takes longer than a step. What is beyond a list costs its share of the copy to the device,
    and a program that ends at once for each item. most_parts: as many partial results as there is memory for.

    A tile shape that a step of rows alone does not use stays so, for a launch costs time; beside a prompt
    (`causal`) both have room.
    """
    tokens = exact.positions
    items, parts = max(LEAST_ITEMS, 2 * tokens), max(LEAST_PARTS, 4 * tokens)
    return NodeCapacity(
        small_items=_room(exact.small_items, items) if exact.small_items or causal else 0,
        large_items=_room(exact.large_items, items) if exact.large_items or causal else 0,
        blocks=_room(exact.blocks, max(LEAST_BLOCKS, 64 * tokens)),
        queries=tokens,
        positions=tokens,
        merged=tokens,
        merge_parts=_room(exact.merge_parts, parts),
        parts=max(min(_room(exact.parts, parts), most_parts), exact.parts),
    )


def _room(needed: int, least: int) -> int:
    """The next power of four that neither exceeds."""
    bits = (max(needed, least) - 1).bit_length()
    return 1 << (bits + bits % 2)


def _fits(needed: NodeCapacity, room: NodeCapacity) -> bool:
    return needed.positions == room.positions and all(
        getattr(needed, name) <= getattr(room, name) for name in NodeCapacity.__slots__
    )
