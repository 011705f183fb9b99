"""Decode attention over block tables, each row on its own: the baseline without sharing.

No engine calls it. It is what benchmarks compare attention over node lists with.
"""

from __future__ import annotations

import torch

from forkdecode_kernels.reference import paged_decode as reference


def paged_decode(
    query: torch.Tensor,
    kv: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    *,
    scale: float,
    splits: int = 1,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """query [H, R, D], kv [2, K, B, S, D], tables [R, n] int32, lengths [R] int32 -> [R, H, D].

    Row r is one query at position lengths[r] - 1 >= 0. splits: programs that share a row's tokens.
    Raises ValueError on unfit shapes, dtypes or devices.
    """
    heads, rows, dim = query.shape
    if kv.ndim != 5 or kv.shape[0] != 2 or kv.shape[4] != dim or heads % kv.shape[1]:
        raise ValueError(f"query {tuple(query.shape)} does not fit kv {tuple(kv.shape)}")
    if query.dtype != kv.dtype or query.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ValueError(f"query is {query.dtype}, kv {kv.dtype}; must be one of float32, float16, bfloat16")
    if dim > 256:
        raise ValueError(f"head_dim is {dim}; must be 256 at most")
    if tables.ndim != 2 or len(tables) != rows or tables.dtype != torch.int32 or tables.stride(1) != 1:
        raise ValueError(f"tables is {tables.dtype} {tuple(tables.shape)}; must be int32 [{rows}, n]")
    if lengths.shape != (rows,) or lengths.dtype != torch.int32:
        raise ValueError(f"lengths is {lengths.dtype} {tuple(lengths.shape)}; must be int32 [{rows}]")
    devices = [str(t.device) for t in (query, kv, tables, lengths)]
    if len(set(devices)) > 1:
        raise ValueError(f"query, kv, tables, lengths are on {', '.join(devices)}; must be on one device")
    if sinks is not None and (sinks.shape != (heads,) or sinks.device != query.device):
        raise ValueError(f"sinks is {tuple(sinks.shape)} on {sinks.device}; must be [H = {heads}]")
    if splits < 1:
        raise ValueError(f"splits is {splits}; must be at least 1")
    if query.device.type == "cpu":
        return reference.paged_decode(
            query, kv, tables, lengths, scale=scale, window=window, softcap=softcap, sinks=sinks
        )
    from forkdecode_kernels.triton import paged_decode as fast

    return fast.paged_decode(
        query, kv, tables, lengths, scale=scale, splits=splits, window=window, softcap=softcap, sinks=sinks
    )
