"""Attention for gpu_check: a workload as forest, per-row paged, and torch's own on gathered keys and
values."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.bench import Bench, allowed_error, within
from benchmarks.gpu.cases import Model, workloads
from benchmarks.gpu.tables import compulsory_bytes, decode_rows, dense_tables, planned
from forkdecode.kv.bytes_moved import bytes_moved
from forkdecode_kernels.node_list import check_nodes, node_list
from forkdecode_kernels.reference import node_attention as node_reference
from forkdecode_kernels.reference import paged_decode as paged_reference
from forkdecode_kernels.triton.node_attention import node_attention
from forkdecode_kernels.triton.paged_decode import paged_decode

GATHERED_BYTES = 4 << 30
"""Keys and values that torch's attention gets at a time."""
BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)


def attention(bench: Bench, number: int) -> dict[str, Any]:
    """The workload of that number: errors against a reference in float32, then times."""
    model = Model(4, 2, 64) if bench.rehearse else Model()
    work = workloads(bench.rehearse)[number]
    decodes, num_blocks = decode_rows(work, model.block_size, np.random.default_rng(0))
    rows = work.groups * work.rows
    query = bench.normal(model.heads, rows, model.dim)
    kv = bench.normal(2, model.kv_heads, num_blocks, model.block_size, model.dim)
    plan, _ = planned(decodes, model, bench.dtype, bench.device)
    check_nodes(plan, num_blocks, rows, model.block_size)
    nodes = node_list(plan, bench.device)
    tables, lengths = dense_tables(decodes, bench.device)
    options: dict[str, Any] = {"scale": model.dim**-0.5, "window": None, "softcap": None, "sinks": None}
    forest = partial(node_attention, query, kv, nodes, **options)
    splits = (1, 4) if bench.rehearse else (1, 4, 16)
    paged = {n: partial(paged_decode, query, kv, tables, lengths, splits=n, **options) for n in splits}

    some = torch.arange(0, rows, max(1, rows // 16), device=bench.device)
    wide = query[:, some].float(), kv.float()
    exact = paged_reference.paged_decode(*wide, tables[some], lengths[some], **options)
    errors = {"forest": _error(forest()[some], exact)}
    errors |= {f"paged by {n}": _error(paged[n]()[some], exact) for n in paged}
    if bench.rehearse:
        errors["reference"] = _error(forest(), node_reference.node_attention(query, kv, nodes, **options))
    del wide
    allowed = allowed_error(exact, bench.dtype)

    moved = bytes_moved(
        plan,
        num_heads=model.heads,
        num_kv_heads=model.kv_heads,
        head_dim=model.dim,
        element_bytes=bench.dtype.itemsize,
    )
    needed = compulsory_bytes(tables.cpu().numpy(), lengths.cpu().numpy(), model, bench.dtype.itemsize)
    by_bytes = needed / bench.bandwidth
    by_flops = 4 * model.heads * model.dim * plan.row_tokens / bench.flops
    seconds = {n: bench.timed(bench.replayed(each)) for n, each in paged.items()}
    fastest = min(seconds, key=lambda n: seconds[n])
    forest_seconds = bench.timed(bench.replayed(forest))
    torch_seconds, backend = sdpa(bench, query, kv, tables)
    return {
        "workload": work.name,
        "rows": rows,
        "errors": errors,
        "allowed_error": allowed,
        "forest_us": 1e6 * forest_seconds,
        "paged_us": 1e6 * seconds[fastest],
        "paged_splits": fastest,
        "sdpa_us": 1e6 * torch_seconds,
        "sdpa_backend": backend,
        "compulsory_bytes": needed,
        "forest_bytes": moved.forest,
        "bytes_gain": moved.gain,
        "times_paged": forest_seconds / seconds[fastest],
        "share_of_ceiling": max(by_bytes, by_flops) / forest_seconds,
        "bound_by": "bandwidth" if by_bytes > by_flops else "compute",
        "ok": within(errors, allowed),
    }


def _error(ours: torch.Tensor, exact: torch.Tensor) -> float:
    return float((ours.float() - exact.float()).abs().max())


def sdpa(bench: Bench, query: torch.Tensor, kv: torch.Tensor, tables: torch.Tensor) -> tuple[float, str]:
    """Seconds of the fastest of torch's fused attentions that takes these tensors, and its name; NaN where
    none does.

    Keys and values are gathered before, in chunks of memory, and the gather is not timed. Without a mask,
    since none of the fast ones takes one: rows that end within their last block read it whole.
    """
    total: dict[str, float] = {}
    block_bytes = 2 * kv[0, :, 0].numel() * kv.element_size()
    chunk = max(1, GATHERED_BYTES // (tables.shape[1] * block_bytes))
    for first in range(0, len(tables), chunk):
        gathered = kv[:, :, tables[first : first + chunk].long()].flatten(3, 4)
        keys, values = gathered.transpose(1, 2).contiguous()
        del gathered
        q = query[:, first : first + chunk].transpose(0, 1)[:, :, None].contiguous()
        work = partial(scaled_dot_product_attention, q, keys, values, enable_gqa=True)
        for name, seconds in _by_backend(bench, work).items():
            total[name] = total.get(name, 0.0) + seconds
        del keys, values, work
    fastest = min(total, key=lambda name: total[name], default="none")
    return total.get(fastest, float("nan")), fastest


def _by_backend(bench: Bench, work: partial[torch.Tensor]) -> dict[str, float]:
    """Seconds of each backend that can do the work."""
    found = {}
    for backend in BACKENDS:
        with sdpa_kernel([backend]):
            try:
                work()
            except RuntimeError:  # "no available kernel", with a warning that says why
                continue
            found[backend.name] = bench.timed(work, 5)
    return found
