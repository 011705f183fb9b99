"""Families beyond the ten that are served by the same modules of transformers, against `generate`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from transformers import AutoConfig, PretrainedConfig

from forkdecode import Beam, Options
from tests.models import VOCAB, tiny_model
from tests.oracle.engines import Case, hypotheses, paired
from tests.oracle.generation import generate
from tests.oracle.verdict import assert_same

EOS = frozenset({7, 30, 44})
PROMPTS = tuple(tuple(np.random.default_rng(n).integers(0, VOCAB, n).tolist()) for n in (1, 25))
CASES = (
    *(Case(p, Beam(width=1), Options(max_tokens=12), EOS, greedy=True) for p in PROMPTS),
    *(Case(p, Beam(width=3), Options(max_tokens=12), EOS) for p in PROMPTS),
)
WINDOW = 20
_IDS: dict[str, Any] = {"vocab_size": VOCAB, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
_COMMON: dict[str, Any] = {
    **_IDS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.4,
}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_GPT: dict[str, Any] = {**_IDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "rotary_dim": 4}


def _config(kind: str, **settings: Any) -> Callable[[], PretrainedConfig]:
    return partial(AutoConfig.for_model, kind, **{**_COMMON, **settings})


FAMILIES: dict[str, Callable[[], PretrainedConfig]] = {
    "opt": partial(
        AutoConfig.for_model, "opt", **_IDS, hidden_size=32, ffn_dim=64, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=256, word_embed_proj_dim=16, init_std=0.4,
    ),
    "gpt_neox": _config("gpt_neox"),
    "gptj": partial(AutoConfig.for_model, "gptj", **_GPT, initializer_range=0.4),
    "phi": _config("phi"),
    "gemma": _config("gemma", head_dim=8),
    "cohere2": _config("cohere2", head_dim=8, sliding_window=WINDOW),
    "glm4": _config("glm4", head_dim=8),
    # Its keys and values have other sizes in full attention's layers, its embeddings go into each layer.
    "gemma4_text": _config(
        "gemma4_text", num_hidden_layers=6, head_dim=8, global_head_dim=16, sliding_window=WINDOW,
        hidden_size_per_layer_input=8, vocab_size_per_layer_input=VOCAB, num_kv_shared_layers=0,
        bos_token_id=0, eos_token_id=0, pad_token_id=0,
    ),
    "granite": _config("granite"),
    # Its router asks for the dtype of a weight that has been packed.
    "hunyuan_v1_moe": _config("hunyuan_v1_moe", head_dim=8, num_experts=4, moe_topk=2),
    # Its forward hands use_cache on without naming it.
    "granitemoe": _config("granitemoe", num_local_experts=4, num_experts_per_tok=2, logits_scaling=2.0),
    "smollm3": _config("smollm3"),
    "mixtral": _config("mixtral", num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
    "qwen3_moe": _config("qwen3_moe", num_experts=4, head_dim=8, **_EXPERTS),
    "deepseek_v3": _config(
        "deepseek_v3", num_key_value_heads=4, q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4,
        qk_nope_head_dim=4, v_head_dim=8, n_routed_experts=4, n_group=1, topk_group=1,
        first_k_dense_replace=1, **_EXPERTS,
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_generate(family: str) -> None:
    with paired(tiny_model(family, config=FAMILIES[family]()), EOS, block_size=8) as pair:
        for case, result in zip(CASES, pair.decode(CASES), strict=True):
            want = generate(pair.oracle, case.prompt, case.rule, case.ends)
            got = hypotheses(result)
            assert_same(got, want.hypotheses, partial(pair.reference, case), (family, case))
