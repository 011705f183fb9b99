"""What a step raised keeps none of its tensors, whatever led to it."""

from __future__ import annotations

import pytest
import torch

from forkdecode import LLM
from forkdecode.engine.core import forget_locals
from forkdecode.model.device import exact_products, lacks_memory
from forkdecode.requests.prepare import RequestMaker
from tests.llm.models import tiny_llama


def test_an_error_that_is_its_own_cause_comes_to_an_end() -> None:
    error = RuntimeError("a model's own")
    error.__cause__ = error
    forget_locals(error)
    assert not lacks_memory(error)
    other = RuntimeError("another")
    error.__cause__, other.__cause__ = other, error
    forget_locals(error)
    assert not lacks_memory(error)


def test_products_stay_exact_until_the_last_step_has_left() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        one, other = exact_products(), exact_products()
        one.__enter__()
        other.__enter__()
        one.__exit__(None, None, None)
        assert torch.get_float32_matmul_precision() == "highest"
        other.__exit__(None, None, None)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_lost_gpu_keeps_no_engine_from_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    closed: list[bool] = []
    llm = LLM(tiny_llama(), num_blocks=64, threads=1)
    monkeypatch.setattr("torch.cuda.empty_cache", lost)
    monkeypatch.setattr(RequestMaker, "close", lambda _: closed.append(True))
    llm.close()
    assert closed
