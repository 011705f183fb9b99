from __future__ import annotations

import pytest

from forkdecode.config import EngineConfig
from forkdecode.engine.sizing import MAX_BLOCKS, Capacity, size_pool
from forkdecode.errors import CapacityError

GIB = 2**30


def sized(**settings: object) -> Capacity:
    return size_pool(EngineConfig(**settings), 1 << 20, 8 * GIB, 16 * GIB)  # type: ignore[arg-type]


def test_sizes_and_shares() -> None:
    assert sized(kv_memory="2GiB").num_blocks == 2048
    assert sized(kv_memory="25%").num_blocks == 2048
    assert sized().num_blocks == 2048
    assert size_pool(EngineConfig(), 1 << 20, 8 * GIB, 16 * GIB, on_gpu=True).num_blocks == 7372
    assert sized(kv_memory=3 << 20).num_blocks == 3
    assert sized(num_blocks=7, kv_memory="1GiB").num_blocks == 7
    assert sized(swap_memory="1GiB").host_slots == 1024
    assert sized(swap_memory=0).host_slots == 0
    assert size_pool(EngineConfig(kv_memory="1GiB"), 1, 10**18, 10**18).num_blocks == GIB
    assert size_pool(EngineConfig(kv_memory="900000TB"), 1, 10**18, 10**18).num_blocks == MAX_BLOCKS


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kv_memory", "9GiB"), ("kv_memory", "1MB"), ("kv_memory", 0), ("kv_memory", "0.001%"),
        ("num_blocks", 8193), ("swap_memory", "17GiB"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(field: str, value: object) -> None:
    with pytest.raises(CapacityError, match=f"^{field}: ") as caught:
        sized(**{field: value})
    assert caught.value.field == field


def test_what_a_capacity_means() -> None:
    capacity = Capacity(1000, 16, 4096, 0)
    assert capacity.tokens == 16_000
    assert capacity.groups(4, 1024, 64) == 1000 // (64 + 4 * 4)
    assert capacity.groups(1, 5, 11) == 1000
    assert "1,000 blocks of 16 tokens = 16,000 tokens" in str(capacity)
