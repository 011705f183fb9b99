"""Decode over block tables, one row at a time in float32."""

from __future__ import annotations

import torch


def paged_decode(
    query: torch.Tensor,
    kv: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """query [H, R, D], kv [2, K, B, S, D] -> [R, H, D]; see forkdecode_kernels.paged_decode."""
    out = torch.empty(query.shape[1], query.shape[0], query.shape[2], dtype=query.dtype, device=query.device)
    repeat = query.shape[0] // kv.shape[1]
    for row, length in enumerate(lengths.tolist()):
        blocks = tables[row, : -(-length // kv.shape[3])].long()
        begin = 0 if window is None else max(0, length - window)
        keys, values = kv[:, :, blocks].flatten(2, 3)[:, :, begin:length].float().repeat_interleave(repeat, 1)
        scores = torch.einsum("hd,htd->ht", query[:, row].float(), keys) * scale
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        if sinks is not None:
            scores = torch.cat([scores, sinks.float()[:, None]], 1)
        weights = torch.softmax(scores, -1)[:, : length - begin]
        out[row] = torch.einsum("ht,htd->hd", weights, values).to(out.dtype)
    return out
