"""What starting an engine asks of a GPU, which is a stand-in here."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from forkdecode.engine import start
from forkdecode.errors import ModelLoadError
from tests.model.driver import model_info
from tests.models import tiny_model

GPU = torch.device("cuda", 0)


@pytest.mark.parametrize(("free", "left"), [(start.WORK_BYTES + 5, 5), (1000, 0)])
def test_a_steps_work_has_memory_beside_the_cache(
    monkeypatch: pytest.MonkeyPatch, free: int, left: int
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 1 << 40))
    assert start.free_memory(GPU) == left


def test_selections_that_fail_refuse_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("a selection failed: no kernel image\nis available")

    info = model_info(tiny_model("llama"))
    monkeypatch.setattr(start, "current", lambda device: nullcontext())
    monkeypatch.setattr(start, "warm_up", fails)
    words = r"device: 'cuda:0' can't be used: .*no kernel image$"
    with pytest.raises(ModelLoadError, match=words) as refused:
        start._first_selections(info, GPU, 1)
    assert refused.value.field == "device"
