"""Devices that can't be used are refused by name, before a model is read; "auto" dtypes are the device's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from forkdecode.errors import ModelLoadError
from forkdecode.model.loader import adopt, load, resolve_dtype
from tests.models import tiny_model


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for make in (
        lambda: adopt(tiny_model("llama"), device="cuda"),
        lambda: load(str(tmp_path), device="cuda"),
    ):
        with pytest.raises(ModelLoadError, match="device: 'cuda' can't be used") as caught:
            make()
        assert caught.value.field == "device"


@pytest.mark.parametrize(("capability", "dtype"), [((9, 0), "bfloat16"), ((7, 5), "float32")])
def test_auto_is_what_the_gpu_multiplies(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], dtype: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert resolve_dtype("auto", torch.device("cuda")) == dtype
    assert resolve_dtype("float16", torch.device("cuda")) == "float16"
