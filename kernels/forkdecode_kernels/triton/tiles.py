"""Tile shapes of the attention kernels: a table, since what fits depends on registers and shared memory.

Checked ahead of time for every shipped combination (no spills, shared memory within the target's
limit) by benchmarks/aot_report.py; nothing here needs a GPU or triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FUSED = {"enable_fp_fusion": True}
"""Of every launch: a product and a sum may be one rounding. Triton 3.10 has it off unless it is asked for."""


@dataclass(frozen=True, slots=True)
class Tile:
    """block_m rows (queries times the heads of a GQA group) by block_n keys. registers: of a thread at most,
    without and with score options (a causal mask, a window, a soft-cap), for NVIDIA's compiler, which left to
    itself aims at an occupancy of its own, and may spill for that."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    registers: tuple[int | None, int | None] = (None, None)

    def launch(self, *, score_options: bool) -> dict[str, int]:
        """As Triton's options."""
        most = self.registers[score_options]
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages} | FUSED
        return options if most is None else options | {"maxnreg": most}


# By padded head dim and bytes an element; 16 rows are the least that tensor cores take.
_SMALL = {
    (64, 2): Tile(16, 64, 4, 3),
    (128, 2): Tile(16, 64, 4, 3),
    (256, 2): Tile(16, 32, 4, 2),
    (64, 4): Tile(16, 32, 4, 2),
    (128, 4): Tile(16, 16, 4, 2),
    (256, 4): Tile(16, 16, 4, 2),
}
_LARGE = {
    (64, 2): Tile(64, 64, 4, 3),
    (128, 2): Tile(64, 64, 8, 3),
    (256, 2): Tile(64, 32, 8, 2),
    (64, 4): Tile(32, 32, 8, 2),
    (128, 4): Tile(32, 16, 8, 2),
    (256, 4): Tile(32, 16, 8, 2),
}

# A head dim that is no power of two has masks, which take registers.
_LARGE_MASKED = {(128, 2): Tile(64, 32, 4, 3)}

# With 64 keys, or with more stages, some groups and block sizes spill there.
_LARGE_AMPERE = {
    (64, 2): Tile(64, 64, 4, 3, (None, 255)),
    (128, 2): Tile(64, 32, 8, 2, (None, 255)),
}

# Told nothing, the compiler aims at five programs there, and spills.
_LARGE_HOPPER = {(64, 4): Tile(32, 32, 8, 2, (255, None))}

# The compiler holds to 128 registers a thread there, sooner spilling than using more; in some groups to 80.
_LARGE_BLACKWELL = {
    (64, 2): Tile(64, 64, 4, 3, (None, 168)),
    (128, 2): Tile(64, 32, 8, 2, (128, 128)),
    (256, 2): Tile(64, 16, 8, 3),
}
_LARGE_BLACKWELL_MASKED = {(128, 2): Tile(64, 32, 4, 2)}

# AMD's matrix units keep the accumulators in vector registers.
_LARGE_AMD = {
    (64, 2): Tile(64, 32, 4, 2),
    (128, 2): Tile(64, 32, 4, 2),
    (256, 2): Tile(32, 32, 4, 2),
    (64, 4): Tile(16, 32, 4, 2),
    (128, 4): Tile(16, 32, 4, 2),
    (256, 4): Tile(16, 16, 4, 2),
}

Family = Literal["ampere", "cuda", "blackwell", "amd"]
"""GPUs of one table: NVIDIA's before Hopper, Hopper, NVIDIA's later ones, AMD's."""


def power_of_two(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << (n - 1).bit_length()


def padded_dim(head_dim: int) -> int:
    """Lanes that hold head_dim: a power of two, 64 at least (so that one table serves small models)."""
    return max(64, power_of_two(head_dim))


def share_heads(head_dim: int, element_bytes: int, group: int, family: Family = "cuda") -> int:
    """Of the `group` query heads of a kv head, how many share a tile: all, or an equal share where the large
    tile doesn't hold them. Larger tiles would spill."""
    return _equal_share(group, _large(head_dim, element_bytes, family).block_m)


def attention_tiles(
    head_dim: int, element_bytes: int, group: int, family: Family = "cuda"
) -> tuple[Tile, Tile]:
    """The small and the large tile: the large one for both where the small one doesn't hold the query heads
    of a kv head that share a tile."""
    small, large = _SMALL[padded_dim(head_dim), element_bytes], _large(head_dim, element_bytes, family)
    fits = share_heads(head_dim, element_bytes, group, family) <= small.block_m
    return small if fits else large, large


def tile_queries(head_dim: int, element_bytes: int, group: int, family: Family = "cuda") -> tuple[int, int]:
    """Queries that an item of each tile shape holds at most."""
    small, large = attention_tiles(head_dim, element_bytes, group, family)
    heads = share_heads(head_dim, element_bytes, group, family)
    return small.block_m // heads, large.block_m // heads


def merge_shape(group: int, head_dim: int) -> tuple[int, int]:
    """Of the `group` query heads of a kv head, how many one program merges the parts of, and its warps: each
    thread holds 8 numbers of a usual model's, 16 at most."""
    share = _equal_share(group, 4096 // padded_dim(head_dim))
    return share, max(2, min(8, power_of_two(share) * padded_dim(head_dim) // 512))


def merge_launch(group: int, head_dim: int) -> tuple[int, dict[str, int]]:
    """The same with the warps as Triton's options."""
    share, warps = merge_shape(group, head_dim)
    return share, {"num_warps": warps} | FUSED


def _equal_share(count: int, most: int) -> int:
    shares = -(-count // most)
    return -(-count // shares)


def _large(head_dim: int, element_bytes: int, family: Family) -> Tile:
    key = (padded_dim(head_dim), element_bytes)
    masked = head_dim & (head_dim - 1) != 0
    tables = [_LARGE]
    if family == "ampere":
        tables.append(_LARGE_AMPERE)
    elif family == "cuda":
        tables.append(_LARGE_HOPPER)
    if masked:
        tables.append(_LARGE_MASKED)
    if family == "blackwell":
        tables += [_LARGE_BLACKWELL, _LARGE_BLACKWELL_MASKED] if masked else [_LARGE_BLACKWELL]
    elif family == "amd":
        tables.append(_LARGE_AMD)
    return next(t[key] for t in reversed(tables) if key in t)
