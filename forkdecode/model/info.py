"""What the rest of the engine needs to know of a loaded model. Plain data: no torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One loaded model.

    kv_shapes: per layer (K kv heads, D head_dim) of its keys and values alike. windows: per layer
    how many tokens, the query's own included, a query sees at most; None for all before it.
    dtype: "float32", "bfloat16" or "float16", of weights and KV cache. eos_ids come from
    generation_config and may be empty. num_weights counts tied weights once; how many
    bytes they take is up to the runner, which may store some in half of what dtype takes.
    """

    name: str
    vocab_size: int
    max_positions: int
    eos_ids: tuple[int, ...]
    kv_shapes: tuple[tuple[int, int], ...]
    windows: tuple[int | None, ...]
    dtype: str
    num_weights: int

    def __post_init__(self) -> None:
        if len(self.kv_shapes) != len(self.windows):
            raise ValueError(
                f"kv_shapes has {len(self.kv_shapes)} layers, windows has {len(self.windows)}: must be equal"
            )

    @property
    def num_layers(self) -> int:
        return len(self.kv_shapes)

    @property
    def kv_layers(self) -> tuple[tuple[int | None, int], ...]:
        """Bytes of key and value cache that one token takes, by the window of the layers."""
        found: dict[int | None, int] = {}
        for window, (heads, dim) in zip(self.windows, self.kv_shapes, strict=True):
            found[window] = found.get(window, 0) + 2 * heads * dim * DTYPE_BYTES[self.dtype]
        return tuple(found.items())

    @property
    def kv_token_elements(self) -> int:
        """Numbers of key and value cache that one token takes, over all layers."""
        return sum(2 * heads * dim for heads, dim in self.kv_shapes)


DTYPE_BYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
