"""Attention over paged keys and values, one query row at a time, in float32."""

from __future__ import annotations

import numpy as np
import torch

from forkdecode_kernels.attention_work import I32, AttentionWork


def attention(
    query: torch.Tensor,
    kv: torch.Tensor,
    work: AttentionWork,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """query [H, T, D], kv [2, K, B, S, D] -> [T, H, D] in the query's dtype.

    A query at position p sees positions max(0, p - window + 1) .. p. Scores are
    softcap * tanh(q.k * scale / softcap); sinks [H] join the softmax's denominator only.
    """
    out = torch.zeros(query.shape[1], query.shape[0], query.shape[2], dtype=query.dtype, device=query.device)
    for s in work.segments:
        for i in range(s.token_count):
            out[s.token_start + i] = _row(
                query[:, s.token_start + i], kv, s.blocks, s.position + i + 1, scale, window, softcap, sinks
            )
    for d in work.decodes:
        for r, tail in enumerate(d.tails):
            blocks = np.concatenate([d.trunk, tail])
            out[d.token_start + r] = _row(
                query[:, d.token_start + r], kv, blocks, d.context_len, scale, window, softcap, sinks
            )
    return out


def _row(
    query: torch.Tensor,
    kv: torch.Tensor,
    blocks: I32,
    length: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """One query [H, D] over the first `length` tokens of `blocks` -> [H, D]."""
    index = torch.from_numpy(blocks.astype(np.int64)).to(kv.device)
    keys, values = kv[:, :, index].flatten(2, 3)[:, :, :length].float()
    repeat = query.shape[0] // keys.shape[0]
    keys, values = keys.repeat_interleave(repeat, 0), values.repeat_interleave(repeat, 0)
    scores = torch.einsum("hd,htd->ht", query.float(), keys) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if window is not None:
        scores[:, : max(0, length - window)] = float("-inf")
    if sinks is not None:
        scores = torch.cat([scores, sinks.float()[:, None]], 1)
    weights = torch.softmax(scores, -1)[:, :length]
    return torch.einsum("ht,htd->hd", weights, values).to(query.dtype)
