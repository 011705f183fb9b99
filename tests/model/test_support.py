"""What can't be served is refused at load, with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.models.llama import modeling_llama

from forkdecode.errors import ModelLoadError
from forkdecode.model.loader import load
from forkdecode.model.probe import probe
from forkdecode.model.support import check_config, one_line
from tests.tiny_model import llama_config, save_model, save_tiny_llama

SMALL: dict[str, Any] = {
    "vocab_size": 264,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": None,
}


def encoder_decoder() -> PreTrainedModel:
    return T5ForConditionalGeneration(
        T5Config(vocab_size=264, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    )


def state_space() -> PreTrainedModel:
    return MambaForCausalLM(MambaConfig(vocab_size=264, hidden_size=16, state_size=4, num_hidden_layers=1))


def convolution() -> PreTrainedModel:
    config = Lfm2Config(**SMALL, num_key_value_heads=2, layer_types=["conv", "full_attention"])
    return Lfm2ForCausalLM(config)


def position_biases() -> PreTrainedModel:
    return BloomForCausalLM(BloomConfig(vocab_size=264, hidden_size=16, n_layer=1, n_head=2))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (encoder_decoder, "it is an encoder-decoder"),
        (state_space, "recurrent"),
        (convolution, "convolution"),
        (position_biases, "forward takes no position_ids|AttentionInterface|ALiBi"),
    ],
)
def test_models_that_cannot_be_served_are_refused_with_the_reason(
    tmp_path: Path, make: Any, reason: str
) -> None:
    torch.manual_seed(0)
    folder = save_model(make(), tmp_path)
    with pytest.raises(ModelLoadError, match=reason) as caught:
        load(str(folder), dtype="float32")
    assert caught.value.field == "model"


def test_layers_that_share_their_cache_are_refused_by_config() -> None:
    config = llama_config()
    config.num_kv_shared_layers = 1
    with pytest.raises(ModelLoadError, match="layers share their KV cache"):
        check_config(config)


@pytest.mark.parametrize(
    ("layer_type", "reason"),
    [
        ("linear_attention", "recurrent"),
        ("chunked_attention", "chunked attention"),
        ("indexed_attention", "layers of type 'indexed_attention'"),
    ],
)
def test_layer_types_without_blocks_are_refused_by_config(layer_type: str, reason: str) -> None:
    config = llama_config()
    config.layer_types = ["full_attention", layer_type]
    with pytest.raises(ModelLoadError, match=reason):
        check_config(config)


def test_a_hybrid_of_attention_alone_is_served() -> None:
    """As granite-4.0-micro is: the sizes of a state stand in its config, and no layer has one."""
    config = GraniteMoeHybridConfig(
        **SMALL, num_key_value_heads=2, shared_intermediate_size=64, layer_types=["full_attention"] * 2,
        num_local_experts=0, num_experts_per_tok=0, position_embedding_type="rope",
        mamba_n_heads=8, mamba_d_head=8, max_position_embeddings=256,
    )  # fmt: skip
    assert config.mamba_d_state
    check_config(config)
    torch.manual_seed(0)
    assert probe("granite", GraniteMoeHybridForCausalLM(config).eval()).windows == (None, None)


def test_a_rope_table_for_all_of_the_model_s_positions_is_never_left(tmp_path: Path) -> None:
    """'dynamic' makes another for sequences beyond max_position_embeddings, and none is served."""
    folder = save_tiny_llama(
        tmp_path, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    )
    loaded = load(str(folder), dtype="float32")
    assert loaded.info.max_positions == 512
    rotary = loaded.model.model.rotary_emb
    before = rotary.inv_freq.clone()
    loaded.model(torch.ones(1, 512, dtype=torch.long))
    assert torch.equal(rotary.inv_freq, before)  # one table, to the last position served


def test_longrope_is_served_within_its_short_table_alone(tmp_path: Path) -> None:
    config = Phi3Config(
        **SMALL, num_key_value_heads=2, max_position_embeddings=256, original_max_position_embeddings=64,
        rope_parameters={
            "rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
            "rope_theta": 10000.0, "original_max_position_embeddings": 64,
        },
    )  # fmt: skip
    folder = str(save_model(Phi3ForCausalLM(config), tmp_path))
    for too_many in (None, 65, 256):
        with pytest.raises(ModelLoadError, match=r"rope type 'longrope'.*max_positions=64"):
            load(folder, dtype="float32", max_positions=too_many)
    assert load(folder, dtype="float32", max_positions=64).info.max_positions == 64


class MixingLlama(LlamaForCausalLM):
    """Adds each token's neighbour to its embedding, as a recurrence or convolution would."""

    def forward(
        self,
        input_ids: Any,
        position_ids: Any = None,
        use_cache: Any = None,
        logits_to_keep: Any = 0,
        **kw: Any,
    ) -> Any:
        embeds = self.model.embed_tokens(input_ids)
        return super().forward(
            inputs_embeds=embeds + embeds.roll(1, dims=1),
            position_ids=position_ids,
            use_cache=use_cache,
            logits_to_keep=logits_to_keep,
            **kw,
        )


def test_mixing_outside_attention_is_seen() -> None:
    torch.manual_seed(0)
    with pytest.raises(ModelLoadError, match="mixes tokens outside attention"):
        probe("mixing", MixingLlama(llama_config()))


class BlindLlama(LlamaForCausalLM):
    """Hands every token position 0."""

    def forward(
        self, position_ids: Any = None, use_cache: Any = None, logits_to_keep: Any = 0, **kw: Any
    ) -> Any:
        zeros = torch.zeros_like(position_ids)
        return super().forward(position_ids=zeros, use_cache=use_cache, logits_to_keep=logits_to_keep, **kw)


def test_positions_that_reach_nothing_are_seen() -> None:
    torch.manual_seed(0)
    with pytest.raises(ModelLoadError, match="positions don't reach its keys"):
        probe("blind", BlindLlama(llama_config()))


class DeafLlama(LlamaForCausalLM):
    """Has more to its logits than what its decoder answers."""

    def __init__(self, config: LlamaConfig, *, breaks: bool) -> None:
        super().__init__(config)
        self.breaks = breaks

    def forward(self, input_ids: Any = None, position_ids: Any = None, use_cache: Any = None,
                logits_to_keep: Any = 0, **kw: Any) -> Any:  # fmt: skip
        output = super().forward(
            input_ids=input_ids, position_ids=position_ids, use_cache=use_cache, logits_to_keep=0, **kw
        )
        if self.breaks and not input_ids.any():
            raise TypeError("no ids\nof the prompt")
        output.logits = output.logits + input_ids[:, -1:, None]
        return output


@pytest.mark.parametrize(
    ("breaks", "why"),
    [(True, "its forward can't take what its decoder has computed: TypeError: no ids$"),
     (False, "its logits come of more than its decoder's last hidden state")],
)  # fmt: skip
def test_logits_that_the_decoder_does_not_tell_are_seen(breaks: bool, why: str) -> None:
    torch.manual_seed(0)
    model = DeafLlama(llama_config(), breaks=breaks)
    with pytest.raises(ModelLoadError, match=why):
        probe("deaf", model)


def test_a_layer_without_attention_is_seen() -> None:
    model = LlamaForCausalLM(llama_config())
    model.model.layers[1].self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    with pytest.raises(ModelLoadError, match="1 of its 2 layers have attention with a KV cache of their own"):
        probe("partly", model)


def test_layers_that_share_their_cache_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    first: list[torch.Tensor] = []

    def share_first_key(query: torch.Tensor, key: torch.Tensor, *_: Any, **__: Any) -> Any:
        first.append(key)
        return query, first[0]

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", share_first_key)
    with pytest.raises(ModelLoadError, match="layers share their KV cache"):
        probe("sharing", LlamaForCausalLM(llama_config()))


def test_a_bias_on_attention_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LlamaForCausalLM(llama_config())
    inner = model.model.layers[0].self_attn.forward
    model.model.layers[0].self_attn.forward = lambda **kw: inner(position_bias=torch.ones(1), **kw)
    with pytest.raises(ModelLoadError, match="attention of layer 0 needs position_bias"):
        probe("biased", model)


def test_bidirectional_attention_is_seen() -> None:
    model = LlamaForCausalLM(llama_config())
    model.model.layers[1].self_attn.is_causal = False
    with pytest.raises(ModelLoadError, match="attention of layer 1 is not causal"):
        probe("bidirectional", model)


def test_a_probe_leaves_the_attention_as_it_was() -> None:
    model = LlamaForCausalLM(llama_config())
    before = model.config._attn_implementation
    probe("tiny", model)
    assert model.config._attn_implementation == before


def test_infinite_weights_are_seen() -> None:
    model = LlamaForCausalLM(LlamaConfig.from_dict(llama_config().to_dict()))
    model.lm_head.weight.data.fill_(float("nan"))
    with pytest.raises(ModelLoadError, match="NaN or infinite logits"):
        probe("nan", model)


def test_a_window_that_attention_is_not_handed_is_seen() -> None:
    config = llama_config()
    config.sliding_window = 16
    torch.manual_seed(0)
    with pytest.raises(ModelLoadError, match="a sliding window of 16, which its attention is not handed"):
        probe("windowed", LlamaForCausalLM(config))
    config.sliding_window = config.max_position_embeddings
    assert probe("windowed", LlamaForCausalLM(config)).windows == (None, None)


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_of_nothing_is_refused(window: int) -> None:
    config = llama_config()
    config.sliding_window, config.layer_types = window, ["full_attention", "sliding_attention"]
    with pytest.raises(ModelLoadError, match=f"it has a sliding window of {window}"):
        probe("windowed", LlamaForCausalLM(config))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError("no\nmore"), "ValueError: no"),
        (ValueError("\nfield 'a':\n\n    an int, not '3'\nmore"), "ValueError: field 'a': an int, not '3'"),
        (ValueError("field 'a':"), "ValueError: field 'a':"),
        (KeyError("swish"), "KeyError: 'swish' was not found"),
        (ValueError(), "ValueError: "),
    ],
)
def test_an_error_of_others_keeps_its_reason_in_one_line(error: Exception, says: str) -> None:
    assert one_line(error) == says


def test_a_config_that_is_refused_says_why(tmp_path: Path) -> None:
    folder = save_tiny_llama(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    for wrong, says in (({"hidden_size": "32"}, r"hidden_size.*got str"), ({"hidden_act": "zorp"}, "'zorp'")):
        (folder / "config.json").write_text(json.dumps({**config, **wrong}))
        with pytest.raises(ModelLoadError, match=says):
            load(str(folder), dtype="float32")
