"""Loading folders and GGUF files, and what ModelInfo says of them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    Llama4TextConfig,
    MistralConfig,
    MistralForCausalLM,
)

from forkdecode.errors import InvalidRequestError, ModelLoadError
from forkdecode.model import loader
from forkdecode.model.loader import adopt, load, resolve_device, resolve_dtype
from forkdecode.model.settings import UNBOUNDED, positions
from forkdecode.model.weights import convert
from tests.model.driver import Driver, expected
from tests.model.tiny_gguf import write_tiny_gguf
from tests.models import _COMMON, tiny_model
from tests.tiny_model import EOS, save_model, save_tiny_llama, vocabulary

V = len(vocabulary())


def test_a_folder_is_loaded_and_described(tmp_path: Path) -> None:
    loaded = load(str(save_tiny_llama(tmp_path / "tiny")), dtype="float32")
    info = loaded.info
    assert (info.name, info.vocab_size, info.max_positions, info.dtype) == ("tiny", V, 512, "float32")
    assert info.eos_ids == (vocabulary()[EOS],)
    assert info.kv_shapes == ((2, 8), (2, 8))
    assert info.windows == (None, None)
    assert info.num_weights == sum(p.numel() for p in loaded.model.parameters())
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert not loaded.model.training
    assert loaded.model.config._attn_implementation != "forkdecode_probe"
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("hello world")) == "hello world"


def test_weights_are_those_of_the_folder(tmp_path: Path) -> None:
    folder = save_tiny_llama(tmp_path)
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    expected = AutoModelForCausalLM.from_pretrained(folder)(ids).logits
    assert torch.equal(load(str(folder), dtype="float32").model(ids).logits, expected)


def test_dtype_is_that_of_the_weights(tmp_path: Path) -> None:
    loaded = load(str(save_tiny_llama(tmp_path)), dtype="bfloat16")
    assert {p.dtype for p in loaded.model.parameters()} == {torch.bfloat16}
    assert loaded.info.dtype == "bfloat16"


def test_tied_weights_count_once(tmp_path: Path) -> None:
    tied = load(str(save_tiny_llama(tmp_path / "tied", tie_word_embeddings=True)), dtype="float32").info
    untied = load(str(save_tiny_llama(tmp_path / "untied")), dtype="float32").info
    assert untied.num_weights - tied.num_weights == V * 32


def test_windows_come_from_what_attention_is_handed(tmp_path: Path) -> None:
    config = MistralConfig(
        vocab_size=V, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, sliding_window=24, pad_token_id=None,
    )  # fmt: skip
    info = load(str(save_model(MistralForCausalLM(config), tmp_path)), dtype="float32").info
    assert info.windows == (24, 24)


def test_gpt2_has_positions_and_no_rope(tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=V, n_positions=64, n_embd=32, n_layer=2, n_head=4, eos_token_id=[3, 9])
    info = load(str(save_model(GPT2LMHeadModel(config), tmp_path)), dtype="float32").info
    assert (info.max_positions, info.kv_shapes, info.eos_ids) == (64, ((4, 8), (4, 8)), (3, 9))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_model_in_training_is_taken_as_it_answers(family: str) -> None:
    model = tiny_model(family).train()
    loaded = adopt(model)
    assert loaded.model is model
    assert not any(module.training for module in model.modules())


def test_a_decoder_that_is_elsewhere_than_its_prefix_says_is_found() -> None:
    """As Llama 4's text model has it."""
    configs = (
        Llama4TextConfig(
            **_COMMON, head_dim=8, intermediate_size_mlp=48, num_local_experts=3, attention_chunk_size=None,
            layer_types=["full_attention"] * 2, no_rope_layers=[1, 0],
        )
        for _ in range(2)
    )  # fmt: skip
    oracle, model = (tiny_model("", config=config) for config in configs)
    assert oracle.base_model is oracle
    loaded = adopt(model)
    driver = Driver(model, info=loaded.info)
    group = driver.open(list(range(5, 24)))
    assert (driver.prefill(group, [7, 11]) - expected(oracle, group.rows)).abs().max() < 5e-5


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({"eos_token_id": [7, 3]}, (3, 7)),
        ({"eos_token_id": 5}, (5,)),
        ({}, (vocabulary()[EOS],)),  # left to the config
        ({"eos_token_id": [3, 100_000]}, (3,)),  # never drawn
    ],
)
def test_eos_ids_are_those_of_generation_config(
    tmp_path: Path, generation: dict[str, object], expected: tuple[int, ...]
) -> None:
    folder = save_tiny_llama(tmp_path)
    (folder / "generation_config.json").write_text(json.dumps(generation))
    assert load(str(folder), dtype="float32").info.eos_ids == expected


@pytest.mark.parametrize("wrong", ["262", [263, "x"], 262.0, [1e9], True, [[1, 2]], {"id": 3}])
@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
def test_eos_ids_of_another_type_are_refused_by_name(tmp_path: Path, file: str, wrong: object) -> None:
    folder = save_tiny_llama(tmp_path, eos_token_id=None)
    _changed(folder / file, eos_token_id=wrong)
    with pytest.raises(ModelLoadError, match="eos_token_id") as error:
        load(str(folder), dtype="float32")
    assert error.value.field == "model"
    if file == "generation_config.json":
        assert f"eos_token_id is {wrong!r}; allowed: a token id, or a list of them" in str(error.value)


def test_a_model_without_eos_has_none(tmp_path: Path) -> None:
    folder = save_tiny_llama(tmp_path, eos_token_id=None)
    assert load(str(folder), dtype="float32").info.eos_ids == ()


def test_a_gguf_file_is_dequantised(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    capfd.readouterr()
    loaded = load(str(path), dtype="float32")
    assert "it/s" not in capfd.readouterr().err  # the terminal has one owner, the caller
    assert loaded.info.name == "tiny"
    assert loaded.info.kv_shapes == ((2, 8), (2, 8))
    assert loaded.info.vocab_size == V
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("hello world")) == "hello world"
    logits = loaded.model(torch.tensor([[1, 2, 3]])).logits
    assert logits.isfinite().all()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("", "no file or folder"),
        ("./nowhere", "no file or folder './nowhere'"),
        ("/nowhere/at/all", "no file or folder"),
        ("lost.gguf", "no file or folder 'lost.gguf'"),
        ("someone/some-model", "can't be opened"),
    ],
)
def test_what_is_not_there_is_said(model: str, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message) as caught:
        load(model)
    assert caught.value.field == "model"
    assert "\n" not in str(caught.value)


def test_broken_folders_are_said(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"holds no config\.json"):
        load(str(tmp_path))
    folder = save_tiny_llama(tmp_path / "tiny")
    (folder / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ModelLoadError, match="can't be opened"):
        load(str(folder))
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match="can't be opened"):
        load(str(folder))


def test_a_file_that_is_no_gguf_is_said(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(ModelLoadError, match="can't be opened"):
        load(str(path))


@pytest.mark.parametrize("wrong", [0, -1])
def test_only_a_limit_that_is_not_given_is_none(tmp_path: Path, wrong: int) -> None:
    folder = save_tiny_llama(tmp_path)
    _changed(folder / "config.json", max_position_embeddings=wrong)
    with pytest.raises(ModelLoadError, match="max_position_embeddings"):
        load(str(folder), dtype="float32")


@pytest.mark.parametrize("wrong", [0, -1, "512", 512.0, True])
def test_a_number_of_positions_is_one(wrong: object) -> None:
    assert positions("a", SimpleNamespace(max_position_embeddings=512)) == 512
    assert positions("a", SimpleNamespace(max_position_embeddings=None)) == UNBOUNDED
    assert positions("a", SimpleNamespace()) == UNBOUNDED
    with pytest.raises(ModelLoadError, match="model 'a' can't be served: max_position_embeddings is"):
        positions("a", SimpleNamespace(max_position_embeddings=wrong))


def _changed(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_max_positions_lowers_the_models(tmp_path: Path) -> None:
    folder = str(save_tiny_llama(tmp_path))
    assert load(folder, max_positions=100).info.max_positions == 100
    with pytest.raises(ModelLoadError, match="allowed: 1 to 512"):
        load(folder, max_positions=513)


def test_auto_dtype_is_bfloat16_where_the_cpu_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for has, dtype in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(loader, "multiplies_bfloat16", lambda has=has: has)
        assert resolve_dtype("auto") == dtype
        assert resolve_dtype("bfloat16") == "bfloat16"
    with pytest.raises(InvalidRequestError, match="dtype: 'int8' is unknown; allowed: auto, float32"):
        resolve_dtype("int8")


def test_devices_are_checked(tmp_path: Path) -> None:
    assert resolve_device("auto") == torch.device("cpu")
    with pytest.raises(InvalidRequestError, match="device: 'abacus' is unknown"):
        resolve_device("abacus")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_what_transformers_keeps_in_float32_stays_so(tmp_path: Path, dtype: torch.dtype) -> None:
    config = Glm4MoeConfig(
        vocab_size=99, hidden_size=16, intermediate_size=16, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, n_routed_experts=4, num_experts_per_tok=2,
        n_group=1, topk_group=1, first_k_dense_replace=0, pad_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    Glm4MoeForCausalLM(config).save_pretrained(tmp_path)
    theirs = dict(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype).named_parameters())
    assert {p.dtype for p in theirs.values()} == {dtype, torch.float32}  # its routers
    model = load(str(tmp_path), dtype=str(dtype).removeprefix("torch.")).model
    convert(model, torch.device("cpu"), dtype)  # as a runner does
    assert all(
        p.dtype == theirs[name].dtype and torch.equal(p, theirs[name]) for name, p in model.named_parameters()
    )
