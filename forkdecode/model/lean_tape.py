"""The lean decoder's layers noted down and run by one compiled call, where a step is decode rows alone.

The same passes in the same order as forkdecode.model.lean calls them one by one; their results are the same
bits. A prompt's steps gain nothing: each of their passes takes long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from forkdecode.model.attention import StepAttention
from forkdecode.model.lean_weights import LeanLayer
from forkdecode.model.packing import Linear, PackedLinear
from forkdecode_kernels.attention import AttentionPlan
from forkdecode_kernels.cpu.products import Panels
from forkdecode_kernels.layer_tape import LayerTape, tapes

Turns = Mapping[str | None, tuple[torch.Tensor, torch.Tensor]]


class TapedLayers:
    """The layers of a model in float32 or bfloat16 whose products are all ours; norm: the final one's weight."""

    def __init__(self, layers: Sequence[LeanLayer], norm: torch.Tensor, eps: float, activation: str) -> None:
        self._layers = layers
        self._panels = [[panels_of(each) for each in linears(layer)] for layer in layers]
        self._norms = [layer.attention_norm for layer in layers] + [norm]
        self._eps = eps
        self._activation = activation

    @staticmethod
    def fit(layers: Sequence[LeanLayer], dtype: torch.dtype) -> bool:
        """Whether they can be noted down."""
        ours = all(isinstance(each, PackedLinear) and each.panels for one in layers for each in linears(one))
        return ours and dtype in (torch.float32, torch.bfloat16)

    def __call__(self, hidden: torch.Tensor, turns: Turns, step: StepAttention) -> torch.Tensor | None:
        """hidden [T, hidden], which is used up -> the normalised hidden states, or None, with nothing done,
        where the step is not of decode rows alone."""
        plans = [step.plan(i, self._heads(i, step))[0] for i in range(len(self._layers))]
        if not all(map(tapes, plans)):
            return None
        tape, memory = LayerTape(), _Memory(hidden, step.slots.contiguous())
        out = torch.empty_like(hidden)
        tape.norm(hidden, None, self._norms[0], self._eps, None, out)
        for i, plan in enumerate(plans):
            self._note(tape, memory, i, plan, turns, step, hidden, out)
        tape.run()
        return out

    def _heads(self, index: int, step: StepAttention) -> int:
        """Query heads of a layer."""
        kv = step.cache.layer(index)
        return self._panels[index][0].outputs // kv.shape[4] - 2 * kv.shape[1]

    def _note(
        self,
        tape: LayerTape,
        memory: _Memory,
        index: int,
        plan: AttentionPlan,
        turns: Turns,
        step: StepAttention,
        hidden: torch.Tensor,
        normed: torch.Tensor,
    ) -> None:
        """One layer, from the norm before it to the norm after it."""
        layer, (qkv, out, gate_up, down), eps = self._layers[index], self._panels[index], self._eps
        kv = step.cache.layer(index)
        joint = memory.of("qkv", qkv.outputs)
        query = memory.of("query", out.inputs).view(-1, len(hidden), kv.shape[4])
        mixed, delta = memory.of("mixed", out.inputs), memory.of("delta", out.outputs)
        both, gated = memory.of("gate+up", gate_up.outputs), memory.of("gated", down.inputs)
        tape.product("qkv", normed, qkv, joint)
        weights = layer.query_norm, layer.key_norm
        tape.rotate(joint, kv, turns[layer.rope], memory.slots, weights, eps, query)
        tape.attend(query, kv, plan, layer.scale, layer.softcap, mixed)
        tape.product("attention out", mixed, out, delta)
        tape.norm(hidden, delta, layer.mlp_norm, eps, layer.attention_out_norm, normed)
        tape.product("gate+up", normed, gate_up, both)
        tape.gate(both, self._activation, gated)
        tape.product("down", gated, down, delta)
        tape.norm(hidden, delta, self._norms[index + 1], eps, layer.mlp_out_norm, normed)


class _Memory:
    """What passes write for those that follow, the same for all layers of equal shape; zeros at first."""

    def __init__(self, hidden: torch.Tensor, slots: torch.Tensor) -> None:
        self.slots = slots
        self._hidden = hidden
        self._tensors: dict[tuple[str, int], torch.Tensor] = {}

    def of(self, name: str, width: int) -> torch.Tensor:
        """[T, width]"""
        key = name, width
        if key not in self._tensors:
            self._tensors[key] = self._hidden.new_zeros(len(self._hidden), width)
        return self._tensors[key]


def linears(layer: LeanLayer) -> tuple[Linear, Linear, Linear, Linear]:
    """In the order in which they run."""
    return layer.qkv, layer.out, layer.gate_up, layer.down


def panels_of(linear: Linear) -> Panels:
    """Raises ValueError where there are none."""
    if not isinstance(linear, PackedLinear) or linear.panels is None:
        raise ValueError("the product of a layer is not our own")
    return linear.panels
