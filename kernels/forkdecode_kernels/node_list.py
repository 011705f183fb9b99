"""Which queries read which blocks, as a list of work items: what attention on a GPU runs from.

A node is a range of blocks that some queries share; an item is a node, or a part of one, for as many
queries as one program takes. Queries that belong to several items get partial results, which are
merged. Everything is int32 in one buffer, so that a step needs one copy to the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.staged import StagedMemory, StagedPart
from forkdecode_kernels.transfer import places

I32 = NDArray[np.int32]

ITEM_WIDTH = 8
"""Fields of an item: first entry and number of entries in `queries`; first entry in `blocks`; number
of tokens in them; position of the first of these; number of the first query's part (the others follow),
or -1 to write the output itself; two are unused. Items begin where a block begins."""

_COUNT_WIDTH = 4


class NodeArrays(Protocol):
    """The list on the host.

    small_items [a, 8], large_items [b, 8]: items for the two tile shapes. blocks: flat block ids.
    queries: flat query tokens; positions [T]: of each query token in its sequence.
    merged [m]: queries that are put together from parts; merge_offsets [m + 1], merge_parts: which.
    num_parts: parts are numbered below this. causal: whether some query must not see all of an item.
    """

    @property
    def small_items(self) -> I32: ...
    @property
    def large_items(self) -> I32: ...
    @property
    def blocks(self) -> I32: ...
    @property
    def queries(self) -> I32: ...
    @property
    def positions(self) -> I32: ...
    @property
    def merged(self) -> I32: ...
    @property
    def merge_offsets(self) -> I32: ...
    @property
    def merge_parts(self) -> I32: ...
    @property
    def num_parts(self) -> int: ...
    @property
    def causal(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """Largest sizes that a buffer takes; launches cover them all, whatever the list holds."""

    small_items: int
    large_items: int
    blocks: int
    queries: int
    positions: int
    merged: int
    merge_parts: int
    parts: int

    @staticmethod
    def of(arrays: NodeArrays) -> NodeCapacity:
        """Just what these arrays need."""
        return NodeCapacity(
            len(arrays.small_items),
            len(arrays.large_items),
            len(arrays.blocks),
            len(arrays.queries),
            len(arrays.positions),
            len(arrays.merged),
            len(arrays.merge_parts),
            arrays.num_parts,
        )


@dataclass(frozen=True, slots=True)
class NodeList:
    """The list on the device: views of one int32 tensor, of full capacity.

    counts [3, 4]: in column 0 the small items, large items and merged queries there are.
    """

    counts: torch.Tensor
    small_items: torch.Tensor
    large_items: torch.Tensor
    blocks: torch.Tensor
    queries: torch.Tensor
    positions: torch.Tensor
    merged: torch.Tensor
    merge_offsets: torch.Tensor
    merge_parts: torch.Tensor
    num_parts: int
    causal: bool


@dataclass(frozen=True, slots=True)
class NodeSlice:
    """Query tokens start .. stop, and a list of their own, which counts them from `start`."""

    start: int
    stop: int
    nodes: NodeList


@dataclass(frozen=True, slots=True)
class SlicedNodes:
    """All query tokens in slices, in order: for lists whose partial results would take too much memory."""

    slices: tuple[NodeSlice, ...]


class NodeListPart:
    """A node list at a fixed place on the device: a part of memory that its owner sends there.

    causal: whether the kernels mask by position; a part without takes only lists without.
    """

    def __init__(self, capacity: NodeCapacity, part: StagedPart, *, causal: bool = False) -> None:
        self.capacity = capacity
        sizes, (starts, _) = _sections(capacity), places(_array_bytes(capacity))
        host = part.host.view(torch.int32).numpy()
        device = part.device.view(torch.int32)
        spans = {
            name: slice(at // 4, at // 4 + n) for at, (name, n) in zip(starts, sizes.items(), strict=True)
        }
        self._sections = {name: host[span] for name, span in spans.items()}
        views = {name: device[span] for name, span in spans.items()}
        for name, width in (
            ("counts", _COUNT_WIDTH),
            ("small_items", ITEM_WIDTH),
            ("large_items", ITEM_WIDTH),
        ):
            views[name] = views[name].view(-1, width)
        self.nodes = NodeList(**views, num_parts=capacity.parts, causal=causal)

    def write(self, arrays: NodeArrays) -> None:
        """Takes a new list, on the host. Raises ValueError where it exceeds the capacity, having changed
        nothing."""
        needed = NodeCapacity.of(arrays)
        for name in NodeCapacity.__slots__:
            if getattr(needed, name) > getattr(self.capacity, name):
                raise ValueError(
                    f"{name}: {getattr(needed, name)} exceed the buffer's {getattr(self.capacity, name)}"
                )
        if arrays.causal and not self.nodes.causal:
            raise ValueError("causal: this buffer takes lists of which each query sees every item whole")
        self._sections["counts"][::_COUNT_WIDTH] = (
            needed.small_items,
            needed.large_items,
            needed.merged,
        )
        for name in (
            "small_items",
            "large_items",
            "blocks",
            "queries",
            "positions",
            "merged",
            "merge_offsets",
            "merge_parts",
        ):
            values = getattr(arrays, name).ravel()
            self._sections[name][: len(values)] = values


class NodeListBuffer:
    """A node list in memory of its own, refilled by one copy a step. causal: see NodeListPart."""

    def __init__(self, capacity: NodeCapacity, device: torch.device, *, causal: bool = False) -> None:
        self._memory = StagedMemory([list_bytes(capacity)], device)
        self._part = NodeListPart(capacity, self._memory.parts[0], causal=causal)

    def fill(self, arrays: NodeArrays) -> NodeList:
        """Takes a new list. Raises ValueError where it exceeds the capacity, having changed nothing.

        The copy runs on the current stream; the next fill waits for it.
        """
        self._memory.begin()
        self._part.write(arrays)
        self._memory.send()
        return self._part.nodes


def _sections(capacity: NodeCapacity) -> dict[str, int]:
    """Numbers of each array."""
    return {
        "counts": 3 * _COUNT_WIDTH,
        "small_items": capacity.small_items * ITEM_WIDTH,
        "large_items": capacity.large_items * ITEM_WIDTH,
        "blocks": capacity.blocks,
        "queries": capacity.queries,
        "positions": capacity.positions,
        "merged": capacity.merged,
        "merge_offsets": capacity.merged + 1,
        "merge_parts": capacity.merge_parts,
    }


def _array_bytes(capacity: NodeCapacity) -> list[int]:
    """Bytes of each array."""
    return [4 * n for n in _sections(capacity).values()]


def list_bytes(capacity: NodeCapacity) -> int:
    """Of a whole list, whose arrays begin at multiples of 16, so that loads can be wide."""
    return places(_array_bytes(capacity))[1]


def node_list(arrays: NodeArrays, device: torch.device) -> NodeList:
    """The list on `device`, in a buffer of its own."""
    return NodeListBuffer(NodeCapacity.of(arrays), device, causal=arrays.causal).fill(arrays)


def check_nodes(arrays: NodeArrays, num_blocks: int, num_tokens: int, block_size: int) -> None:
    """Raises ValueError where a list would read or write outside its arrays, a cache of num_blocks
    blocks or num_tokens query tokens."""
    items = np.concatenate([arrays.small_items, arrays.large_items])
    if items.ndim != 2 or items.shape[1] != ITEM_WIDTH:
        raise ValueError(f"items are {items.shape}; must be [n, {ITEM_WIDTH}]")
    first, count, block, tokens, position, part = items.T[:6]
    ends = block + -(-tokens // block_size)
    _check((items.T[:5] >= 0).all() and (count > 0).all(), "items: negative or empty")
    _check((first + count <= len(arrays.queries)).all(), "items: queries beyond the list")
    _check((ends <= len(arrays.blocks)).all(), "items: blocks beyond the list")
    _check((position % block_size == 0).all(), "items: must begin where a block begins")
    _check(((part < 0) | (part + count <= arrays.num_parts)).all(), "items: parts beyond num_parts")
    _check(_within(arrays.blocks, num_blocks), f"blocks: must be below {num_blocks}")
    _check(_within(arrays.queries, num_tokens), f"queries: must be below {num_tokens}")
    _check(_within(arrays.merged, num_tokens), f"merged: must be below {num_tokens}")
    _check(_within(arrays.merge_parts, arrays.num_parts), "merge_parts: must be below num_parts")
    offsets = arrays.merge_offsets
    _check(len(offsets) == len(arrays.merged) + 1 and offsets[0] == 0, "merge_offsets: wrong shape")
    _check((np.diff(offsets) >= 0).all(), "merge_offsets: must not fall")
    _check(offsets[-1] == len(arrays.merge_parts), "merge_offsets: must end at the last part")
    _check(len(arrays.positions) == num_tokens, f"positions: must be [{num_tokens}]")


def _within(values: I32, bound: int) -> bool:
    return not len(values) or (int(values.min()) >= 0 and int(values.max()) < bound)


def _check(ok: bool | np.bool_, problem: str) -> None:
    if not ok:
        raise ValueError(problem)
