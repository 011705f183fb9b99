"""Ten tiny random-weight models, one a family, small enough to run hundreds of steps in a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

VOCAB = 99
MAX_POSITIONS = 1024
WINDOW = 20

# A pad id would zero its embedding and make all logits of that row tie.
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITIONS,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "initializer_range": 0.4,
    "attention_dropout": 0.0,
}


_MIXED_LAYERS = ["sliding_attention", "full_attention"]


def _gpt2() -> PretrainedConfig:
    return GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=MAX_POSITIONS, initializer_range=0.4,
        pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip


def _gpt_oss() -> PretrainedConfig:
    return GptOssConfig(
        **_COMMON, head_dim=8, sliding_window=WINDOW, num_local_experts=4, num_experts_per_tok=2,
        layer_types=_MIXED_LAYERS, rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )  # fmt: skip


FAMILIES: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(**_COMMON),
    "qwen2": lambda: Qwen2Config(**_COMMON),
    "qwen3": lambda: Qwen3Config(**_COMMON, head_dim=8),
    "mistral": lambda: MistralConfig(**_COMMON, sliding_window=WINDOW, head_dim=8),
    "gemma2": lambda: Gemma2Config(**_COMMON, sliding_window=WINDOW, head_dim=8, query_pre_attn_scalar=8),
    "gemma3": lambda: Gemma3TextConfig(
        **_COMMON, sliding_window=WINDOW, head_dim=8, query_pre_attn_scalar=8, layer_types=_MIXED_LAYERS
    ),
    "gpt2": _gpt2,
    "phi3": lambda: Phi3Config(**_COMMON, sliding_window=None),
    "gpt_oss": _gpt_oss,
    "olmo2": lambda: Olmo2Config(**_COMMON),
}


def tiny_model(
    family: str,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    config: PretrainedConfig | None = None,
) -> PreTrainedModel:
    """A fresh model of the family, equal for equal seeds, with transformers' own eager attention.

    config: the family's, changed.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config or FAMILIES[family](), attn_implementation="eager"
        )
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("sinks"):
                    parameter.normal_()
    model = model.to(dtype).eval()
    model.generation_config.pad_token_id = 0
    return model
