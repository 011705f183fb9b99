"""Compiled layers: the same steps as without, and refused by name where they can't be had."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from forkdecode.config import EngineConfig
from forkdecode.errors import InvalidRequestError
from forkdecode.model import prepared
from forkdecode.model.compiled import check_compile, compile_layers
from forkdecode.model.runner import Runner
from forkdecode.model.runner_settings import RunnerSettings
from tests.model.driver import Driver, model_info
from tests.models import FAMILIES, tiny_model


def one_layer() -> LlamaConfig:
    config = FAMILIES["llama"]()
    config.num_hidden_layers = 1
    return config


def test_compiled_layers_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced, and run as traced: no compiler is needed. A GPU's linear layers are torch's own, and so
    are its loops."""
    monkeypatch.setattr(prepared, "pack_linears", lambda *_: None)
    seen = []
    for compiled in (False, True):
        model = tiny_model("llama", config=one_layer())
        driver = Driver(model, decoder="generic")
        driver.runner._decoder._loops = nullcontext()  # type: ignore[union-attr]
        if compiled:
            compile_layers(model, "eager")
        group = driver.open(list(range(9)))
        outputs = [driver.prefill(group)]
        driver.fork(group, [0, 0], [3, 4])
        outputs += [driver.decode(group)]
        seen.append(outputs)
    frames = torch._dynamo.utils.counters["frames"]
    assert frames["ok"] == frames["total"] > 0
    for plain, ours in zip(*seen, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "device", "problem"), [("llama", "cpu", "for GPUs"), ("gpt2", "cuda", "GPT2LMHeadModel")]
)
def test_refuses_what_cannot_be_had(family: str, device: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem) as caught:
        check_compile(tiny_model(family), torch.device(device), "layers")
    assert caught.value.field == "compile"
    check_compile(tiny_model(family), torch.device(device), "none")


def test_a_cpu_is_refused_before_the_model_is_touched() -> None:
    model = tiny_model("llama")
    settings = RunnerSettings(4, torch.float32, torch.device("cpu"), compile="layers")
    with pytest.raises(InvalidRequestError, match="GPUs"):
        Runner(model, model_info(model), settings, 10, 1)
    assert isinstance(model.lm_head, torch.nn.Linear)
    assert np.isfinite(model.lm_head.weight.detach().numpy()).all()


def test_the_option_names_what_is_allowed() -> None:
    with pytest.raises(InvalidRequestError, match="'none', 'layers'"):
        EngineConfig(compile="forward")  # type: ignore[arg-type]
