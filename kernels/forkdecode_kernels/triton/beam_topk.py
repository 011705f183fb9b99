"""Log-softmax and the best continuations of each group: one read of the logits and a re-read of few tiles.

Each (row, tile) leaves its maximum and sum of exponentials. A tile's best score is the score of a
real candidate, so the k-th best of these bounds the k-th best candidate from below. Only tiles that
reach the bound are read again; what reaches it there is packed as (score, row, token) and sorted.
Every reduction has a shape that the vocabulary alone decides, so that no result depends on the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from forkdecode_kernels.triton.beam_topk_kernels import (
    bound_kernel,
    collect_kernel,
    row_sums_kernel,
    tile_sums_kernel,
)
from forkdecode_kernels.triton.packed_order import EMPTY, dense_best
from forkdecode_kernels.triton.tiles import power_of_two

TILE = 4096
BOUND_CHUNK = 16384
BOUND_BITS = 20
"""The bound is found to this many leading bits, downwards: 2^-11 of it, for fewer passes."""
SUMS_WARPS, COLLECT_WARPS = 4, 8


def tile_warps(tile: int, most: int) -> int:
    """So many that a thread loads 16 bytes of 16-bit logits at a time, where a warp has 64 threads too."""
    return max(1, min(most, tile // 512))


@dataclass(frozen=True, slots=True)
class PackedContinuations:
    """On the host. packed [G, k]: bits of score, then row * V + token, ascending, EMPTY at the end;
    logprobs [G, k]; valid [G]: no row has NaN or +inf."""

    packed: NDArray[np.int64]
    logprobs: NDArray[np.float32]
    valid: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Inputs:
    """On the device. rows, owner [m] int32; groups [G, 3] int32: first of the m, count, k; base [m]."""

    logits: torch.Tensor
    rows: torch.Tensor
    owner: torch.Tensor
    groups: torch.Tensor
    base: torch.Tensor


def beam_topk(
    logits: torch.Tensor,
    start: NDArray[np.int64],
    count: NDArray[np.int64],
    k: NDArray[np.int64],
    base: NDArray[np.float32],
    *,
    normalized: bool,
    tile: int = TILE,
    capacity: int | None = None,
) -> PackedContinuations:
    """The k best of each group; see forkdecode_kernels.topk. One copy to the device, one back, and
    more where a group's list overflows. capacity: of a list. count * V must be below 2^32.
    """
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    tiles = triton.cdiv(logits.shape[1], tile)
    room = max(capacity or max(4096, 4 * int(k.max())), int(k.max()))
    # Hardly more tiles than wanted candidates: the bound would let nearly everything pass.
    narrow = count * tiles < 2 * k
    inputs = _upload(logits, start, count, np.where(narrow, 0, k), base)
    scores, shift, valid = _sums(inputs, tiles, tile, normalized)
    found, lists = _collected(inputs, scores, shift, int(count.max()) * tiles, tiles, tile, room)
    best = torch.sort(lists, dim=1).values[:, : int(k.max())].contiguous()
    return _exact(inputs, shift, valid, found, best, count, k, narrow, room)


def _upload(
    logits: torch.Tensor,
    start: NDArray[np.int64],
    count: NDArray[np.int64],
    k: NDArray[np.int64],
    base: NDArray[np.float32],
) -> _Inputs:
    """One copy."""
    owner = np.repeat(np.arange(len(start)), count)
    first = np.cumsum(count) - count
    rows = np.arange(len(owner)) - first[owner] + start[owner]
    groups = np.stack([first, count, k], 1)
    flat = [a.astype(np.int32).ravel() for a in (rows, owner, groups)] + [base.view(np.int32)]
    sent = torch.from_numpy(np.concatenate(flat)).to(logits.device)
    parts = torch.split(sent, [len(a) for a in flat])
    return _Inputs(logits, parts[0], parts[1], parts[2].view(-1, 3), parts[3].view(torch.float32))


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
    chunk = min(BOUND_CHUNK, power_of_two(largest))
    bound_kernel[(num_groups,)](
        scores,
        inputs.groups,
        bound,
        tiles,
        BITS=BOUND_BITS,
        CHUNK=chunk,
        num_warps=16 if chunk >= 4096 else 4,
    )
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
    )
    return found, lists


def _exact(
    inputs: _Inputs,
    shift: torch.Tensor,
    valid: torch.Tensor,
    found: torch.Tensor,
    best: torch.Tensor,
    count: NDArray[np.int64],
    k: NDArray[np.int64],
    narrow: NDArray[np.bool_],
    room: int,
) -> PackedContinuations:
    """Fills in the groups that have no complete list, and brings all to the host."""
    last = np.cumsum(count)

    def fill(groups: NDArray[np.int64]) -> None:
        for g in groups.tolist():
            own = slice(int(last[g] - count[g]), int(last[g]))
            wanted = int(min(k[g], count[g] * inputs.logits.shape[1]))
            best[g] = EMPTY
            best[g, :wanted] = dense_best(
                inputs.logits, inputs.rows[own], inputs.base[own], shift[own], wanted
            )

    fill(np.flatnonzero(narrow))
    host, counts, fine = _download(inputs, shift, valid, found, best)
    overflowing = fine & (counts > room)
    if overflowing.any():
        fill(np.flatnonzero(overflowing))
        host, _, _ = _download(inputs, shift, valid, found, best)
    width = best.shape[1]
    return PackedContinuations(host[:, :width], host[:, width:].astype(np.int32).view(np.float32), fine)


def _download(
    inputs: _Inputs, shift: torch.Tensor, valid: torch.Tensor, found: torch.Tensor, best: torch.Tensor
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Lists and bits of log-probabilities [G, 2 k], candidates found [G], validity [G], in one copy."""
    vocab = inputs.logits.shape[1]
    flat = torch.where(best != EMPTY, best & 0xFFFFFFFF, 0)
    at = inputs.groups[:, :1] + flat // vocab
    values = inputs.logits[inputs.rows[at].long(), flat % vocab].double()
    logprobs = (values - shift[at]).float().view(torch.int32).long()
    bad = torch.zeros(len(best), dtype=torch.int64, device=best.device)
    bad.index_add_(0, inputs.owner, (valid == 0).long())
    host = torch.cat([best, logprobs, found.long()[:, None], bad[:, None]], 1).cpu().numpy()
    return host[:, :-2], host[:, -2], host[:, -1] == 0
