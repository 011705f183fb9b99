"""What a GPU is asked before it serves; here the CPU stands for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch

from forkdecode.config import EngineConfig
from forkdecode.engine import start, trial
from forkdecode.engine.trial import USUAL_FLOPS_PER_BYTE, flops_per_byte, step_bytes
from forkdecode.errors import CapacityError
from forkdecode.model.info import ModelInfo
from forkdecode.model.kv_cache import bytes_per_block
from forkdecode.model.runner import Runner
from forkdecode.scheduler.preemption import PreemptionCost
from forkdecode.step import StepOutput, StepPlan
from tests.model.driver import make_runner, model_info
from tests.models import tiny_model


@pytest.fixture
def served() -> tuple[Runner, ModelInfo]:
    model = tiny_model("llama")
    info = dataclasses.replace(model_info(model), num_weights=1000)
    return make_runner(model, decoder="generic", attention="nodes"), info


def ticks(*lengths: float) -> Iterator[float]:
    """A clock's answers around each of several runs."""
    now = 0.0
    for length in lengths:
        yield now
        now += length
        yield now


@pytest.mark.parametrize(("moving", "swaps"), [(0.001, True), (100.0, False)])
def test_what_is_quicker_decides_what_preemption_does(
    served: tuple[Runner, ModelInfo], moving: float, swaps: bool
) -> None:
    runner, info = served
    size = bytes_per_block(info, 4, "float32")
    clock = ticks(*[1000.0, 0.1, 0.2], *[1000.0, moving, 2 * moving])
    balance = flops_per_byte(runner, info, size, 40, lambda: next(clock))
    # 40 tokens in 0.1 s; 64 blocks, which is what there are slots for, there and back in `moving`.
    cost = PreemptionCost.of(info.num_weights, size, balance)
    assert 40 * cost.recompute_per_token / (64 * cost.swap_per_block) == pytest.approx(0.1 / moving)
    assert cost.swaps("auto", 64, 40) == swaps
    assert not any(runner.cache.layer(i).any() for i in range(2))


def test_a_host_that_keeps_nothing_is_not_measured(served: tuple[Runner, ModelInfo]) -> None:
    runner, info = served
    runner.resize(runner.cache.num_blocks, 0)
    assert flops_per_byte(runner, info, 1024, 40) == USUAL_FLOPS_PER_BYTE


class Gpu:
    """Of torch.cuda what is asked for memory. A step of n tokens takes n * 1,000 bytes, of `total`."""

    def __init__(self, patch: pytest.MonkeyPatch, runner: Runner, total: int) -> None:
        self.peak, self.steps, whole = 7, [], runner.execute

        def execute(plan: StepPlan) -> StepOutput:
            n = len(plan.token_ids)
            self.steps.append(n)
            if 1000 * n > total:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            self.peak = 7 + 1000 * n
            return whole(plan)

        patch.setattr(runner, "execute", execute)
        patch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
        patch.setattr(torch.cuda, "memory_allocated", lambda device: 7)
        patch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.peak)


def test_activations_are_those_of_the_largest_step_and_of_the_largest_graph(
    monkeypatch: pytest.MonkeyPatch, served: tuple[Runner, ModelInfo]
) -> None:
    gpu = Gpu(monkeypatch, served[0], 10**9)
    monkeypatch.setattr(trial, "MAX_GRAPH_TOKENS", 16)
    assert step_bytes(*served, 20) == (20 + 16) * 1000
    assert step_bytes(*served, 10) == (10 + 10) * 1000
    assert gpu.steps == [20, 10]


def test_a_step_that_does_not_fit_names_the_option(
    monkeypatch: pytest.MonkeyPatch, served: tuple[Runner, ModelInfo]
) -> None:
    Gpu(monkeypatch, served[0], 1000)
    with pytest.raises(CapacityError, match="no memory for a step of 1,500 tokens") as refused:
        start._resized(*served, EngineConfig(max_step_tokens=1500))
    assert refused.value.field == "max_step_tokens"


def test_a_cache_takes_most_of_what_the_largest_step_leaves(
    monkeypatch: pytest.MonkeyPatch, served: tuple[Runner, ModelInfo]
) -> None:
    runner, info = served
    Gpu(monkeypatch, runner, 10**9)
    monkeypatch.setattr(trial, "MAX_GRAPH_TOKENS", 16)
    size = bytes_per_block(info, 4, "float32")
    monkeypatch.setattr(start, "free_memory", lambda device: 36_000 + 100 * size)
    config = EngineConfig(block_size=4, max_step_tokens=20, swap_memory=3 * size)
    capacity = start._resized(runner, info, config)
    assert (capacity.num_blocks, capacity.host_slots) == (90, 3)
    assert (runner.cache.num_blocks, runner.cache.host_slots) == (90, 3)
