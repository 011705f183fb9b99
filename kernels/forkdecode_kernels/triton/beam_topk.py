"""Log-softmax and the best continuations of each group: one read of the logits and a re-read of few tiles.

Each (row, tile) leaves its maximum and sum of exponentials. A tile's best score is the score of a
real candidate, so the k-th best of these bounds the k-th best candidate from below. Only tiles that
reach the bound are read again; what reaches it there is packed as (score, row, token) and sorted.
Every reduction has a shape that the vocabulary alone decides, so that no result depends on the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from forkdecode_kernels.calls import Source, Steps, in_parts
from forkdecode_kernels.transfer import to_host
from forkdecode_kernels.triton.beam_topk_kernels import (
    bound_kernel,
    collect_kernel,
    row_sums_kernel,
    tile_sums_kernel,
)
from forkdecode_kernels.triton.packed_order import EMPTY, dense_best
from forkdecode_kernels.triton.tiles import FUSED, power_of_two

TILE = 4096
BOUND_SHAPES = ((1024, 4), (16384, 16))
"""Tiles that a pass of the bound's search takes at a time, and warps: the first shape for groups that it
holds whole. Two, so that both can be compiled before a request waits for one."""
BOUND_BITS = 20
"""The bound is found to this many leading bits, downwards: 2^-11 of it, for fewer passes."""
SUMS_WARPS, COLLECT_WARPS = 4, 8


def tile_warps(tile: int, most: int) -> int:
    """So many that a thread loads 16 bytes of 16-bit logits at a time, where a warp has 64 threads too."""
    return max(1, min(most, tile // 512))


@dataclass(frozen=True, slots=True)
class PackedContinuations:
    """On the host. packed [G, k]: bits of score, then row * V + token, ascending, EMPTY at the end;
    logprobs, raw [G, k]: log-softmax of the values, and of what they were made of; valid [G]: no row has
    NaN or +inf."""

    packed: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    raw: NDArray[np.float32]
    valid: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Inputs:
    """On the device. rows, owner [m] int32; groups [G, 3] int32: first of the m, count, k; base [m]."""

    source: Source
    logits: torch.Tensor
    rows: torch.Tensor
    owner: torch.Tensor
    groups: torch.Tensor
    base: torch.Tensor


@in_parts
def beam_topk(
    start: NDArray[np.int64],
    count: NDArray[np.int64],
    k: NDArray[np.int64],
    base: NDArray[np.float32],
    vocab: int,
    *,
    normalized: bool,
    tile: int = TILE,
    capacity: int | None = None,
) -> Steps[PackedContinuations]:
    """The k best of each group; see forkdecode_kernels.topk. One more copy each way where a group's list
    overflows. capacity: of a list. Raises ValueError for groups whose candidates 32 bits don't number.
    """
    if int(count.max()) * vocab >= 1 << 32:
        raise ValueError(
            f"{count.max()} rows of {vocab} tokens; a group may have 2^32 - 1 candidates at most"
        )
    tiles = triton.cdiv(vocab, tile)
    room = max(capacity or max(4096, 4 * int(k.max())), int(k.max()))
    # Hardly more tiles than wanted candidates: the bound would let nearly everything pass.
    narrow = count * tiles < 2 * k
    source, sent = yield _arrays(start, count, np.where(narrow, 0, k), base)
    inputs = _Inputs(source, _rows_of(source.values), *sent)
    scores, shift, valid = _sums(inputs, tiles, tile, normalized)
    found, lists = _collected(inputs, scores, shift, int(count.max()) * tiles, tiles, tile, room)
    best = torch.sort(lists, dim=1).values[:, : int(k.max())].contiguous()
    _fill(inputs, best, shift, count, k, np.flatnonzero(narrow))
    bad = torch.zeros(len(best), dtype=torch.int32, device=best.device)
    bad.index_add_(0, inputs.owner, (valid == 0).int())
    counts, faults, *told = yield [found, bad, *_picked(inputs, shift, best)]
    overflowing = (faults == 0) & (counts > room)
    if overflowing.any():
        _fill(inputs, best, shift, count, k, np.flatnonzero(overflowing))
        told = to_host(_picked(inputs, shift, best))
    packed, logprobs, raw = told
    return PackedContinuations(packed, logprobs, raw, faults == 0)


def _rows_of(values: torch.Tensor) -> torch.Tensor:
    return values if values.stride(1) == 1 else values.contiguous()


def _arrays(
    start: NDArray[np.int64], count: NDArray[np.int64], k: NDArray[np.int64], base: NDArray[np.float32]
) -> list[NDArray[Any]]:
    """What _Inputs names after the logits."""
    owner = np.repeat(np.arange(len(start)), count)
    first = np.cumsum(count) - count
    rows = np.arange(len(owner)) - first[owner] + start[owner]
    return [*(a.astype(np.int32) for a in (rows, owner, np.stack([first, count, k], 1))), base]


def _sums(
    inputs: _Inputs, tiles: int, tile: int, normalized: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Best score of each tile [m, tiles], what log-softmax subtracts [m] float64, validity [m] int32."""
    logits, m = inputs.logits, len(inputs.rows)
    best = torch.empty(m, tiles, dtype=torch.float32, device=logits.device)
    sums, scores = torch.empty_like(best), torch.empty_like(best)
    shift = torch.empty(m, dtype=torch.float64, device=logits.device)
    valid = torch.empty(m, dtype=torch.int32, device=logits.device)
    tile_sums_kernel[(m, tiles)](
        logits,
        inputs.rows,
        best,
        sums,
        logits.shape[1],
        logits.stride(0),
        tiles,
        TILE=tile,
        num_warps=tile_warps(tile, SUMS_WARPS),
        **FUSED,
    )
    row_sums_kernel[(m,)](
        best,
        sums,
        inputs.base,
        scores,
        shift,
        valid,
        tiles,
        NORMALIZED=normalized,
        BLOCK=power_of_two(tiles),
        **FUSED,
    )
    return scores, shift, valid


def _collected(
    inputs: _Inputs,
    scores: torch.Tensor,
    shift: torch.Tensor,
    largest: int,
    tiles: int,
    tile: int,
    room: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """How many candidates reach each group's bound [G], and the first `room` of them [G, room]."""
    logits, num_groups = inputs.logits, len(inputs.groups)
    bound = torch.empty(num_groups, dtype=torch.int32, device=logits.device)
    found = torch.zeros(num_groups, dtype=torch.int32, device=logits.device)
    lists = torch.full((num_groups, room), EMPTY, dtype=torch.int64, device=logits.device)
    _find_bounds(scores, inputs.groups, bound, tiles, BOUND_SHAPES[largest > BOUND_SHAPES[0][0]])
    collect_kernel[scores.shape](
        logits,
        inputs.rows,
        inputs.owner,
        inputs.groups,
        inputs.base,
        scores,
        shift,
        bound,
        found,
        lists,
        logits.shape[1],
        logits.stride(0),
        tiles,
        room,
        TILE=tile,
        num_warps=tile_warps(tile, COLLECT_WARPS),
        **FUSED,
    )
    return found, lists


def _find_bounds(
    scores: torch.Tensor, groups: torch.Tensor, bound: torch.Tensor, tiles: int, shape: tuple[int, int]
) -> None:
    chunk, warps = shape
    bound_kernel[(len(groups),)](
        scores, groups, bound, tiles, BITS=BOUND_BITS, CHUNK=chunk, num_warps=warps, **FUSED
    )


def warm_up(device: torch.device, vocab: int, tile: int = TILE) -> None:
    """Has ready what groups of any width take. A selection of few rows compiles all else."""
    tiles = triton.cdiv(vocab, tile)
    scores = torch.zeros(tiles, dtype=torch.float32, device=device)
    groups = torch.ones(1, 3, dtype=torch.int32, device=device)
    groups[:, 0] = 0  # the first row, of one, for its best
    bound = torch.empty(1, dtype=torch.int32, device=device)
    for shape in BOUND_SHAPES:
        _find_bounds(scores, groups, bound, tiles, shape)


def _fill(
    inputs: _Inputs,
    best: torch.Tensor,
    shift: torch.Tensor,
    count: NDArray[np.int64],
    k: NDArray[np.int64],
    groups: NDArray[np.int64],
) -> None:
    """The best of groups that have no complete list, by selecting over all their candidates."""
    last = np.cumsum(count)
    for g in groups.tolist():
        own = slice(int(last[g] - count[g]), int(last[g]))
        wanted = int(min(k[g], count[g] * inputs.logits.shape[1]))
        best[g] = EMPTY
        best[g, :wanted] = dense_best(inputs.logits, inputs.rows[own], inputs.base[own], shift[own], wanted)


def _picked(inputs: _Inputs, shift: torch.Tensor, best: torch.Tensor) -> list[torch.Tensor]:
    """The lists, and log-probabilities [G, k] float32 of the values and of what they were made of."""
    vocab = inputs.logits.shape[1]
    flat = torch.where(best != EMPTY, best & 0xFFFFFFFF, 0)
    at, token = inputs.groups[:, :1] + flat // vocab, flat % vocab
    rows = inputs.rows[at].long()
    logprobs = (inputs.logits[rows, token].double() - shift[at]).float()
    return [best, logprobs, inputs.source.raw_logprobs(rows, token, logprobs)]
