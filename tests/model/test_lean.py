"""The lean decoder against the generic path and float64, and who gets it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from forkdecode.model.generic import GenericDecoder
from forkdecode.model.lean import LeanDecoder
from forkdecode.model.lean_weights import recognise
from forkdecode.model.runner import Runner
from forkdecode.model.runner_settings import RunnerSettings
from tests.model.driver import Driver, StepBuilder, expected, model_info
from tests.models import FAMILIES, VOCAB, tiny_model

LEAN = ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "phi3"]
GENERIC = [family for family in FAMILIES if family not in LEAN]


def tokens(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, n).tolist()


def vary(model: PreTrainedModel) -> PreTrainedModel:
    """Norms and biases away from the ones and zeros that they start with."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_((noise * 0.3).to(parameter.dtype))
    return model


def trace(driver: Driver) -> tuple[list[list[int]], torch.Tensor]:
    """Rows after each of several forking steps, the last beside a prefill; their distributions."""
    group, mate = driver.open(tokens(150, 1)), driver.open(tokens(40, 2))
    rows, seen = [list(group.rows[0])], [driver.prefill(group, [60, 89])]
    for step in range(5):
        parents = [0, 0, 0] if step == 0 else [2, 0, 1]
        driver.fork(group, parents, tokens(3, 10 + step))
        builder = StepBuilder()
        if step == 4:
            builder.prefill(mate, 39)
        builder.decode(group, driver.vocab)
        seen.append(driver.run(builder))
        rows += [list(row) for row in group.rows]
    return rows, torch.cat(seen)


@pytest.mark.parametrize("family", LEAN)
def test_equals_the_generic_path_in_float32(family: str) -> None:
    lean = Driver(vary(tiny_model(family)), block_size=8)
    generic = Driver(vary(tiny_model(family)), block_size=8, decoder="generic")
    assert isinstance(lean.runner._decoder, LeanDecoder)
    assert isinstance(generic.runner._decoder, GenericDecoder)
    (_, got), (_, want) = trace(lean), trace(generic)
    assert (got - want).abs().max() < 5e-5
    assert torch.equal(got.argmax(1), want.argmax(1))


@pytest.mark.parametrize("taped", [True, False])
def test_states_that_nobody_wants_change_no_others(taped: bool) -> None:
    """The last layer of a prompt's step goes on with the tokens alone whose logits are asked for."""
    few, whole = (Driver(vary(tiny_model("gemma2")), block_size=8) for _ in range(2))
    decoder, asked = whole.runner._decoder, []

    def all_states(tokens: Any, positions: Any, step: Any, wanted: torch.Tensor) -> Any:
        asked.append((len(tokens), len(wanted)))
        return decoder(tokens, positions, step)

    whole.runner._decoder = all_states  # type: ignore[assignment]
    for each in (few.runner._decoder, decoder):
        assert isinstance(each, LeanDecoder)
        each._taped = each._taped if taped else None
    (_, got), (_, want) = trace(few), trace(whole)
    assert torch.equal(got, want)
    assert asked[:2] == [(60, 0), (89, 0)]
    assert asked[-1] == (42, 3)


@pytest.mark.parametrize("family", LEAN)
def test_bfloat16_is_as_near_to_float64_as_the_generic_path(family: str) -> None:
    dtype = torch.bfloat16
    model = vary(tiny_model(family, dtype=dtype))
    exact = vary(tiny_model(family, dtype=dtype)).double()
    rows, got = trace(Driver(model, block_size=8))
    _, generic = trace(Driver(vary(tiny_model(family, dtype=dtype)), block_size=8, decoder="generic"))
    want = torch.cat([expected(exact, [row]) for row in rows])
    error, generic_error = ((x - want).square().mean().sqrt() for x in (got, generic))
    assert error <= 2 * generic_error


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
        {
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 256,
        },
        {"rope_type": "default", "rope_theta": 3e5, "partial_rotary_factor": 0.5},
    ],
    ids=lambda rope: str(rope["rope_type"]),
)
def test_rotations(rope: dict[str, Any]) -> None:
    family = "phi3" if "partial_rotary_factor" in rope else "llama"
    config = FAMILIES[family]()
    config.rope_parameters = rope
    oracle, model = (tiny_model(family, config=config) for _ in range(2))
    driver = Driver(model, block_size=16)
    assert isinstance(driver.runner._decoder, LeanDecoder)
    group = driver.open(tokens(300, 1))
    assert (driver.prefill(group) - expected(oracle, group.rows)).abs().max() < 5e-5


def test_positions_beyond_the_first_part_of_the_table() -> None:
    config = FAMILIES["llama"]()
    config.max_position_embeddings = 4096
    oracle, model = (tiny_model("llama", config=config) for _ in range(2))
    driver = Driver(model, block_size=64, num_blocks=60)
    group = driver.open(tokens(2100, 1))
    assert (driver.prefill(group, [1000, 1099]) - expected(oracle, group.rows)).abs().max() < 5e-5


@pytest.mark.parametrize("bias", ["attention_bias", "mlp_bias"])
def test_biases(bias: str) -> None:
    config = FAMILIES["llama"]()
    setattr(config, bias, True)
    oracle, model = (vary(tiny_model("llama", config=config)) for _ in range(2))
    driver = Driver(model)
    group = driver.open(tokens(50, 1))
    assert (driver.prefill(group) - expected(oracle, group.rows)).abs().max() < 5e-5


def test_gemma_3_does_not_cap_what_attention_scores() -> None:
    """Its attention keeps the attribute and hands nothing on, in whatever transformers computes."""
    config = FAMILIES["gemma3"]()
    config.attn_logit_softcapping = 1.0
    oracle, model = (tiny_model("gemma3", config=config) for _ in range(2))
    driver = Driver(model, block_size=8)
    group = driver.open(tokens(40, 1))
    assert (driver.prefill(group) - expected(oracle, group.rows)).abs().max() < 5e-5


@pytest.mark.parametrize("family", GENERIC)
def test_other_families_keep_their_modules(family: str) -> None:
    assert recognise(tiny_model(family), torch.float32) is None


def _set(name: str, value: Any) -> Callable[[PreTrainedModel], None]:
    return lambda model: setattr(model.config, name, value)


class _OwnLinear(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


def _foreign_linear(model: PreTrainedModel) -> None:
    model.model.layers[1].mlp.down_proj = _OwnLinear(64, 32, bias=False)


def _adapter(model: PreTrainedModel) -> None:
    model.model.layers[1].self_attn.adapter = torch.nn.Linear(32, 32)


def _hook(model: PreTrainedModel) -> None:
    model.model.layers[0].register_forward_hook(lambda *_: None)


def _replaced(model: PreTrainedModel) -> None:
    model.model.norm.forward = lambda x: x


@pytest.mark.parametrize(
    "change",
    [
        _set("hidden_act", "relu"),
        _set("rope_parameters", {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
        _set("num_hidden_layers", 1),
        _foreign_linear,
        _adapter,
        _hook,
        _replaced,
    ],
)
def test_what_differs_in_anything_is_not_recognised(change: Callable[[PreTrainedModel], None]) -> None:
    model = tiny_model("llama")
    assert recognise(model, torch.float32) is not None
    change(model)
    assert recognise(model, torch.float32) is None


def test_subclasses_and_float16_are_not_recognised() -> None:
    model = tiny_model("llama")
    assert recognise(model, torch.float16) is None
    model.__class__ = type("Own", (type(model),), {})
    assert recognise(model, torch.float32) is None


def test_weights_are_held_once() -> None:
    model = tiny_model("llama")
    Driver(model)
    left = {name for name, _ in model.named_parameters()}
    assert left == {"model.embed_tokens.weight", "model.norm.weight"}


@pytest.mark.parametrize("decoder", ["auto", "generic"])
def test_rotary_frequencies_stay_float32_in_a_bfloat16_model(decoder: Literal["auto", "generic"]) -> None:
    model = tiny_model("llama")
    want = model.model.rotary_emb.inv_freq.clone()
    info = replace(model_info(model), dtype="bfloat16")
    Runner(model, info, RunnerSettings(4, torch.bfloat16, torch.device("cpu"), decoder=decoder), 10, 1)
    assert model.dtype == torch.bfloat16
    assert torch.equal(model.model.rotary_emb.inv_freq, want)
