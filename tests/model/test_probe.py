"""What two tokens' run through a model shows, and what of it is no reason to refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import DeepseekV3Config, LlamaForCausalLM, MixtralConfig, PretrainedConfig, StableLmConfig
from transformers.models.llama import modeling_llama

from forkdecode.errors import ModelLoadError
from forkdecode.model.info import ModelInfo
from forkdecode.model.probe import probe
from tests.model.driver import Driver, expected
from tests.models import _COMMON, VOCAB, tiny_model
from tests.tiny_model import llama_config


def _before(x: torch.Tensor) -> torch.Tensor:
    """What the token before has; nothing for the first. x [1, K, T, D]."""
    return torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :, :-1]


@pytest.mark.parametrize("mixed", ["query", "key"])
def test_a_convolution_over_what_attention_is_handed_is_seen(
    monkeypatch: pytest.MonkeyPatch, mixed: str
) -> None:
    """With silent attention nothing of queries, keys and values reaches the logits."""
    real = modeling_llama.apply_rotary_pos_emb

    def mixing(query: torch.Tensor, key: torch.Tensor, *rest: Any, **named: Any) -> Any:
        query, key = real(query, key, *rest, **named)
        return (query + _before(query), key) if mixed == "query" else (query, key + _before(key))

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", mixing)
    torch.manual_seed(0)
    with pytest.raises(ModelLoadError, match="mixes tokens outside attention"):
        probe("convolved", LlamaForCausalLM(llama_config()).eval())


def test_a_convolution_over_values_is_seen() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(llama_config()).eval()
    linear = model.model.layers[1].self_attn.v_proj
    inner = linear.forward
    linear.forward = lambda x: inner(x + torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1])
    with pytest.raises(ModelLoadError, match="mixes tokens outside attention"):
        probe("convolved", model)


@pytest.mark.parametrize("pad", [2, 3])
def test_a_pad_id_among_the_probe_s_tokens_is_no_reason_to_refuse(pad: int) -> None:
    """A fresh model's embedding of it is zero, so that all of its keys are zero, at every position."""
    torch.manual_seed(0)
    assert probe("padded", LlamaForCausalLM(llama_config(pad_token_id=pad)).eval()).kv_shapes == ((2, 8),) * 2


def test_a_layer_that_attends_twice_is_seen() -> None:
    model = LlamaForCausalLM(llama_config())
    model.model.layers[1].self_attn.layer_idx = 0
    with pytest.raises(ModelLoadError, match="a layer of it attends more than once a token"):
        probe("twice", model)


def test_which_logits_are_wanted_is_nothing_to_attention() -> None:
    """GOT-OCR 2 hands it on."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(llama_config()).eval()
    inner = model.model.layers[0].self_attn.forward
    model.model.layers[0].self_attn.forward = lambda **kw: inner(logits_to_keep=torch.ones(1), **kw)
    assert probe("told", model).windows == (None, None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_experts_of_any_size_are_no_reason_to_refuse(dtype: torch.dtype) -> None:
    """transformers' grouped products take rows of 16 bytes."""
    configs = (MixtralConfig(**_COMMON | {"intermediate_size": 20}, num_local_experts=3) for _ in range(2))
    oracle, model = (tiny_model("", config=config, dtype=dtype) for config in configs)
    found = probe("odd", model)
    assert found.kv_shapes == ((2, 8), (2, 8))
    assert model.config._experts_implementation == "grouped_mm"
    oracle.set_experts_implementation("eager")
    driver = Driver(model)
    group = driver.open(list(range(5, 24)))
    assert (driver.prefill(group) - expected(oracle, group.rows)).abs().max() < 0.5


def _stablelm() -> PretrainedConfig:
    return StableLmConfig(**_COMMON)


def _latent(*, values: int) -> PretrainedConfig:
    sizes = _COMMON | {"num_key_value_heads": 4}
    return DeepseekV3Config(
        **sizes, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=values,
        first_k_dense_replace=2, n_group=1, topk_group=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        pytest.param(_stablelm, (2, 8), id="layers-drop-keywords"),
        pytest.param(lambda: _latent(values=8), (4, 12), id="values-shorter-than-keys"),
        pytest.param(lambda: _latent(values=16), (4, 16), id="values-longer-than-keys"),
    ],
)
def test_models_with_attention_of_their_own_kind_equal_their_own_forward(
    make: Callable[[], PretrainedConfig], shape: tuple[int, int]
) -> None:
    oracle, model = (tiny_model("", config=make()) for _ in range(2))
    found = probe("tiny", model)
    assert found.kv_shapes == (shape, shape)
    info = ModelInfo("tiny", VOCAB, 1024, (), found.kv_shapes, found.windows, "float32", 0)
    driver = Driver(model, info=info)
    group = driver.open(list(range(5, 24)))
    assert (driver.prefill(group, [7, 11]) - expected(oracle, group.rows)).abs().max() < 5e-5
    driver.fork(group, [0, 0], [30, 31])
    assert (driver.decode(group) - expected(oracle, group.rows)).abs().max() < 5e-5
