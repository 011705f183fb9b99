"""Whether the attention kernels work on this GPU: tried once, before anything depends on them."""

from __future__ import annotations

import numpy as np
import structlog
import torch
from transformers import PreTrainedModel

from forkdecode.model.kv_cache import KvCache
from forkdecode.model.node_plans import Planners, StepShape, key_of
from forkdecode.step import DecodeRows, QuerySegment
from forkdecode_kernels.node_attention import node_attention
from forkdecode_kernels.node_list import node_list
from forkdecode_kernels.reference import node_attention as reference

TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Of outputs that are means of normally distributed values."""
_log = structlog.get_logger("forkdecode.model")


def kernels_fit(model: PreTrainedModel, cache: KvCache) -> bool:
    """Runs a small step of decode and prefill by the kernels and by their reference, in the shape of the
    model's first layer. False, with a warning in the log, if they differ or the kernels can't be run: the
    engine then computes attention by the reference, which is slow."""
    try:
        error = _difference(model, cache)
    except Exception as problem:  # whatever a compiler or driver raises
        _log.warning("kernels_off", reason=f"{type(problem).__name__}: {problem}")
        return False
    fits = error < TOLERANCE[cache.layer(0).dtype]
    if not fits:
        _log.warning("kernels_off", reason=f"they differ from the reference by {error:g}")
    return fits


def _difference(model: PreTrainedModel, cache: KvCache) -> float:
    """The largest difference between kernels and reference."""
    layer = cache.layer(0)
    _, kv_heads, _, size, dim = layer.shape
    heads = int(model.config.get_text_config(decoder=True).num_attention_heads)
    segments, decodes, num_tokens, num_blocks = small_step(size)
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(layer.device, layer.dtype)

    kv, query = random(2, kv_heads, num_blocks, size, dim), random(heads, num_tokens, dim)
    planners = Planners(size, layer.device)
    arrays = planners.plan(
        key_of(heads, kv, None), kv.element_size(), StepShape(segments, decodes, num_tokens)
    )
    nodes, scale = node_list(arrays, layer.device), dim**-0.5
    ours = node_attention(query, kv, nodes, scale=scale)
    exact = reference.node_attention(query, kv, nodes, scale=scale, window=None, softcap=None, sinks=None)
    return float((ours.float() - exact.float()).abs().max())


def small_step(block_size: int) -> tuple[list[QuerySegment], list[DecodeRows], int, int]:
    """A prompt's chunk of 5 tokens after 300, and 20 rows behind a trunk of about 600 tokens that differ in
    their last block. Also the number of query tokens, a padding one included, and of blocks."""
    before = -(-300 // block_size)
    trunk = -(-600 // block_size)
    names = np.random.default_rng(0).permutation(before + 2 + 5 + trunk + 20).astype(np.int32)
    chunk, shared = names[: before + 7], names[before + 7 : before + 7 + trunk]
    segment = QuerySegment(0, 5, before * block_size, chunk)
    rows = DecodeRows(5, shared, names[-20:, None], trunk * block_size + 1)
    return [segment], [rows], 26, len(names)
