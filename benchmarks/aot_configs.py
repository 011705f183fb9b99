"""Every kernel in the configurations that ship, as the ahead-of-time compiler wants them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.aot_attention import KV_HEADS, attention_configs
from benchmarks.aot_config import Config
from forkdecode_kernels.reference.random import GUMBEL_STREAM, UNIFORM_STREAM
from forkdecode_kernels.row_candidates import ROW_TILE
from forkdecode_kernels.triton import (
    beam_topk,
    beam_topk_kernels,
    copy_blocks,
    draw_kernels,
    filtered_draw,
    float_rows,
    perturbed,
    philox,
    write_kv,
)
from forkdecode_kernels.triton.tiles import Family, power_of_two

VOCAB = 262_144


def selection_configs() -> Iterator[Config]:
    """Beam selection, draws and random numbers, for up to 262,144 tokens."""
    readers = _topk_readers(beam_topk.TILE, beam_topk.SUMS_WARPS, beam_topk.COLLECT_WARPS)
    yield from _of_logits("beam_topk", readers, odd=True)
    yield from _between("beam_topk", VOCAB // beam_topk.TILE, *beam_topk.BOUND_SHAPES[1])
    warps = (beam_topk.tile_warps(ROW_TILE, most) for most in (beam_topk.SUMS_WARPS, beam_topk.COLLECT_WARPS))
    yield from _of_logits("row_topk", _topk_readers(ROW_TILE, *warps), odd=True)
    rows = VOCAB // ROW_TILE
    yield from _between("row_topk", rows, *beam_topk.BOUND_SHAPES[0])
    yield from _of_logits("draw", _draw_readers(filtered_draw.CHUNK), odd=True)
    yield Config(
        "uniforms",
        philox.uniforms_kernel,
        {"STREAM": UNIFORM_STREAM, "BLOCK": philox.BLOCK},
        types={"out_ptr": "*fp64"},
    )
    yield Config(
        "gumbels",
        philox.gumbels_kernel,
        {"STREAM": GUMBEL_STREAM, "BLOCK": philox.BLOCK},
        types={"out_ptr": "*fp64"},
    )
    yield Config(
        "gumbel_noise",
        perturbed.noisy_kernel,
        {"STREAM": GUMBEL_STREAM, "TILE": perturbed.TILE},
        types={"logprobs_ptr": "*fp32", "out_ptr": "*fp64"},
        aligned=("vocab",),
        wide=True,
    )


def _of_logits(kernel: str, readers: list[Config], *, odd: bool = False) -> Iterator[Config]:
    """Each of bf16 and of fp32 logits, whose rows begin at multiples of 16. odd: also of bf16 rows that begin
    anywhere, as with GPT-2's 50,257 tokens."""
    for reader in readers:
        for dtype in ("bf16", "fp32"):
            yield replace(
                reader,
                name=f"{kernel} {reader.name} {dtype}",
                types=reader.types | {"logits_ptr": f"*{dtype}"},
                aligned=("vocab",),
                wide=True,
            )
        if odd:
            yield replace(
                reader,
                name=f"{kernel} {reader.name} bf16 odd rows",
                types=reader.types | {"logits_ptr": "*bf16"},
                unaligned=("stride_row",),
            )


def _topk_readers(tile: int, sums_warps: int, collect_warps: int) -> list[Config]:
    sums, collect = beam_topk_kernels.tile_sums_kernel, beam_topk_kernels.collect_kernel
    return [
        Config("tile sums", sums, {"TILE": tile}, sums_warps),
        Config("collect", collect, {"TILE": tile}, collect_warps),
    ]


def _between(kernel: str, tiles: int, chunk: int, bound_warps: int) -> Iterator[Config]:
    """What is done with the tiles' sums."""
    for name, normalized in (("row sums", False), ("row bests", True)):
        constants = {"NORMALIZED": normalized, "BLOCK": tiles}
        yield Config(f"{kernel} {name}", beam_topk_kernels.row_sums_kernel, constants)
    bound = {"BITS": beam_topk.BOUND_BITS, "CHUNK": chunk}
    yield Config(f"{kernel} bound", beam_topk_kernels.bound_kernel, bound, bound_warps)


def _draw_readers(chunk: int) -> list[Config]:
    chunks = power_of_two(VOCAB // chunk)
    return [
        Config(
            "filters",
            draw_kernels.filter_rows_kernel,
            {"CHUNK": chunk},
            filtered_draw.FILTER_WARPS,
            registers=filtered_draw.FILTER_REGISTERS,
        ),
        Config("tokens", draw_kernels.draw_kernel, {"CHUNK": chunk, "CHUNKS": chunks}, 8),
        Config(
            "distribution",
            draw_kernels.distribution_kernel,
            {"CHUNK": chunk},
            8,
            types={"out_ptr": "*fp32"},
        ),
    ]


def row_configs() -> Iterator[Config]:
    """Rows of logits as float32, and masks of them."""
    tile, warps = beam_topk.TILE, beam_topk.tile_warps(beam_topk.TILE, beam_topk.SUMS_WARPS)
    yield Config("rows summed", float_rows.logsumexp_kernel, {"BLOCK": VOCAB // tile})
    copies = [
        Config(
            name,
            float_rows.float_rows_kernel,
            {"LOG_SOFTMAX": log_softmax, "TILE": tile},
            warps,
            types={"rows_ptr": "*i64", "out_ptr": "*fp32"},
        )
        for name, log_softmax in (("to float32", False), ("normalised", True))
    ]
    yield from _of_logits("rows", copies, odd=True)
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
    """Block copies and KV writes, of raw elements of 16 and 32 bits, in blocks of 1, 16 and 128 tokens."""
    for size, dim, bits in (
        (16, 128, 16),
        (1, 128, 16),
        (1, 80, 16),
        (128, 256, 16),
        (16, 128, 32),
        (1, 128, 32),
    ):
        slices, chunk = copy_blocks.program_shape(size * dim)
        yield Config(
            f"copy_blocks {bits} bits S{size} D{dim}",
            copy_blocks.copy_blocks_kernel,
            {"SLICES": slices, "CHUNK": chunk},
            types=dict.fromkeys(("source_ptr", "target_ptr"), f"*i{bits}"),
            aligned=("size",),
            wide=True,
        )
        block_h, padded = write_kv.program_shape(KV_HEADS, dim)
        yield Config(
            f"write_kv {bits} bits S{size} D{dim}",
            write_kv.write_kv_kernel,
            {
                "NUM_HEADS": KV_HEADS,
                "BLOCK_H": block_h,
                "HEAD_DIM": dim,
                "PADDED_DIM": padded,
                "BLOCK_SIZE": size,
            },
            2,
            types=dict.fromkeys(("key_ptr", "value_ptr", "cache_ptr"), f"*i{bits}"),
            wide=True,
        )


def shipped(family: Family, *, quick: bool = False) -> list[Config]:
    """All configurations of one table of tile shapes; quick: one of each kind that differs most."""
    attention = list(attention_configs(family, quick=quick))
    selection = list(selection_configs())
    if quick:
        return attention + [c for c in selection if c.name in ("beam_topk bound", "beam_topk collect bf16")]
    return [*attention, *selection, *row_configs(), *move_configs()]
