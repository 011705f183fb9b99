"""What can't be served, said from the model's config, before any weights are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from forkdecode.errors import ModelLoadError

SERVED_LAYERS = frozenset({"full_attention", "sliding_attention"})
_LAYER_REASONS = {
    "linear_attention": "recurrent (linear attention or state space) layers, whose state has no KV blocks",
    "conv": "convolution layers, whose state has no KV blocks",
    "hybrid": "layers with a recurrent state besides attention",
    "hybrid_sliding": "layers with a recurrent state besides attention",
    "chunked_attention": "chunked attention, which is not a sliding window",
}
# Config fields that only models with recurrent layers have, for those without layer_types.
_RECURRENT_FIELDS = ("mamba_d_state", "ssm_state_size", "state_size", "time_step_rank", "wkv_hidden_size")
ONE_TABLE_ROPE = "'dynamic' and 'longrope' choose the rotation table by the longest sequence of the batch"


def refuse(name: str, reason: str) -> ModelLoadError:
    """The standard wording of a refusal."""
    return ModelLoadError(f"model {name!r} can't be served: {reason}", field="model")


def one_line(error: BaseException) -> str:
    """An error of somebody else's within a message of ours: its kind and the first line of what it says, with
    the next where it only announces that. Of a KeyError, which says nothing else, what was not found."""
    if isinstance(error, KeyError):
        return f"KeyError: {error} was not found"[:300]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    told = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return f"{type(error).__name__}: {told[:300]}"


def check_config(config: Any) -> None:
    """Raises ModelLoadError for a model whose config says that it can't be served."""
    name = str(getattr(config, "model_type", "") or type(config).__name__)
    if getattr(config, "is_encoder_decoder", False):
        raise refuse(name, "it is an encoder-decoder; only decoder-only language models are served")
    text = config.get_text_config(decoder=True)
    layer_types = getattr(text, "layer_types", None) or ()
    for layer_type in layer_types:
        if layer_type not in SERVED_LAYERS:
            reason = _LAYER_REASONS.get(layer_type, f"layers of type {layer_type!r}")
            raise refuse(name, f"it has {reason}; only full and sliding-window attention are served")
    for field in _RECURRENT_FIELDS:
        if not layer_types and getattr(text, field, None):
            raise refuse(name, f"it has recurrent layers ({field} is set), whose state has no KV blocks")
    if getattr(text, "num_kv_shared_layers", 0):
        raise refuse(name, "layers share their KV cache (num_kv_shared_layers); each needs its own")
    if getattr(text, "alibi", False):
        raise refuse(name, "it adds ALiBi position biases to its attention scores")


def rope_types(config: Any) -> Iterator[tuple[str, int | None]]:
    """(rope type, original_max_position_embeddings) of each of the model's rotation tables."""
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    tables = [p for p in parameters.values() if isinstance(p, Mapping)] or [parameters]
    for table in tables:
        yield str(table.get("rope_type", "default")), table.get("original_max_position_embeddings")


def check_positions(name: str, config: Any, max_positions: int, limit: int | None) -> int:
    """How many positions are served: the model's, or the caller's lower `limit`.

    A table that transformers chooses by the longest sequence in the batch would make one request's
    result depend on its batch-mates. It is served only where every sequence stays within the first
    table, so that no other is ever taken: by `limit`, or because that table has all of the model's
    positions, as that of 'dynamic' has. Raises ModelLoadError.
    """
    if limit is not None and not 1 <= limit <= max_positions:
        raise ModelLoadError(
            f"max_positions: {limit} is out of range; allowed: 1 to {max_positions}", field="max_positions"
        )
    served = limit or max_positions
    for rope_type, original in rope_types(config):
        if "dynamic" not in rope_type and rope_type != "longrope":
            continue
        pinned = int(original or max_positions)
        if served > pinned:
            raise refuse(
                name,
                f"rope type {rope_type!r}: {ONE_TABLE_ROPE}, so results would depend on the others in it; "
                f"with max_positions={pinned} or less, only one table is used",
            )
    return served
