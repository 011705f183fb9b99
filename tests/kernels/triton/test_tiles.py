"""Tile shapes hold every group of query heads, in every family of GPUs."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from forkdecode_kernels.node_attention import HEAD_DIMS
from forkdecode_kernels.triton import tiles
from forkdecode_kernels.triton.tiles import (
    Family,
    Tile,
    attention_tiles,
    merge_launch,
    merge_shape,
    padded_dim,
    share_heads,
    tile_queries,
)

FAMILIES: tuple[Family, ...] = ("ampere", "cuda", "blackwell", "amd")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("element_bytes", [2, 4])
def test_every_group_fits_its_tiles(family: Family, element_bytes: int) -> None:
    for dim in (1, 16, *HEAD_DIMS):
        for group in (1, 3, 7, 16, 24, 33, 48, 64, 71, 128, 300):
            share = share_heads(dim, element_bytes, group, family)
            assert share == group or attention_tiles(dim, element_bytes, group, family)[1].block_m < group
            for tile in attention_tiles(dim, element_bytes, group, family):
                assert tile.block_m >= max(16, share)
                assert {tile.block_m.bit_count(), tile.block_n.bit_count(), tile.num_warps.bit_count()} == {1}
                assert tile.block_n >= 16, "the least that tensor cores take"
            small, large = tile_queries(dim, element_bytes, group, family)
            assert 1 <= small <= large
            assert large * share <= tile.block_m


@pytest.mark.parametrize(("dim", "padded"), [(1, 64), (64, 64), (80, 128), (96, 128), (256, 256)])
def test_lanes_of_a_head(dim: int, padded: int) -> None:
    assert padded_dim(dim) == padded


@pytest.mark.parametrize(
    ("group", "dim", "shape"),
    [
        (1, 64, (1, 2)), (4, 128, (4, 2)), (4, 256, (4, 2)), (16, 128, (16, 4)),
        (24, 128, (24, 8)), (24, 256, (12, 8)), (71, 64, (36, 8)), (128, 256, (16, 8)),
    ],
)  # fmt: skip
def test_merges_of_a_program(group: int, dim: int, shape: tuple[int, int]) -> None:
    """Query heads and warps."""
    assert merge_shape(group, dim) == shape


@pytest.mark.parametrize(("group", "share"), [(64, 64), (65, 33), (71, 36), (128, 64), (129, 43)])
def test_heads_beyond_a_tile_are_cut_into_equal_shares(group: int, share: int) -> None:
    assert share_heads(64, 2, group) == share


@pytest.mark.parametrize("family", FAMILIES)
def test_only_nvidias_compiler_is_told_registers(family: Family) -> None:
    """AMD's knows no such option."""
    for dim in HEAD_DIMS:
        for element_bytes in (2, 4):
            for tile in attention_tiles(dim, element_bytes, 4, family):
                for told in tile.registers:
                    assert told is None or (family != "amd" and told * 32 * tile.num_warps <= 65_536)


def test_a_tile_is_launched_as_it_says() -> None:
    shape = {"num_warps": 8, "num_stages": 2, "enable_fp_fusion": True}
    assert Tile(64, 32, 8, 2, (None, 255)).launch(score_options=False) == shape
    assert Tile(64, 32, 8, 2, (None, 255)).launch(score_options=True) == shape | {"maxnreg": 255}


def test_every_launch_says_that_products_and_sums_may_be_fused() -> None:
    """What is left to Triton's default depends on its version. By the source: a launch that says nothing
    computes the same in the interpreter."""
    launches, silent = 0, []
    for path in sorted(Path(tiles.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript):
                said = {ast.unparse(k.value).partition("(")[0] for k in node.keywords if k.arg is None}
                if ast.unparse(node.func.value).endswith("_kernel"):
                    launches += 1
                    if not said & {"FUSED", "tile.launch", "options"}:
                        silent.append(f"{path.name}:{node.lineno}")
    assert launches >= 21
    assert not silent
    assert merge_launch(4, 128)[1]["enable_fp_fusion"]
