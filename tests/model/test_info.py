from __future__ import annotations

from forkdecode.model.info import ModelInfo


def test_layers_of_equal_window_are_added_up() -> None:
    """Keys and values of bfloat16: 2 * K * D * 2 bytes a layer."""
    shapes, windows = ((2, 64), (2, 64), (1, 32)), (None, 128, None)
    info = ModelInfo("x", 100, 512, (0,), shapes, windows, "bfloat16", 0)
    assert info.kv_layers == ((None, 2 * 2 * 64 * 2 + 2 * 32 * 2), (128, 2 * 2 * 64 * 2))
