"""A model that can't run as an engine runs it is refused when it is loaded, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaMLP

from forkdecode import LLM, ModelLoadError
from forkdecode.engine import start
from tests.llm.models import tiny_llama


class ReadingMLP(LlamaMLP):
    """Multiplies by its weights itself, in a way that does not show; an engine has packed them into a form
    of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = self.gate_proj
        return x + torch.nn.functional.linear(x, gate.weight[: x.shape[-1]])


@contextmanager
def at_once(tell: Callable[[], None]) -> Iterator[None]:
    tell()
    yield


def test_a_first_step_that_fails_is_a_refusal_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(start, "told_if_slow", at_once)
    caplog.set_level("INFO", "forkdecode")
    model = tiny_llama()
    model.model.layers[1].mlp = ReadingMLP(model.config)  # type: ignore[no-untyped-call]
    with pytest.raises(ModelLoadError, match="a first step failed: TypeError: ") as refused:
        LLM(model, num_blocks=64, threads=1)
    assert refused.value.field == "model"
    assert "\n" not in str(refused.value)
    assert [record.getMessage()[:17] for record in caplog.records] == ["preparing kernels"]
