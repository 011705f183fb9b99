"""Every kernel in the configurations that ship, as the ahead-of-time compiler wants them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.aot_config import Config
from forkdecode_kernels.node_attention import HEAD_DIMS
from forkdecode_kernels.reference.perturbed import LEAST
from forkdecode_kernels.row_candidates import ROW_TILE
from forkdecode_kernels.triton import (
    beam_topk,
    beam_topk_kernels,
    copy_blocks,
    draw_kernels,
    filtered_draw,
    float_rows,
    node_attention,
    paged_decode,
    perturbed,
    philox,
    write_kv,
)
from forkdecode_kernels.triton.tiles import Family, attention_tiles, padded_dim, power_of_two


def attention_configs(family: Family, *, quick: bool) -> Iterator[Config]:
    """Both tile shapes of every head dim and type: plain decode; bf16 also causal and with every option."""
    shapes = [(128, torch.bfloat16)] if quick else [(d, t) for d in HEAD_DIMS for t in _TYPES]
    for dim, dtype in shapes:
        tiles = attention_tiles(dim, dtype.itemsize, 4, family)
        for size, tile in zip(("small", "large"), tiles, strict=True):
            for variant, flags in _variants(dtype, quick):
                yield Config(
                    f"node_attention {variant} D{dim} {_TYPES[dtype]} {size} {tile.block_m}x{tile.block_n}",
                    node_attention.node_attention_kernel,
                    _attention_constants(dim, tile.block_m, tile.block_n)
                    | {name: name in flags for name in ("CAUSAL", "WINDOW", "SOFTCAP", "SINKS")},
                    tile.num_warps,
                    tile.num_stages,
                    _attention_types(_TYPES[dtype]),
                    wide=True,
                )
        small = tiles[0]
        if not quick:
            yield Config(
                f"paged_decode D{dim} {_TYPES[dtype]} {small.block_m}x{small.block_n}",
                paged_decode.paged_decode_kernel,
                _attention_constants(dim, small.block_m, small.block_n)
                | {"NUM_SPLITS": 1, "WINDOW": False, "SOFTCAP": False, "SINKS": False},
                small.num_warps,
                small.num_stages,
                _attention_types(_TYPES[dtype]),
                wide=True,
            )
        constants = {"GROUP": 4, "NUM_HEADS": 32, "BLOCK_G": 4, "HEAD_DIM": dim, "SINKS": True}
        yield Config(
            f"merge_parts D{dim} {_TYPES[dtype]}",
            node_attention.merge_parts_kernel,
            constants | {"PADDED_DIM": padded_dim(dim), "EMULATE": False},
            2,
            types=_attention_types(_TYPES[dtype]),
        )


_TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


def _variants(dtype: torch.dtype, quick: bool) -> list[tuple[str, tuple[str, ...]]]:
    every = [
        ("decode", ()),
        ("causal", ("CAUSAL",)),
        ("all options", ("CAUSAL", "WINDOW", "SOFTCAP", "SINKS")),
    ]
    return every[:1] if quick or dtype != torch.bfloat16 else every


def _attention_constants(dim: int, block_m: int, block_n: int) -> dict[str, Any]:
    return {
        "GROUP": 4,
        "NUM_HEADS": 32,
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "HEAD_DIM": dim,
        "PADDED_DIM": padded_dim(dim),
        "BLOCK_SIZE": 16,
        "EMULATE": False,
    }


def _attention_types(name: str) -> dict[str, str]:
    return dict.fromkeys(("q_ptr", "key_ptr", "value_ptr", "out_ptr", "sink_ptr"), f"*{name}")


def selection_configs() -> Iterator[Config]:
    """Beam selection, draws and random numbers, for bf16 logits of up to 262,144 tokens."""
    logits = {"logits_ptr": "*bf16"}
    tiles = 262_144 // beam_topk.TILE
    yield Config(
        "beam_topk tile sums",
        beam_topk_kernels.tile_sums_kernel,
        {"TILE": beam_topk.TILE},
        types=logits,
        aligned=("vocab",),
        wide=True,
    )
    yield Config(
        "beam_topk row sums", beam_topk_kernels.row_sums_kernel, {"NORMALIZED": False, "BLOCK": tiles}
    )
    yield Config(
        "beam_topk bound",
        beam_topk_kernels.bound_kernel,
        {"BITS": beam_topk.BOUND_BITS, "CHUNK": beam_topk.BOUND_CHUNK},
        16,
    )
    yield Config(
        "beam_topk collect",
        beam_topk_kernels.collect_kernel,
        {"TILE": beam_topk.TILE},
        beam_topk.COLLECT_WARPS,
        types=logits,
        aligned=("vocab",),
        wide=True,
    )
    rows = 262_144 // ROW_TILE
    yield Config(
        "row_topk tile sums",
        beam_topk_kernels.tile_sums_kernel,
        {"TILE": ROW_TILE},
        beam_topk.tile_warps(ROW_TILE, beam_topk.SUMS_WARPS),
        types=logits,
        aligned=("vocab",),
        wide=True,
    )
    yield Config("row_topk row sums", beam_topk_kernels.row_sums_kernel, {"NORMALIZED": False, "BLOCK": rows})
    yield Config(
        "row_topk bound", beam_topk_kernels.bound_kernel, {"BITS": beam_topk.BOUND_BITS, "CHUNK": rows}
    )
    yield Config(
        "row_topk collect",
        beam_topk_kernels.collect_kernel,
        {"TILE": ROW_TILE},
        beam_topk.tile_warps(ROW_TILE, beam_topk.COLLECT_WARPS),
        types=logits,
        aligned=("vocab",),
        wide=True,
    )
    chunk, chunks = filtered_draw.CHUNK, power_of_two(262_144 // filtered_draw.CHUNK)
    yield Config(
        "draw filters",
        draw_kernels.filter_rows_kernel,
        {"CHUNK": chunk},
        8,
        types=logits,
        aligned=("vocab",),
        wide=True,
    )
    yield Config(
        "draw tokens",
        draw_kernels.draw_kernel,
        {"CHUNK": chunk, "CHUNKS": chunks},
        8,
        types=logits,
        aligned=("vocab",),
        wide=True,
    )
    yield Config(
        "draw distribution",
        draw_kernels.distribution_kernel,
        {"CHUNK": chunk},
        8,
        types=logits | {"out_ptr": "*fp32"},
        aligned=("vocab",),
        wide=True,
    )
    yield Config(
        "uniforms",
        philox.uniforms_kernel,
        {"STREAM": philox.UNIFORM_STREAM, "BLOCK": philox.BLOCK},
        types={"out_ptr": "*fp64"},
    )
    yield Config(
        "gumbels",
        philox.gumbels_kernel,
        {"STREAM": philox.GUMBEL_STREAM, "BLOCK": philox.BLOCK},
        types={"out_ptr": "*fp64"},
    )

    yield Config(
        "gumbel_noise",
        perturbed.noisy_kernel,
        {"LEAST": float(LEAST), "STREAM": philox.GUMBEL_STREAM, "TILE": perturbed.TILE},
        types={"logprobs_ptr": "*fp32", "out_ptr": "*fp64"},
        aligned=("vocab",),
        wide=True,
    )


def row_configs() -> Iterator[Config]:
    """Rows of bf16 logits as float32, and masks of them."""
    shape = {"logits_ptr": "*bf16", "rows_ptr": "*i64", "out_ptr": "*fp32"}
    tile, warps = beam_topk.TILE, beam_topk.tile_warps(beam_topk.TILE, beam_topk.SUMS_WARPS)
    yield Config("rows summed", float_rows.logsumexp_kernel, {"BLOCK": 262_144 // tile})
    for name, log_softmax in (("rows to float32", False), ("rows normalised", True)):
        yield Config(
            name,
            float_rows.float_rows_kernel,
            {"LOG_SOFTMAX": log_softmax, "TILE": tile},
            warps,
            types=shape,
            aligned=("vocab",),
            wide=True,
        )
    yield Config(
        "rows masked by bits",
        float_rows.keep_bits_kernel,
        {"WORDS": float_rows.WORDS},
        8,
        types={"values_ptr": "*fp32", "rows_ptr": "*i64"},
        aligned=("vocab",),
    )
    yield Config(
        "rows bits of lists",
        float_rows.set_bits_kernel,
        {"ENTRIES": float_rows.ENTRIES},
        types={"tokens_ptr": "*i32"},
    )


def move_configs() -> Iterator[Config]:
    """Block copies and KV writes, of raw 16-bit elements."""
    yield Config(
        "copy_blocks S16 D128",
        copy_blocks.copy_blocks_kernel,
        {"SLICES": 2, "CHUNK": 2048},
        types={"source_ptr": "*i16", "target_ptr": "*i16"},
        aligned=("size",),
        wide=True,
    )
    yield Config(
        "write_kv K8 D128",
        write_kv.write_kv_kernel,
        {"NUM_HEADS": 8, "BLOCK_H": 8, "HEAD_DIM": 128, "PADDED_DIM": 128, "BLOCK_SIZE": 16},
        2,
        types=dict.fromkeys(("key_ptr", "value_ptr", "cache_ptr"), "*i16"),
        wide=True,
    )


def shipped(family: Family, *, quick: bool = False) -> list[Config]:
    """All configurations of one table of tile shapes; quick: one of each kind that differs most."""
    attention = list(attention_configs(family, quick=quick))
    selection = list(selection_configs())
    return attention + (selection[2:4] if quick else [*selection, *row_configs(), *move_configs()])
