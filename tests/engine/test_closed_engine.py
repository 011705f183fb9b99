"""An engine that has ended gives its memory back, whoever still holds what it left behind."""

from __future__ import annotations

import gc
import queue
import weakref
from typing import Any

import pytest
import torch

from forkdecode import LLM
from forkdecode.engine import start
from forkdecode.engine.thread import EngineThread, Job
from forkdecode.errors import CapacityError
from forkdecode.model.kv_cache import KvCache
from forkdecode.step import DeviceLostError, StepOutput, StepPlan
from forkdecode.types import Greedy
from tests.llm.models import TOKENIZER, tiny_llama
from tests.model.test_kv_cache import INFO
from tests.scheduler.engines import request, toy_engine

GPU = torch.device("cuda", 0)


def test_a_closed_engine_gives_back_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(tiny_llama(), tokenizer=TOKENIZER, num_blocks=64, threads=1)
    runner: Any = llm._session.engine.thread._loop._engine._runner
    cache = weakref.ref(runner.cache)
    del runner
    kept: list[KvCache | None] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: kept.append(cache()))
    llm.close()
    assert kept == [None]


class Short:
    """A runner whose steps raise, with a tensor at hand."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.tensor: weakref.ref[torch.Tensor] | None = None

    def execute(self, plan: StepPlan) -> StepOutput:
        activations = torch.zeros(8)
        self.tensor = weakref.ref(activations)
        raise self.error


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory"), DeviceLostError("gone")], ids=repr)
def test_an_error_that_is_kept_keeps_no_tensors(error: Exception) -> None:
    engine, runner = toy_engine(), Short(error)
    engine._runner = runner
    thread = EngineThread(engine)
    box: queue.SimpleQueue[Any] = queue.SimpleQueue()
    thread.submit([Job(request("a", [3], Greedy(), max_tokens=9), box.put)])
    kept = box.get(timeout=60)
    thread.close()
    gc.collect()
    assert kept is not None
    assert runner.tensor is not None
    assert runner.tensor() is None


def test_what_torch_keeps_for_nobody_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 GiB that an engine before has left to torch's allocator, which the driver takes for used."""
    kept = [100 << 30]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: ((106 << 30) - kept[0], 140 << 30))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: kept.__setitem__(0, 0))
    assert start.free_memory(GPU) > 100 << 30


def test_a_gpu_without_so_much_memory_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 TiB.")

    monkeypatch.setattr(torch, "zeros", full)
    with pytest.raises(CapacityError, match="kv_memory: cuda:0 has no") as refused:
        KvCache(INFO, 16, 2**20, 0, torch.float32, GPU)
    assert refused.value.field == "kv_memory"
