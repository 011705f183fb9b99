"""A GPU that is lost is told from a step that fails. The GPU is a stand-in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch

from forkdecode.model import device
from forkdecode.model.device import current
from forkdecode.step import DeviceLostError
from tests.model.driver import Driver, StepBuilder
from tests.models import tiny_model

GPU = torch.device("cuda", 1)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], list[torch.device]]:
    """Sets up a GPU that answers or does not; the devices that were made current."""

    def set_up(answers: bool) -> list[torch.device]:
        made_current: list[torch.device] = []

        def device(which: torch.device) -> AbstractContextManager[None]:
            made_current.append(which)
            return nullcontext()

        def synchronize(_: torch.device) -> None:
            if not answers:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")

        monkeypatch.setattr(torch.cuda, "device", device)
        monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
        return made_current

    return set_up


@pytest.mark.parametrize("answers", [True, False])
def test_what_is_raised_is_the_devices_if_it_is_lost(
    gpu: Callable[[bool], list[torch.device]], answers: bool
) -> None:
    made_current = gpu(answers)
    raised, words = (
        (RuntimeError, "out of memory") if answers else (DeviceLostError, "cuda:1 does not answer")
    )
    with pytest.raises(raised, match=words), current(GPU):
        raise RuntimeError("CUDA out of memory")
    assert made_current == [GPU]


def test_on_a_cpu_nothing_is_asked(gpu: Callable[[bool], list[torch.device]]) -> None:
    made_current = gpu(False)
    with pytest.raises(ValueError, match="wrong"), current(torch.device("cpu")):
        raise ValueError("wrong")
    assert not made_current


@pytest.mark.parametrize("answers", [True, False])
def test_a_selection_that_fails_may_be_the_devices(
    gpu: Callable[[bool], list[torch.device]], answers: bool
) -> None:
    """Selections fail group by group, and would each swallow what is all of theirs."""
    driver = Driver(tiny_model("llama"), attention="nodes")
    group = driver.open([1, 2, 3, 4])
    driver.prefill(group)
    driver.fork(group, [0], [5])
    gpu(answers)
    runner = driver.runner
    runner.device = GPU
    runner.cache.layer(0)[1].fill_(torch.nan)
    step = StepBuilder()
    step.decode(group, driver.vocab)
    if answers:
        assert [result.error is None for result in runner.execute(step.plan()).results] == [False]
    else:
        with pytest.raises(DeviceLostError):
            runner.execute(step.plan())


@pytest.mark.parametrize("newer", [False, True])
def test_float32_products_are_exact_within_and_as_chosen_outside(
    gpu: Callable[[bool], list[torch.device]], newer: bool
) -> None:
    gpu(True)
    products = torch.backends.cuda.matmul
    try:
        if newer:
            products.fp32_precision = "tf32"
        else:
            torch.set_float32_matmul_precision("high")
        with current(GPU):
            assert torch.get_float32_matmul_precision() == "highest"
            assert products.fp32_precision == "ieee"
        assert products.fp32_precision == "tf32"
        assert newer or torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_c_library_that_gives_nothing_back_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in (object(), None):
        monkeypatch.setattr(device.ctypes, "CDLL", lambda _, found=library: found)
        device.give_back_host()
