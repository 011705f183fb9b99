"""Tile shapes hold every group of query heads, in every family of GPUs."""

from __future__ import annotations

import pytest

from forkdecode_kernels.node_attention import HEAD_DIMS
from forkdecode_kernels.triton.tiles import Family, attention_tiles, merge_warps, padded_dim, tile_queries


@pytest.mark.parametrize("family", ["ampere", "cuda", "blackwell", "amd"])
@pytest.mark.parametrize("element_bytes", [2, 4])
def test_every_group_fits_its_tiles(family: Family, element_bytes: int) -> None:
    for dim in (1, 16, *HEAD_DIMS):
        for group in (1, 3, 7, 16, 24, 64, 71, 128):
            for tile in attention_tiles(dim, element_bytes, group, family):
                assert tile.block_m >= max(16, group)
                assert {tile.block_m.bit_count(), tile.block_n.bit_count(), tile.num_warps.bit_count()} == {1}
                assert tile.block_n >= 16, "the least that tensor cores take"
            small, large = tile_queries(dim, element_bytes, group, family)
            assert 1 <= small <= large


@pytest.mark.parametrize(("dim", "padded"), [(1, 64), (64, 64), (80, 128), (96, 128), (256, 256)])
def test_lanes_of_a_head(dim: int, padded: int) -> None:
    assert padded_dim(dim) == padded


@pytest.mark.parametrize(
    ("group", "dim", "warps"), [(1, 64, 2), (4, 128, 2), (4, 256, 2), (16, 128, 4), (24, 256, 8), (71, 64, 8)]
)
def test_warps_of_a_merge(group: int, dim: int, warps: int) -> None:
    assert merge_warps(group, dim) == warps
