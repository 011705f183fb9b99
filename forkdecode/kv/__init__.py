"""KV blocks: the pool, block tables, the prefix cache, host slots for swap. Block ids only, no data."""

from forkdecode.kv.block_pool import BlockAccountingError, BlockPool, Holder, OutOfBlocksError
from forkdecode.kv.block_table import BlockTable, Extension
from forkdecode.kv.bytes_moved import BytesMoved, bytes_moved, plan_bytes
from forkdecode.kv.forest import Sharing, sharing
from forkdecode.kv.forest_items import ItemShape
from forkdecode.kv.forest_plan import ForestPlan, ForestPlanner
from forkdecode.kv.held_row import HeldRow
from forkdecode.kv.prefix_cache import PrefixCache
from forkdecode.kv.step_reads import KvLayers, StepReads
from forkdecode.kv.swap import HostPool
from forkdecode.kv.table_image import TableImage

__all__ = [
    "BlockAccountingError",
    "BlockPool",
    "BlockTable",
    "BytesMoved",
    "Extension",
    "ForestPlan",
    "ForestPlanner",
    "HeldRow",
    "Holder",
    "HostPool",
    "ItemShape",
    "KvLayers",
    "OutOfBlocksError",
    "PrefixCache",
    "Sharing",
    "StepReads",
    "TableImage",
    "bytes_moved",
    "plan_bytes",
    "sharing",
]
