"""Attention over a node list, item by item in float32: the specification of `node_attention`."""

from __future__ import annotations

from typing import Any

import torch

from forkdecode_kernels.node_list import NodeList


def node_attention(
    query: torch.Tensor,
    kv: torch.Tensor,
    nodes: NodeList,
    *,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """query [H, T, D], kv [2, K, B, S, D] -> [T, H, D] in the query's dtype; zeros outside the list."""
    heads, tokens, dim = query.shape
    out = torch.zeros(tokens, heads, dim, dtype=query.dtype, device=query.device)
    exact: Any = {"dtype": torch.float32, "device": query.device}
    values = torch.zeros(nodes.num_parts, heads, dim, **exact)
    lse = torch.full((nodes.num_parts, heads), -torch.inf, **exact)
    sink = torch.full((heads,), -torch.inf, **exact) if sinks is None else sinks.float()
    counts = nodes.counts[:, 0].tolist()
    items = torch.cat([nodes.small_items[: counts[0]], nodes.large_items[: counts[1]]]).tolist()
    for first, count, block, length, position, part, *_ in items:
        rows = nodes.queries[first : first + count].long()
        index = nodes.blocks[block : block - -length // kv.shape[3]].long()
        keys, item_values = kv[:, :, index].flatten(2, 3)[:, :, :length].float()
        at = position + torch.arange(length, device=query.device)
        seen = at <= nodes.positions[rows][:, None] if nodes.causal else torch.ones_like(at, dtype=torch.bool)
        if window is not None:
            seen = seen & (at > nodes.positions[rows][:, None] - window)
        result, norm = _partial(query[:, rows].float(), keys, item_values, seen, scale, softcap)
        if part >= 0:
            values[part : part + count], lse[part : part + count] = result, norm
        else:
            out[rows] = _with_sink(result[:, None], norm[:, None], sink).to(out.dtype)
    offsets = nodes.merge_offsets.tolist()
    for i, row in enumerate(nodes.merged[: counts[2]].tolist()):
        parts = nodes.merge_parts[offsets[i] : offsets[i + 1]].long()
        out[row] = _with_sink(values[parts][None], lse[parts][None], sink)[0].to(out.dtype)
    return out


def _partial(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    seen: torch.Tensor,
    scale: float,
    softcap: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """query [H, n, D], keys and values [K, L, D], seen [n or 1, L] -> [n, H, D], log-sum-exp [n, H]."""
    repeat = query.shape[0] // keys.shape[0]
    keys, values = keys.repeat_interleave(repeat, 0), values.repeat_interleave(repeat, 0)
    scores = torch.einsum("hnd,hld->nhl", query, keys) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.masked_fill(~seen[..., None, :], -torch.inf)
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    return torch.einsum("nhl,hld->nhd", weights, values), torch.logsumexp(scores, -1)


def _with_sink(values: torch.Tensor, lse: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """Merges parts: values [n, p, H, D], lse [n, p, H], sink [H] a logit without a value -> [n, H, D]."""
    total = torch.logsumexp(torch.cat([lse, sink.expand(lse.shape[0], 1, -1)], 1), 1)
    weights = torch.exp(lse - total[:, None]).nan_to_num(0.0)
    return (values * weights[..., None]).sum(1)
