"""The attention kernels in the configurations that ship, as the ahead-of-time compiler wants them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.aot_config import Config
from forkdecode_kernels.node_attention import HEAD_DIMS
from forkdecode_kernels.triton import node_attention, paged_decode
from forkdecode_kernels.triton.tiles import (
    Family,
    Tile,
    attention_tiles,
    merge_shape,
    padded_dim,
    power_of_two,
    share_heads,
)

KV_HEADS = 8
SPLITS = 8
"""Programs that share a row's tokens, where there is a split."""
_TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
_OPTIONS = ("WINDOW", "SOFTCAP", "SINKS")


@dataclass(frozen=True)
class Shape:
    """One model's attention. group: query heads of a kv head. block_size: tokens."""

    dim: int = 128
    dtype: torch.dtype = torch.bfloat16
    group: int = 4
    block_size: int = 16

    @property
    def label(self) -> str:
        """What differs from the usual group and block is named."""
        group = f" G{self.group}" if self.group != 4 else ""
        block = f" S{self.block_size}" if self.block_size != 16 else ""
        return f"D{self.dim} {_TYPES[self.dtype]}{group}{block}"

    def tiles(self, family: Family) -> tuple[Tile, Tile]:
        """The small and the large one."""
        return attention_tiles(self.dim, self.dtype.itemsize, self.group, family)

    def share(self, family: Family) -> int:
        """Query heads of a kv head that a program has."""
        return share_heads(self.dim, self.dtype.itemsize, self.group, family)


MODELS = tuple(Shape(dim, dtype) for dim in HEAD_DIMS for dtype in _TYPES)
BLOCK_SIZES = (Shape(block_size=1), Shape(block_size=128))
GROUPS = (
    *(Shape(group=group) for group in (1, 7, 24, 71, 128)),
    Shape(dim=64, group=71),
    Shape(dim=64, dtype=torch.float32, group=71),
    Shape(dim=256, dtype=torch.float32, group=128),
)
"""None, one that is no power of two, one that is larger than the small tile, and some that are larger than
the large one: Falcon-7B has 71 query heads of 64 for its one kv head."""


def attention_configs(family: Family, *, quick: bool) -> Iterator[Config]:
    """Every head dim and type, and bf16 with every option; then other block sizes and groups."""
    if quick:
        yield from _nodes(Shape(), family, ("decode",))
        yield _merge(Shape())
        return
    for shape in MODELS:
        every = shape.dtype == torch.bfloat16
        yield from _nodes(shape, family, ("decode", "causal", "all options") if every else ("decode",))
        yield _paged(shape, family)
        if shape == Shape():
            yield _paged(shape, family, "all options", _OPTIONS)
            yield _paged(shape, family, f"{SPLITS} splits", _OPTIONS[:2], SPLITS)
        yield _merge(shape)
    for shape in (*BLOCK_SIZES, *GROUPS):
        yield from _nodes(shape, family, ("decode", "all options"))
        yield _paged(shape, family)
    for shape in GROUPS:
        yield _merge(shape)


_VARIANTS = {"decode": (), "causal": ("CAUSAL",), "all options": ("CAUSAL", *_OPTIONS)}


def _nodes(shape: Shape, family: Family, variants: tuple[str, ...]) -> Iterator[Config]:
    for size, tile in zip(("small", "large"), shape.tiles(family), strict=True):
        for variant in variants:
            yield Config(
                f"node_attention {variant} {shape.label} {size} {tile.block_m}x{tile.block_n}",
                node_attention.node_attention_kernel,
                _constants(shape, tile, family) | _flags(("CAUSAL", *_OPTIONS), _VARIANTS[variant]),
                tile.num_warps,
                tile.num_stages,
                _types(shape),
                wide=True,
                registers=_registers(tile, _VARIANTS[variant]),
            )


def _paged(
    shape: Shape, family: Family, variant: str = "", flags: tuple[str, ...] = (), splits: int = 1
) -> Config:
    tile, _ = shape.tiles(family)
    name = f"paged_decode {variant} {shape.label} {tile.block_m}x{tile.block_n}"
    return Config(
        " ".join(name.split()),
        paged_decode.paged_decode_kernel,
        _constants(shape, tile, family) | {"NUM_SPLITS": splits} | _flags(_OPTIONS, flags),
        tile.num_warps,
        tile.num_stages,
        _types(shape),
        wide=True,
        registers=_registers(tile, flags),
    )


def _merge(shape: Shape) -> Config:
    share, warps = merge_shape(shape.group, shape.dim)
    constants = {
        "GROUP": shape.group,
        "SHARE": share,
        "NUM_HEADS": KV_HEADS * shape.group,
        "BLOCK_G": power_of_two(share),
        "HEAD_DIM": shape.dim,
        "PADDED_DIM": padded_dim(shape.dim),
        "SINKS": True,
        "EMULATE": False,
    }
    return Config(
        f"merge_parts {shape.label}",
        node_attention.merge_parts_kernel,
        constants,
        warps,
        types={name: kind for name, kind in _types(shape).items() if name in ("out_ptr", "sink_ptr")},
    )


def _constants(shape: Shape, tile: Tile, family: Family) -> dict[str, Any]:
    return {
        "GROUP": shape.group,
        "SHARE": shape.share(family),
        "NUM_HEADS": KV_HEADS * shape.group,
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "HEAD_DIM": shape.dim,
        "PADDED_DIM": padded_dim(shape.dim),
        "BLOCK_SIZE": shape.block_size,
        "EMULATE": False,
    }


def _flags(names: tuple[str, ...], on: tuple[str, ...]) -> dict[str, Any]:
    return {name: name in on for name in names}


def _registers(tile: Tile, on: tuple[str, ...]) -> int | None:
    """Sinks are no score option: they join after the loop."""
    return tile.launch(score_options=not {"SINKS"}.issuperset(on)).get("maxnreg")


def _types(shape: Shape) -> dict[str, str]:
    pointers = ("q_ptr", "key_ptr", "value_ptr", "out_ptr", "sink_ptr")
    return dict.fromkeys(pointers, f"*{_TYPES[shape.dtype]}")
