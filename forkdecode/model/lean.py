"""A decoder for the models that share Llama's shape: few large matrix products, and one compiled
pass between each two of them, without a module call in between.

The generic path, forkdecode.model.generic.GenericDecoder, is its oracle.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast

from forkdecode.model.attention import StepAttention
from forkdecode.model.lean_tape import TapedLayers, Turns
from forkdecode.model.lean_weights import (
    Family,
    LeanLayer,
    activation,
    norm_weight,
    recognise,
    take_layer,
)
from forkdecode.model.packing import Linear, PackedLinear
from forkdecode.model.rope_table import RopeTable
from forkdecode_kernels.attention import attention
from forkdecode_kernels.gated import gated
from forkdecode_kernels.norm import add_rms_norm
from forkdecode_kernels.rotary import split_rotate_write


class LeanDecoder:
    """Takes the layers' weights out of the model, packed, so that they are held once.

    The embedding and the final norm stay the model's own. Each row of a step is computed alike
    whatever rows are beside it; with oneDNN's products there must be 16 (forkdecode.model.packing).
    """

    def __init__(self, model: PreTrainedModel, family: Family, linear: type[Linear]) -> None:
        base: Any = model.base_model
        config = model.config
        self._embedding = base.embed_tokens
        self._norm = norm_weight(base.norm, family)
        self._eps = float(config.rms_norm_eps)
        self._activation = activation(model)
        self._layers = [take_layer(model, i, family, linear) for i in range(len(base.layers))]
        kinds = {layer.rope for layer in self._layers}
        self._taped: TapedLayers | None = None
        if TapedLayers.fit(self._layers, model.dtype):
            self._taped = TapedLayers(self._layers, self._norm, self._eps, self._activation)
        self._ropes = {kind: RopeTable(base.rotary_emb, kind) for kind in kinds}

    @staticmethod
    def of(
        model: PreTrainedModel, dtype: torch.dtype, linear: type[Linear] = PackedLinear
    ) -> LeanDecoder | None:
        """The decoder of a model that is recognised, which can't be run by itself any more, or None."""
        family = recognise(model, dtype)
        return None if family is None else LeanDecoder(model, family, linear)

    def __call__(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        step: StepAttention,
        wanted: torch.Tensor | None = None,
    ) -> BaseModelOutputWithPast:
        """tokens, positions [T] int64 -> last_hidden_state [1, T, hidden], normalised.

        wanted [n] int64: tokens whose states are wanted, all if None. The last layer ends with its keys and
        values for the others, and their states may be anything. Products must then leave each row alone.
        """
        hidden: torch.Tensor = self._embedding(tokens)
        turns = {kind: rope.rows(positions) for kind, rope in self._ropes.items()}
        if wanted is not None and len(wanted) >= len(tokens):
            wanted = None
        done = None if self._taped is None else self._taped(hidden, turns, step, wanted)
        if done is None:
            done = self._one_by_one(hidden, turns, step, wanted)
        return BaseModelOutputWithPast(last_hidden_state=done[None])

    def _one_by_one(
        self, hidden: torch.Tensor, turns: Turns, step: StepAttention, wanted: torch.Tensor | None
    ) -> torch.Tensor:
        """hidden [T, hidden], which is used up -> the normalised hidden states, pass by pass."""
        layers, tokens = self._layers, len(hidden)
        normed = add_rms_norm(hidden, None, layers[0].attention_norm, self._eps)
        for i, layer in enumerate(layers):
            mixed = self._attend(i, layer, normed, turns[layer.rope], step)
            if wanted is not None and i + 1 == len(layers):
                if not len(wanted):  # of no rows there is nothing to go on with
                    return normed
                mixed, hidden = mixed[wanted], hidden[wanted]
            delta = layer.out.forward(mixed)
            normed = add_rms_norm(hidden, delta, layer.mlp_norm, self._eps, layer.attention_out_norm)
            delta = layer.down.forward(gated(layer.gate_up.forward(normed), self._activation))
            following = layers[i + 1].attention_norm if i + 1 < len(layers) else self._norm
            normed = add_rms_norm(hidden, delta, following, self._eps, layer.mlp_out_norm)
        if wanted is None:
            return normed
        return normed.new_zeros(tokens, normed.shape[1]).index_copy_(0, wanted, normed)

    def _attend(
        self,
        index: int,
        layer: LeanLayer,
        normed: torch.Tensor,
        turns: tuple[torch.Tensor, torch.Tensor],
        step: StepAttention,
    ) -> torch.Tensor:
        """Attention's output [T, H * D]; writes the step's K/V first."""
        kv = step.cache.layer(index)
        qkv = layer.qkv.forward(normed)
        query = split_rotate_write(
            qkv, kv, *turns, step.slots, layer.query_norm, layer.key_norm, self._eps
        )  # fmt: skip
        plan, window = step.plan(index, len(query))
        mixed = attention(query, kv, plan, scale=layer.scale, window=window, softcap=layer.softcap)
        return mixed.view(len(normed), -1)
