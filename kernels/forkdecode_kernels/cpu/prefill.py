"""Segments of query tokens by torch's products: tiles at fixed positions, online softmax over key pieces.

Tile and piece boundaries don't depend on where a chunk begins or ends, and rows are padded to at
least 16, so a token's result is bitwise the same however its prompt is cut into chunks.
Online softmax: Milakov and Gimelshein, arXiv 1805.02867, section 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from forkdecode_kernels.attention_work import AttentionWork, SegmentLike
from forkdecode_kernels.cpu.decode import cap_scores, softmax
from forkdecode_kernels.cpu.gather import KvRead, read_run

TILE = 256
FIRST_TILES = (64, 128, TILE)
"""Ends of the first tiles: finer, so that short prompts don't pay for a whole one."""
KEY_PIECE = 512
ROW_QUANTUM = 16


@dataclass(frozen=True, slots=True)
class KeyPiece:
    """Keys and values of one piece; mask [rows, L] (0 or -inf), or None where every row sees all."""

    read: KvRead
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class PrefillTile:
    """`count` query tokens from token_start on, padded to `rows`, over key pieces."""

    token_start: int
    count: int
    rows: int
    pieces: tuple[KeyPiece, ...]


def plan_prefill(work: AttentionWork, kv: torch.Tensor, window: int | None) -> tuple[PrefillTile, ...]:
    """Cuts the step's segments into tiles."""
    tiles = []
    for segment in work.segments:
        for low, high, tile_low, tile_high in _tiles(segment):
            rows = -(-(high - low) // ROW_QUANTUM) * ROW_QUANTUM
            positions = np.minimum(np.arange(low, low + rows), high - 1)
            pieces = tuple(_pieces(segment, positions, tile_low, tile_high, work, kv, window))
            tiles.append(PrefillTile(segment.token_start + low - segment.position, high - low, rows, pieces))
    return tuple(tiles)


def _tiles(segment: SegmentLike) -> Iterator[tuple[int, int, int, int]]:
    """(first position, end, the tile's own start, its end) for each tile the segment touches."""
    low, end = segment.position, segment.position + segment.token_count
    while low < end:
        tile_high = next((e for e in FIRST_TILES if low < e), (low // TILE + 1) * TILE)
        tile_low = tile_high - TILE if tile_high > TILE else max((0, *[e for e in FIRST_TILES if e <= low]))
        yield low, min(end, tile_high), tile_low, tile_high
        low = tile_high


def _pieces(
    segment: SegmentLike,
    positions: np.ndarray,
    tile_low: int,
    tile_high: int,
    work: AttentionWork,
    kv: torch.Tensor,
    window: int | None,
) -> Iterator[KeyPiece]:
    size = work.block_size
    first = 0 if window is None else max(0, tile_low - window + 1) // TILE * TILE
    for start in range(first - first % KEY_PIECE, tile_high, KEY_PIECE):
        low, high = max(first, start), min(start + KEY_PIECE, tile_high)
        length = -(-(high - low) // size) * size
        read = read_run(segment.blocks[low // size : (low + length) // size], length, work.null_block, kv)
        yield KeyPiece(read, _mask(positions, low, low + length, tile_low, window, tile_high, kv.dtype))


def _mask(
    positions: np.ndarray,
    low: int,
    high: int,
    tile_low: int,
    window: int | None,
    tile_high: int,
    dtype: torch.dtype,
) -> torch.Tensor | None:
    """Whether a piece gets a mask follows from the tile alone, not from the rows present."""
    if high <= tile_low + 1 and (window is None or low > tile_high - 1 - window):
        return None
    keys = np.arange(low, high)
    hidden = keys[None, :] > positions[:, None]
    if window is not None:
        hidden |= keys[None, :] <= positions[:, None] - window
    return torch.from_numpy(np.where(hidden, np.float32(-np.inf), np.float32(0))).to(dtype)


def run_tile(
    tile: PrefillTile,
    query: torch.Tensor,
    kv: torch.Tensor,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """query [H, T, D] -> [H, count, D]."""
    kv_heads, dim = kv.shape[1], kv.shape[4]
    rows = query[:, tile.token_start : tile.token_start + tile.count]
    if tile.rows != tile.count:
        rows = torch.cat([rows, rows[:, -1:].expand(-1, tile.rows - tile.count, -1)], 1)
    rows = rows.reshape(kv_heads, -1, dim)
    sink = None
    if sinks is not None:
        sink = sinks.view(kv_heads, -1, 1).expand(-1, -1, tile.rows).reshape(kv_heads, -1, 1)
    if len(tile.pieces) == 1:
        scores, values = _scores(tile.pieces[0], rows, kv, scale, softcap)
        out = torch.bmm(softmax(scores, sink), values)
    else:
        out = _online(tile, rows, kv, scale, softcap, sink)
    return out.to(query.dtype).view(len(query), tile.rows, dim)[:, : tile.count]


def _scores(
    piece: KeyPiece, rows: torch.Tensor, kv: torch.Tensor, scale: float, softcap: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """rows [K, G * rows, D] -> scores [K, G * rows, L], values [K, L, D], in rows' dtype."""
    keys, values = (t.to(rows.dtype) for t in piece.read.read(kv))
    scores = torch.bmm(rows, keys.transpose(1, 2))
    cap_scores(scores, scale, softcap)
    if piece.mask is not None:
        scores.view(len(keys), -1, *piece.mask.shape).add_(piece.mask)
    return scores, values


def _online(
    tile: PrefillTile,
    rows: torch.Tensor,
    kv: torch.Tensor,
    scale: float,
    softcap: float | None,
    sink: torch.Tensor | None,
) -> torch.Tensor:
    """Softmax over all pieces with a running maximum and sum, float32."""
    lowest = torch.finfo(torch.float32).min
    size = *rows.shape[:2], 1
    top = torch.full(size, lowest, dtype=torch.float32) if sink is None else sink.float()
    total = torch.zeros_like(top) if sink is None else torch.ones_like(top)
    out = torch.zeros(rows.shape, dtype=torch.float32)
    for piece in tile.pieces:
        scores, values = _scores(piece, rows, kv, scale, softcap)
        scores = scores.float()
        new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights = scores.sub_(new_top).exp_()
        keep = top.sub(new_top).exp_()
        total = total.mul(keep).add_(weights.sum(-1, keepdim=True))
        out.mul_(keep).add_(torch.bmm(weights.to(values.dtype), values))
        top = new_top
    return out.div_(total)
