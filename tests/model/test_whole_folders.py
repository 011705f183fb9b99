"""Folders that lack something: weights are refused by their names, a tokenizer may be missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaForCausalLM,
    LlamaModel,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
)

from forkdecode import LLM, InvalidRequestError
from forkdecode.errors import ModelLoadError
from forkdecode.model.loader import adopt, load
from tests.llm.models import tiny_llama
from tests.model.tiny_gguf import write_tiny_gguf
from tests.tiny_model import byte_tokenizer, llama_config, save_model, save_tiny_llama, vocabulary

IDS = torch.tensor([[1, 2, 3]])
SHAPE: dict[str, Any] = {"vocab_size": len(vocabulary()), "bos_token_id": 2, "eos_token_id": 3}


def rewritten(folder: Path, change: Any) -> str:
    """The folder with other weights."""
    file = folder / "model.safetensors"
    weights = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})
    return str(folder)


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("lm_head.weight", "its files lack lm_head.weight$"),
        ("model.layers.1.", "its files lack model.layers.1.input_layernorm.weight, .* and 6 more$"),
    ],
)
def test_weights_that_no_file_has_are_named(tmp_path: Path, lost: str, said: str) -> None:
    def lose(weights: dict[str, torch.Tensor]) -> None:
        for name in [name for name in weights if name.startswith(lost)]:
            del weights[name]

    with pytest.raises(ModelLoadError, match=said) as caught:
        load(rewritten(save_tiny_llama(tmp_path), lose), dtype="float32")
    assert caught.value.field == "model"


def test_weights_of_another_shape_are_named(tmp_path: Path) -> None:
    def halve(weights: dict[str, torch.Tensor]) -> None:
        weights["lm_head.weight"] = weights["lm_head.weight"][:132].clone()

    with pytest.raises(ModelLoadError, match=r"its config: lm_head\.weight 132x32 instead of 264x32$"):
        load(rewritten(save_tiny_llama(tmp_path), halve), dtype="float32")


def test_weights_that_the_model_has_no_place_for_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def add(weights: dict[str, torch.Tensor]) -> None:
        weights["model.layers.0.self_attn.q_proj.bias"] = torch.ones(32)

    assert load(rewritten(save_tiny_llama(tmp_path), add), dtype="float32").info.num_weights
    assert "has no place for model.layers.0.self_attn.q_proj.bias, which its files hold" in caplog.text


def test_a_decoder_without_its_head_is_refused_and_with_a_tied_one_is_whole(tmp_path: Path) -> None:
    for tied in (False, True):
        folder = save_model(LlamaModel(llama_config(tie_word_embeddings=tied)), tmp_path / str(tied))
        if tied:
            assert load(str(folder), dtype="float32").info.num_weights
        else:
            with pytest.raises(ModelLoadError, match=r"its files lack lm_head\.weight"):
                load(str(folder), dtype="float32")


def test_shards_and_bin_files_are_whole(tmp_path: Path) -> None:
    model = LlamaForCausalLM(llama_config()).eval()
    expected = model(IDS).logits
    model.save_pretrained(tmp_path / "shards", max_shard_size="40KB")
    shards = sorted((tmp_path / "shards").glob("*.safetensors"))
    assert len(shards) > 1
    model.config.save_pretrained(tmp_path / "bin")
    torch.save(model.state_dict(), tmp_path / "bin" / "pytorch_model.bin")
    for name in ("shards", "bin"):
        assert torch.equal(load(str(tmp_path / name), dtype="float32").model(IDS).logits, expected)
    shards[0].unlink()
    with pytest.raises(ModelLoadError, match=r"can't be opened: .*safetensors"):
        load(str(tmp_path / "shards"), dtype="float32")


def test_what_is_a_file_but_no_gguf_one_is_said(tmp_path: Path) -> None:
    folder = save_tiny_llama(tmp_path / "tiny")
    with pytest.raises(ModelLoadError, match=r"is a file, and no \.gguf one; allowed: its folder"):
        load(str(folder / "model.safetensors"))
    assert load(str(write_tiny_gguf(tmp_path / "TINY.GGUF")), dtype="float32").info.name == "TINY"


# -- 8-bit floats -----------------------------------------------------------------------------------


def eight_bits(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a matrix: 8-bit floats, and the scale of each block of 16 x 16."""
    rows, columns = weight.shape[0] // 16, weight.shape[1] // 16
    blocks = weight.reshape(rows, 16, columns, 16)
    scale = blocks.abs().amax((1, 3)) / 448.0
    eight = (blocks / scale[:, None, :, None]).to(torch.float8_e4m3fn)
    return eight.reshape(weight.shape), scale


def test_a_folder_of_8_bit_floats_is_dequantised(tmp_path: Path) -> None:
    folder = save_tiny_llama(tmp_path)
    plain = LlamaForCausalLM.from_pretrained(folder).eval()

    def quantise(weights: dict[str, torch.Tensor]) -> None:
        for name in [name for name in weights if "proj" in name]:
            eight, scale = eight_bits(weights[name])
            weights[name], weights[f"{name}_scale_inv"] = eight, scale
            whole = eight.float().reshape(len(scale), 16, -1, 16) * scale[:, None, :, None]
            with torch.no_grad():
                plain.get_parameter(name).copy_(whole.reshape(eight.shape))

    rewritten(folder, quantise)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [16, 16],
        "modules_to_not_convert": ["lm_head"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    found = load(str(folder), dtype="float32").model
    assert {p.dtype for p in found.parameters()} == {torch.float32}
    assert torch.allclose(found(IDS).logits, plain(IDS).logits, atol=0.02)


def test_a_model_of_8_bit_floats_is_refused() -> None:
    def quantise(model: Any) -> None:
        down = model.model.layers[1].mlp.down_proj
        down.weight = torch.nn.Parameter(down.weight.to(torch.float8_e4m3fn), requires_grad=False)

    model: PreTrainedModel = tiny_llama()
    quantise(model)
    with pytest.raises(ModelLoadError, match=r"layers\.1\.mlp\.down_proj\.weight is float8_e4m3fn"):
        adopt(model, None, "float32")


# -- tokenizers -------------------------------------------------------------------------------------


CONFIGS: dict[str, PreTrainedConfig] = {
    "raises": llama_config(),
    "makes one of an end": GPT2Config(**SHAPE, n_positions=64, n_embd=32, n_layer=1, n_head=4),
    "makes one of nothing": Qwen2Config(
        **SHAPE, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2,
    ),
}  # fmt: skip
"""What transformers does where there are no files of a tokenizer."""


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_folder_without_a_tokenizer_has_none_but_the_caller_s(tmp_path: Path, kind: str) -> None:
    AutoModelForCausalLM.from_config(CONFIGS[kind]).save_pretrained(tmp_path)
    assert load(str(tmp_path), dtype="float32").tokenizer is None
    mine = byte_tokenizer()
    assert load(str(tmp_path), dtype="float32", tokenizer=mine).tokenizer is mine
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ModelLoadError, match="can't be opened"):  # the vocabulary is lost
        load(str(tmp_path), dtype="float32")


def test_its_prompts_are_token_ids_then(tmp_path: Path) -> None:
    LlamaForCausalLM(llama_config()).save_pretrained(tmp_path)
    engine: dict[str, Any] = {"dtype": "float32", "num_blocks": 64, "threads": 1}
    with LLM(tmp_path, **engine) as llm:
        assert llm.tokenizer is None
        assert len(llm.decode([5, 6, 7], max_tokens=2, ignore_eos=True).candidates[0].token_ids) == 2
        for field, call in (
            ("prompt", lambda: llm.decode("hello", max_tokens=2)),
            ("stop", lambda: llm.decode([5], max_tokens=2, stop="x")),
        ):
            with pytest.raises(InvalidRequestError, match="no tokenizer") as caught:
                call()
            assert caught.value.field == field
    with LLM(tmp_path, tokenizer=byte_tokenizer(), **engine) as llm:
        assert llm.decode("hello", max_tokens=2, ignore_eos=True).candidates[0].text
