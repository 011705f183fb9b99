"""Whether the kernels work on this GPU: tried once, before anything depends on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from forkdecode.logs import get_logger
from forkdecode.model.device import current
from forkdecode.model.kv_cache import KvCache
from forkdecode.model.node_plans import Key, Planners, key_of
from forkdecode.model.step_shape import StepShape
from forkdecode.step import DecodeRows, QuerySegment
from forkdecode_kernels.copy_blocks import copy_blocks
from forkdecode_kernels.node_attention import node_attention
from forkdecode_kernels.node_list import node_list
from forkdecode_kernels.reference import node_attention as reference
from forkdecode_kernels.write_kv import write_kv

LAST_PLACES = {torch.float16: 1 / 512, torch.bfloat16: 1 / 64}
"""Of outputs that are means of normally distributed values: what they may be off, as a share of the largest.
A few units in its last place, and less than what one key too many or too few makes."""
FLOAT32 = 1e-4
_log = get_logger(__name__)


def kernels_fit(
    model: PreTrainedModel, cache: KvCache, windows: Sequence[int | None], batch_invariant: bool
) -> bool:
    """Runs small steps by the attention kernels and by their reference, in the shape of each kind of layer,
    with what else the model's attention has, planned as steps will be. False, with a warning in the log, if
    they differ or the kernels can't be run: the engine then computes attention by torch's products over
    gathered keys and values, which takes several times as long."""
    with current(cache.layer(0).device):
        try:
            problem = next(_differences(model, cache, windows, batch_invariant), None)
        except Exception as error:  # whatever a compiler or driver raises
            problem = f"{type(error).__name__}: {error}"
    if problem is not None:
        instead = "attention by torch's products over gathered keys and values, and no CUDA graphs"
        _log.warning("kernels_off", reason=problem, instead=instead)
    return problem is None


def _differences(
    model: PreTrainedModel, cache: KvCache, windows: Sequence[int | None], batch_invariant: bool
) -> Iterator[str]:
    """Where kernels and reference differ, in words."""
    config = model.config.get_text_config(decoder=True)
    heads, softcap = int(config.num_attention_heads), getattr(config, "attn_logit_softcapping", None)
    has_sinks = any(name.endswith("sinks") for name, _ in model.named_parameters())
    kinds: dict[Key, torch.Tensor] = {}
    for i, window in enumerate(windows):
        kinds.setdefault(key_of(heads, cache.layer(i), window), cache.layer(i))
    for key, layer in kinds.items():
        options = {
            "window": key[3],
            "softcap": softcap,
            "sinks": _random(layer, heads) if has_sinks else None,
        }
        for decodes_alone in (True, False):
            planners = Planners(cache.block_size, layer.device, batch_invariant=batch_invariant)
            error, allowed = _difference(key, layer, options, planners, decodes_alone=decodes_alone)
            if not error <= allowed:  # NaN neither
                step = "a decode step" if decodes_alone else "a step with a prompt"
                yield f"{step} with window {key[3]} differs from the reference by {error:g}"


def _difference(
    key: Key, layer: torch.Tensor, options: dict[str, Any], planners: Planners, *, decodes_alone: bool
) -> tuple[float, float]:
    """The largest difference between kernels and reference, and what it may be."""
    heads, kv_heads, dim, _ = key
    size = layer.shape[3]
    segments, decodes, num_tokens, num_blocks = small_step(size)
    kv, query = _random(layer, 2, kv_heads, num_blocks, size, dim), _random(layer, heads, num_tokens, dim)
    shape = StepShape(() if decodes_alone else segments, decodes, num_tokens)
    arrays = planners.plan(key, kv.element_size(), shape)
    scale = dim**-0.5
    ours = node_attention(query, kv, node_list(arrays, layer.device), scale=scale, **options).float().cpu()
    # On the CPU, where no library's products are in another precision than their numbers.
    sinks = options["sinks"]
    there = options | {"sinks": None if sinks is None else sinks.cpu()}
    nodes = node_list(arrays, torch.device("cpu"))
    exact = reference.node_attention(query.cpu(), kv.cpu(), nodes, scale=scale, **there).float()
    largest = float(exact.abs().max())
    allowed = FLOAT32 if layer.dtype == torch.float32 else largest * LAST_PLACES[layer.dtype]
    return float((ours - exact).abs().max()), allowed


def check_moves(layer: torch.Tensor) -> None:
    """Tries the kernels that write keys and values and copy blocks, on memory of their own, in the shape of
    layer [2, K, B, S, D]. Raises RuntimeError where they are wrong, since nothing takes their place."""
    _, kv_heads, _, size, dim = layer.shape
    kv = _random(layer, 2, kv_heads, 4, size, dim)
    wanted, (key, value) = kv.clone(), _random(layer, 2, kv_heads, 3, dim)
    slots = torch.tensor([2 * size, -1, size - 1], device=layer.device)
    for half, new in zip(wanted.flatten(2, 3), (key, value), strict=True):
        half[:, slots[::2]] = new[:, ::2]
    write_kv(kv, key, value, slots)
    if not torch.equal(kv, wanted):
        raise RuntimeError("keys and values are not written where they should be")
    wanted[:, :, [3, 1]] = wanted[:, :, [0, 2]]
    copy_blocks(kv, kv, torch.tensor([[0, 3], [2, 1]]))
    if not torch.equal(kv, wanted):
        raise RuntimeError("blocks are not copied as they should be")


def host_reached(layer: torch.Tensor) -> bool:
    """Whether kernels move blocks in the shape of layer [2, K, B, S, D] to page-locked memory and back. Where
    they don't, with a warning in the log, blocks go by way of pieces of memory, which takes longer."""
    _, kv_heads, _, size, dim = layer.shape
    kv, pairs = _random(layer, 2, kv_heads, 4, size, dim), torch.tensor([[0, 2], [3, 1]])
    try:
        host = torch.zeros(2, kv_heads, 3, size, dim, dtype=kv.dtype, pin_memory=layer.is_cuda)
        copy_blocks(kv, host, pairs, reached=True)
        back = torch.zeros_like(kv)
        copy_blocks(host, back, pairs.flip(1), reached=True)
        right = torch.equal(back[:, :, [0, 3]], kv[:, :, [0, 3]]) and not back[:, :, 1:3].any()
        problem = None if right else "blocks come back as others"
    except Exception as error:  # whatever a compiler or driver raises
        problem = f"{type(error).__name__}: {error}"
    if problem is not None:
        _log.warning("swap_in_pieces", reason=problem)
    return problem is None


def _random(layer: torch.Tensor, *shape: int) -> torch.Tensor:
    """Normally distributed, where the layer is, the same each time."""
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float32).to(layer.device, layer.dtype)


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
