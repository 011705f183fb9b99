"""Attention of query tokens over a node list."""

from __future__ import annotations

import torch

from forkdecode_kernels.node_list import NodeList
from forkdecode_kernels.reference import node_attention as reference

HEAD_DIMS = (64, 80, 96, 128, 256)
"""Head dimensions whose kernels are compiled and checked ahead of time; others up to 256 work too."""


def node_attention(
    query: torch.Tensor,
    kv: torch.Tensor,
    nodes: NodeList,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """query [H, T, D], kv [2, K, B, S, D] -> [T, H, D]. Queries that no item names are undefined on a
    GPU unless `merged` names them (then zero).

    Semantics as forkdecode_kernels.attention. Raises ValueError on unfit shapes, dtypes or devices.
    """
    heads, tokens, dim = query.shape
    if kv.ndim != 5 or kv.shape[0] != 2 or kv.shape[4] != dim or heads % kv.shape[1]:
        raise ValueError(f"query {tuple(query.shape)} does not fit kv {tuple(kv.shape)}")
    if query.dtype != kv.dtype or query.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(f"query is {query.dtype}, kv {kv.dtype}; must be one of float32, float16, bfloat16")
    block_size = kv.shape[3]
    if block_size & (block_size - 1) or block_size > 128:
        raise ValueError(f"block_size is {block_size}; must be a power of two, 1 to 128")
    if dim > 256:
        raise ValueError(f"head_dim is {dim}; must be 256 at most")
    if len(nodes.positions) != tokens:
        raise ValueError(f"positions is [{len(nodes.positions)}]; must be [T = {tokens}]")
    if not query.device == kv.device == nodes.blocks.device:
        raise ValueError(f"query on {query.device}, kv on {kv.device}, nodes on {nodes.blocks.device}")
    if sinks is not None and (sinks.shape != (heads,) or sinks.device != query.device):
        raise ValueError(f"sinks is {tuple(sinks.shape)} on {sinks.device}; must be [H = {heads}]")
    if query.device.type == "cpu":
        return reference.node_attention(
            query, kv, nodes, scale=scale, window=window, softcap=softcap, sinks=sinks
        )
    from forkdecode_kernels.triton import node_attention as fast

    return fast.node_attention(query, kv, nodes, scale=scale, window=window, softcap=softcap, sinks=sinks)
