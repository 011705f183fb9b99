"""Which transformers models the lean decoder serves, and taking their weights out of them.

A model is recognised by the exact classes of its parts, so that the code whose arithmetic is repeated
here is the code that would have run. What is not recognised stays on the generic path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.models.gemma2 import modeling_gemma2 as gemma2
from transformers.models.gemma3 import modeling_gemma3 as gemma3
from transformers.models.llama import modeling_llama as llama
from transformers.models.mistral import modeling_mistral as mistral
from transformers.models.phi3 import modeling_phi3 as phi3
from transformers.models.qwen2 import modeling_qwen2 as qwen2
from transformers.models.qwen3 import modeling_qwen3 as qwen3

from forkdecode.model.packing import Linear, can_pack
from forkdecode.model.support import rope_types

ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
FIXED_ROPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotations that depend on the position alone."""
_PLAIN_NORMS = ("input_layernorm", "post_attention_layernorm")
_DOUBLE_NORMS = (*_PLAIN_NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")


@dataclass(frozen=True, slots=True)
class Family:
    """The classes that a recognised model is made of.

    qkv, gate_up: the linear layers over the same inputs, in order; norms: of a layer; all in
    transformers' names. head_norms: queries and keys have norms. one_plus: norms scale by 1 + weight.
    softcap: attention is handed its attn_logit_softcapping; Gemma 3 keeps the attribute and applies none.
    """

    model: type
    decoder: type
    layer: type
    attention: type
    mlp: type
    norm: type
    embedding: type = torch.nn.Embedding
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    norms: tuple[str, ...] = _PLAIN_NORMS
    head_norms: bool = False
    one_plus: bool = False
    softcap: bool = False


def _family(module: Any, prefix: str, **rest: Any) -> Family:
    parts = ("DecoderLayer", "Attention", "MLP", "RMSNorm")
    decoder = getattr(module, f"{prefix}TextModel", None) or getattr(module, f"{prefix}Model")
    return Family(
        getattr(module, f"{prefix}ForCausalLM"),
        decoder,
        *(getattr(module, prefix + p) for p in parts),
        **rest,
    )


_FAMILIES = (
    _family(llama, "Llama"),
    _family(mistral, "Mistral"),
    _family(qwen2, "Qwen2"),
    _family(qwen3, "Qwen3", head_norms=True),
    _family(phi3, "Phi3", qkv=("qkv_proj",), gate_up=("gate_up_proj",)),
    _family(
        gemma2,
        "Gemma2",
        norms=_DOUBLE_NORMS,
        one_plus=True,
        softcap=True,
        embedding=gemma2.Gemma2TextScaledWordEmbedding,
    ),
    _family(
        gemma3,
        "Gemma3",
        norms=_DOUBLE_NORMS,
        one_plus=True,
        head_norms=True,
        embedding=gemma3.Gemma3TextScaledWordEmbedding,
    ),
)


@dataclass(frozen=True, slots=True)
class LeanLayer:
    """One layer's packed weights. Norm weights are float32, already with the 1 of 1 + weight.

    attention_out_norm, mlp_out_norm: of what attention and MLP add to the hidden states (Gemma).
    """

    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear
    attention_norm: torch.Tensor
    mlp_norm: torch.Tensor
    attention_out_norm: torch.Tensor | None
    mlp_out_norm: torch.Tensor | None
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    scale: float
    softcap: float | None
    rope: str | None
    """The layer type that chooses its rotation, where the model has several."""


def recognise(model: PreTrainedModel, dtype: torch.dtype) -> Family | None:
    """The family whose forward the lean decoder repeats exactly for this model, or None."""
    family = next((f for f in _FAMILIES if type(model) is f.model), None)
    if family is None or dtype not in (torch.float32, torch.bfloat16) or not can_pack(dtype):
        return None
    decoder: Any = model.base_model
    config = model.config
    if not _is(decoder, family.decoder) or getattr(config, "use_bidirectional_attention", False):
        return None
    if any(kind not in FIXED_ROPES for kind, _ in rope_types(config)):
        return None
    if _activation(config) not in ACTIVATIONS:
        return None
    known = _is(decoder.embed_tokens, family.embedding) and _is(decoder.norm, family.norm)
    known &= len(decoder.layers) == config.num_hidden_layers
    known &= all(_layer_known(layer, family) for layer in decoder.layers)
    return family if known and not any(map(_altered, model.modules())) else None


def _layer_known(layer: Any, family: Family) -> bool:
    """Whether everything in the layer that has parameters is of the class that it should be."""
    attention, mlp = layer.self_attn, layer.mlp
    norms = [getattr(layer, name) for name in family.norms]
    norms += [attention.q_norm, attention.k_norm] if family.head_norms else []
    linears = [getattr(attention, name) for name in (*family.qkv, "o_proj")]
    linears += [getattr(mlp, name) for name in (*family.gate_up, "down_proj")]
    known = _is(layer, family.layer) and _is(attention, family.attention) and _is(mlp, family.mlp)
    known &= all(_is(m, family.norm) for m in norms) and all(_is(m, torch.nn.Linear) for m in linears)
    owners = {m for m in layer.modules() if next(m.parameters(recurse=False), None) is not None}
    return known and owners == {*norms, *linears}


def _is(module: torch.nn.Module, kind: type) -> bool:
    """Exactly: a subclass may compute otherwise."""
    return type(module) is kind


def _altered(module: torch.nn.Module) -> bool:
    """Whether someone has put code of his own around the module's forward."""
    hooks = (module._forward_hooks, module._forward_pre_hooks)
    return any(hooks) or "forward" in module.__dict__ or hasattr(module, "parametrizations")


def _activation(config: Any) -> str:
    return str(getattr(config, "hidden_activation", None) or config.hidden_act)


def activation(model: PreTrainedModel) -> str:
    """The gate's activation, in the words of forkdecode_kernels.gated."""
    return ACTIVATIONS[_activation(model.config)]


def norm_weight(norm: Any, family: Family) -> torch.Tensor:
    """What the normalised hidden states are multiplied by, float32."""
    weight: torch.Tensor = norm.weight.detach().float()
    return 1.0 + weight if family.one_plus else weight


def take_layer(model: PreTrainedModel, index: int, family: Family, linear: type[Linear]) -> LeanLayer:
    """Repacks layer `index` into `linear` layers. Its own weights are dropped from the model, which can't
    run after."""
    base: Any = model.base_model
    layer = base.layers[index]
    attention, mlp = layer.self_attn, layer.mlp
    norms = [norm_weight(getattr(layer, name), family) for name in family.norms]
    double = len(norms) > 2
    types = getattr(model.config, "layer_types", None)
    taken = LeanLayer(
        qkv=_packed([getattr(attention, name) for name in family.qkv], linear),
        out=_packed([attention.o_proj], linear),
        gate_up=_packed([getattr(mlp, name) for name in family.gate_up], linear),
        down=_packed([mlp.down_proj], linear),
        attention_norm=norms[0],
        mlp_norm=norms[2 if double else 1],
        attention_out_norm=norms[1] if double else None,
        mlp_out_norm=norms[3] if double else None,
        query_norm=norm_weight(attention.q_norm, family) if family.head_norms else None,
        key_norm=norm_weight(attention.k_norm, family) if family.head_norms else None,
        scale=float(attention.scaling),
        softcap=attention.attn_logit_softcapping if family.softcap else None,
        rope=types[index] if types and isinstance(base.rotary_emb.rope_type, dict) else None,
    )
    base.layers[index] = torch.nn.Identity()
    return taken


def _packed(linears: list[torch.nn.Linear], linear: type[Linear]) -> Linear:
    """Layers over the same inputs as one, their outputs side by side."""
    weights: list[torch.Tensor] = [m.weight for m in linears]
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    if all(m.bias is None for m in linears):
        return linear(weight, None)
    biases: list[torch.Tensor] = [
        weight.new_zeros(m.out_features) if m.bias is None else m.bias for m in linears
    ]
    return linear(weight, torch.cat(biases))
