"""Attention of a step's query tokens over their groups' KV blocks."""

from __future__ import annotations

from typing import Any

import torch

from forkdecode_kernels.attention_work import AttentionWork
from forkdecode_kernels.cpu.attention import CpuAttentionPlan, cpu_attention, plan_cpu_attention
from forkdecode_kernels.gathered import gathered_attention
from forkdecode_kernels.node_attention import node_attention
from forkdecode_kernels.node_list import NodeList, SlicedNodes

AttentionPlan = AttentionWork | CpuAttentionPlan | NodeList | SlicedNodes


def plan_attention(
    work: AttentionWork, *, num_heads: int, kv: torch.Tensor, window: int | None = None
) -> AttentionWork | CpuAttentionPlan:
    """Prepares `work` for every layer with num_heads H, a cache shaped like `kv` and this window.

    kv: [2, K, B, S, D] on the device that will run. Raises ValueError on unfit shapes.
    """
    if kv.ndim != 5 or kv.shape[0] != 2 or kv.shape[3] != work.block_size:
        raise ValueError(f"kv is {tuple(kv.shape)}; must be [2, K, B, {work.block_size}, D]")
    if not 0 <= work.null_block < kv.shape[2]:
        raise ValueError(f"null_block is {work.null_block}; must be below B = {kv.shape[2]}")
    if num_heads <= 0 or num_heads % kv.shape[1]:
        raise ValueError(f"num_heads is {num_heads}; must be a multiple of K = {kv.shape[1]}")
    if window is not None and window < 1:
        raise ValueError(f"window is {window}; must be at least 1, or None")
    if kv.device.type != "cpu":
        return work
    return plan_cpu_attention(work, num_heads=num_heads, kv=kv, window=window)


def attention(
    query: torch.Tensor,
    kv: torch.Tensor,
    plan: AttentionPlan,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """query [H, T, D], kv [2, K, B, S, D] -> [T, H, D], zeros for tokens that the plan omits.

    A query at position p sees positions max(0, p - window + 1) .. p of its sequence. Scores are
    q.k * scale, with softcap c tanh-capped to (-c, c) (Gemma 2, arXiv 2408.00118, section 2);
    sinks [H] are extra logits that take part in the softmax and have no value.
    A group's result is bitwise independent of what else is in the plan, and of which blocks hold
    its tokens, for a given number of torch threads.
    """
    if isinstance(plan, NodeList):
        return node_attention(query, kv, plan, scale=scale, window=window, softcap=softcap, sinks=sinks)
    if isinstance(plan, SlicedNodes):
        options: Any = {"scale": scale, "window": window, "softcap": softcap, "sinks": sinks}
        return torch.cat([attention(query[:, s.start : s.stop], kv, s.nodes, **options) for s in plan.slices])
    heads, tokens, dim = query.shape
    work = plan if isinstance(plan, AttentionWork) else plan.work
    if tokens != work.num_tokens:
        raise ValueError(f"query is {tuple(query.shape)}; must be [H, T = {work.num_tokens}, D]")
    if dim != kv.shape[4] or heads % kv.shape[1] or query.dtype != kv.dtype:
        raise ValueError(
            f"query {tuple(query.shape)} {query.dtype} does not fit kv {tuple(kv.shape)} {kv.dtype}"
        )
    if sinks is not None and sinks.shape != (heads,):
        raise ValueError(f"sinks is {tuple(sinks.shape)}; must be [H = {heads}]")
    if isinstance(plan, AttentionWork):
        return gathered_attention(query, kv, plan, scale=scale, window=window, softcap=softcap, sinks=sinks)
    if window != plan.window:
        raise ValueError(f"window is {window}; the plan was made for {plan.window}")
    return cpu_attention(query, kv, plan, scale=scale, softcap=softcap, sinks=sinks)
