"""What attention has to move, by hand."""

from __future__ import annotations

import numpy as np

from benchmarks.gpu.cases import Model
from benchmarks.gpu.tables import compulsory_bytes


def test_compulsory_bytes_are_each_key_once_and_each_row_twice() -> None:
    model = Model(heads=4, kv_heads=2, dim=8, block_size=16)
    tables = np.array([[3, 5, 1], [3, 5, 2], [3, 0, 0]], np.int32)
    lengths = np.array([40, 33, 7], np.int32)
    # Blocks 3 and 5 whole, 8 tokens of block 1 and one of block 2; a table's padding is nothing.
    tokens = 16 + 16 + 8 + 1
    assert compulsory_bytes(tables, lengths, model, 2) == tokens * 2 * 2 * 8 * 2 + 3 * 2 * 4 * 8 * 2
