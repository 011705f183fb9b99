"""Node lists by the compiled operation: what forkdecode.kv.forest_lists does by numpy, but faster."""

from __future__ import annotations

from forkdecode.kv.forest_items import Forest, ItemShape
from forkdecode.kv.forest_lists import StepTables
from forkdecode_kernels.forest import ForestShape, list_forest


def compiled_lister(tables: StepTables, shape: ItemShape, window: int | None) -> Forest:
    """A Lister."""
    compiled = ForestShape(
        shape.block_size,
        shape.tile_queries,
        shape.group,
        shape.num_kv_heads,
        shape.processors,
        shape.split_tokens,
        window,
    )
    return Forest(*list_forest(tables.blocks, tables.sizes, tables.num_tokens, compiled))
