"""8-bit linear layers: near the plain ones, exactly the same for a row whatever is beside it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from forkdecode.errors import InvalidRequestError
from forkdecode.model import int8
from forkdecode.model.int8 import Int8Linear, check_int8
from forkdecode.model.packing import pack_linears
from forkdecode.model.runner import Runner
from forkdecode.model.runner_settings import RunnerSettings
from tests.model.driver import Driver, model_info
from tests.models import tiny_model

needs_vnni = pytest.mark.skipif(not torch.cpu._is_vnni_supported(), reason="a CPU without VNNI")
DTYPES = [torch.float32, torch.bfloat16]


@needs_vnni
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_is_near_linear(dtype: torch.dtype, bias: bool) -> None:
    torch.manual_seed(0)
    plain = torch.nn.Linear(144, 65, bias=bias).to(dtype)
    x = torch.randn(2, 32, 144, dtype=dtype)
    got, want = Int8Linear(plain.weight, plain.bias)(x), plain(x)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    assert float(((got - want).norm() / want.norm()).detach()) < 0.02


@needs_vnni
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_are_bitwise_independent_of_all_others(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.manual_seed(0)
        layer, x = Int8Linear(torch.randn(192, 1536), None), torch.randn(300, 1536)
        whole = layer(x)
        for first, rows in ((0, 1), (5, 3), (16, 64), (77, 223)):
            assert torch.equal(layer(x[first : first + rows]), whole[first : first + rows])
    finally:
        torch.set_num_threads(before)


@needs_vnni
def test_a_row_that_is_not_finite_stays_so_alone() -> None:
    torch.manual_seed(0)
    layer, x = Int8Linear(torch.randn(32, 48), None), torch.randn(4, 48)
    want = layer(x)
    x[1, 5] = torch.inf
    got = layer(x)
    assert got[1].isnan().all()
    assert torch.equal(got[[0, 2, 3]], want[[0, 2, 3]])


@needs_vnni
def test_channels_of_zeros_and_rows_of_zeros_stay_zero() -> None:
    layer = Int8Linear(torch.stack([torch.zeros(16), torch.ones(16)]), None)
    assert layer(torch.zeros(3, 16)).tolist() == [[0.0, 0.0]] * 3
    assert layer(torch.ones(1, 16))[0].tolist() == pytest.approx([0.0, 16.0])


@needs_vnni
def test_replaces_linears() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16))
    assert pack_linears(model, Int8Linear) == 1
    assert isinstance(model[0], Int8Linear)


@needs_vnni
@pytest.mark.parametrize("decoder", ["auto", "generic"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_a_model_says_nearly_the_same(family: str, dtype: torch.dtype, decoder: Any) -> None:
    prompt = list(range(3, 60))
    said = []
    for weights in ("native", "int8"):
        driver = Driver(tiny_model(family, dtype=dtype), decoder=decoder, weights=weights)
        said.append(driver.prefill(driver.open(prompt)).float().exp())
    native, quantised = said
    assert not torch.equal(native, quantised)
    assert float((native - quantised).abs().sum()) < 0.4  # unrelated distributions: 1.5 and more


@needs_vnni
@pytest.mark.parametrize("dtype", DTYPES)
def test_batch_mates_change_no_bit(dtype: torch.dtype) -> None:
    driver = Driver(tiny_model("llama", dtype=dtype), weights="int8")
    prompt = list(range(5, 44))
    alone = driver.open(prompt)
    want = driver.prefill(alone)
    group, mates = driver.open(prompt), [driver.open(list(range(i, 60))) for i in (1, 9, 30)]
    driver.prefill(group, [30, 8])
    for mate in mates:
        driver.prefill(mate)
    driver.fork(group, [0], [7])
    driver.fork(alone, [0], [7])
    for mate in mates:
        driver.fork(mate, [0, 0], [3, 4])
    assert torch.equal(driver.decode(mates[0], group, *mates[1:])[2], driver.decode(alone)[0])
    assert want.isfinite().all()


@pytest.mark.parametrize(
    ("device", "dtype", "problem"),
    [("cuda", torch.float32, "for CPUs"), ("cpu", torch.float16, "float16")],
)
def test_refuses_what_cannot_be_had(device: str, dtype: torch.dtype, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem) as caught:
        check_int8(torch.device(device), dtype)
    assert caught.value.field == "weights"


def test_a_cpu_without_vnni_is_refused_before_the_model_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8.torch.cpu, "_is_vnni_supported", lambda: False)
    model = tiny_model("llama")
    settings = RunnerSettings(4, torch.float32, torch.device("cpu"), weights="int8")
    with pytest.raises(InvalidRequestError, match="VNNI"):
        Runner(model, model_info(model), settings, 10, 1)
    assert isinstance(model.lm_head, torch.nn.Linear)
