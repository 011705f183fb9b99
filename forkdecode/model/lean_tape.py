"""The lean decoder's layers noted down and run by one compiled call.

The same passes in the same order as forkdecode.model.lean calls them one by one; their results are the same
bits.
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
    """The layers of a model in float32 or bfloat16 whose products are all ours; norm: the final weight."""

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

    def __call__(
        self, hidden: torch.Tensor, turns: Turns, step: StepAttention, wanted: torch.Tensor | None
    ) -> torch.Tensor | None:
        """hidden [T, hidden], which is used up -> the normalised hidden states, or None, with nothing done,
        where attention is not by the compiled kernels. wanted: see LeanDecoder."""
        plans = [step.plan(i, self._heads(i, step))[0] for i in range(len(self._layers))]
        if not all(map(tapes, plans)):
            return None
        tape, memory = LayerTape(), _Memory(hidden)
        slots, last = step.slots.contiguous(), len(plans) - 1
        normed = torch.empty_like(hidden)
        tape.norm(hidden, None, self._norms[0], self._eps, None, normed)
        for i, plan in enumerate(plans):
            mixed = self._note_attention(tape, memory, i, plan, turns, step, slots, normed)
            if i < last or wanted is None:
                self._note_rest(tape, memory, i, mixed, hidden, normed)
        tape.run()
        if wanted is not None and len(wanted):
            normed[wanted] = self._end(mixed[wanted], hidden[wanted])
        return normed

    def _end(self, mixed: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """The last layer from its attention's output on, for some of the tokens."""
        tape, out = LayerTape(), torch.empty_like(hidden)
        memory = _Memory(hidden)
        self._note_rest(tape, memory, len(self._layers) - 1, mixed, hidden, out)
        tape.run()
        return out

    def _heads(self, index: int, step: StepAttention) -> int:
        """Query heads of a layer."""
        kv = step.cache.layer(index)
        return self._panels[index][0].outputs // kv.shape[4] - 2 * kv.shape[1]

    def _note_attention(
        self,
        tape: LayerTape,
        memory: _Memory,
        index: int,
        plan: AttentionPlan,
        turns: Turns,
        step: StepAttention,
        slots: torch.Tensor,
        normed: torch.Tensor,
    ) -> torch.Tensor:
        """A layer's attention; where its output [T, H * D] will be."""
        layer, (qkv, out, _, _) = self._layers[index], self._panels[index]
        kv = step.cache.layer(index)
        joint, mixed = memory.of("qkv", qkv.outputs), memory.of("mixed", out.inputs)
        query = memory.of("query", out.inputs).view(-1, len(normed), kv.shape[4])
        tape.product("qkv", normed, qkv, joint)
        weights = layer.query_norm, layer.key_norm
        tape.rotate(joint, kv, turns[layer.rope], slots, weights, self._eps, query)
        tape.attend(query, kv, plan, layer.scale, layer.softcap, mixed)
        return mixed

    def _note_rest(
        self,
        tape: LayerTape,
        memory: _Memory,
        index: int,
        mixed: torch.Tensor,
        hidden: torch.Tensor,
        normed: torch.Tensor,
    ) -> None:
        """What follows it, to the norm before the next layer."""
        layer, (_, out, gate_up, down), eps = self._layers[index], self._panels[index], self._eps
        delta = memory.of("delta", out.outputs)
        both, gated = memory.of("gate+up", gate_up.outputs), memory.of("gated", down.inputs)
        tape.product("attention out", mixed, out, delta)
        tape.norm(hidden, delta, layer.mlp_norm, eps, layer.attention_out_norm, normed)
        tape.product("gate+up", normed, gate_up, both)
        tape.gate(both, self._activation, gated)
        tape.product("down", gated, down, delta)
        tape.norm(hidden, delta, self._norms[index + 1], eps, layer.mlp_out_norm, normed)


class _Memory:
    """What passes write for those that follow, the same for all layers of equal shape; zeros at first."""

    def __init__(self, hidden: torch.Tensor) -> None:
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
