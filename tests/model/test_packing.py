"""Packed linear layers equal the plain ones, row by row whatever the row count."""

from __future__ import annotations

import pytest
import torch
from transformers.pytorch_utils import Conv1D

from forkdecode.model import packing
from forkdecode.model.packing import PackedLinear, can_pack, pack_linears, rows_stand_alone
from forkdecode.model.rows_alone import RowsAlone


@pytest.fixture(params=["ours", "oneDNN"])
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both kinds of product, whichever this machine would take."""
    if request.param == "oneDNN":
        monkeypatch.setattr(packing, "has_team", lambda: False)
    elif not packing.has_team():
        pytest.skip("no OpenMP team here")
    else:
        monkeypatch.setattr(packing, "multiplies_bfloat16", lambda: False)
    return str(request.param)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("products")
def test_equals_linear(dtype: torch.dtype, bias: bool) -> None:
    torch.manual_seed(0)
    plain = torch.nn.Linear(48, 33, bias=bias).to(dtype)
    packed = PackedLinear(plain.weight, plain.bias)
    x = torch.randn(1, 32, 48, dtype=dtype)
    torch.testing.assert_close(packed(x), plain(x))


def test_replaces_linear_and_conv1d_only() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), Conv1D(4, 16))
    x = torch.randn(16, 8)
    want = model(x)
    assert pack_linears(model) == 2
    torch.testing.assert_close(model(x), want)
    assert isinstance(model[1], torch.nn.LayerNorm)


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
def test_a_linear_layer_of_no_size_is_left_to_torch() -> None:
    """As GLM 4's mixtures without shared experts have."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 0, bias=False), torch.nn.Linear(0, 8))
    assert pack_linears(model) == 0
    with RowsAlone():
        assert torch.equal(model(torch.randn(16, 8)), model[1].bias.expand(16, 8))


class Router(torch.nn.Module):
    """As LongCat-Flash's takes the weight of one linear layer, and Hunyuan's looks at that of another."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = torch.nn.Linear(8, 4, bias=False)
        self.gate = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.nn.functional.linear(x.double(), self.classifier.weight.double())
        return self.gate(scores.to(self.gate.weight.dtype))  # type: ignore[no-any-return]


def test_a_weight_that_the_module_around_it_takes_stays() -> None:
    torch.manual_seed(0)
    router, x = Router(), torch.randn(16, 8)
    want = router(x)
    assert pack_linears(router) == 1
    assert isinstance(router.classifier, torch.nn.Linear)
    torch.testing.assert_close(router(x), want)


@pytest.mark.skipif(not can_pack(torch.float32), reason="torch without oneDNN")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_bitwise_independent_of_the_row_count(
    dtype: torch.dtype, threads: int, products: str
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.manual_seed(0)
        packed = PackedLinear(torch.randn(192, 1536).to(dtype), None)
        x = torch.randn(272, 1536).to(dtype)
        whole = packed(x)
        same_bits = products == "ours" or not (dtype == torch.bfloat16 and packing.multiplies_bfloat16())
        last_bits = {"rtol": 0.0, "atol": 0.0} if same_bits else {"rtol": 2.0**-6, "atol": 2.0**-6}
        for rows in (16, 32, 64, 112, 256):
            torch.testing.assert_close(packed(x[:rows]), whole[:rows], **last_bits)
            torch.testing.assert_close(packed(x[16 : 16 + rows]), whole[16 : 16 + rows], **last_bits)
        assert rows_stand_alone(dtype) == (products == "ours")
        for rows in (1, 2, 15) if products == "ours" else ():
            assert torch.equal(packed(x[rows : 2 * rows]), whole[rows : 2 * rows])
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not can_pack(torch.float16), reason="a CPU without float16 products")
def test_float16_is_left_to_one_dnn() -> None:
    assert not rows_stand_alone(torch.float16)
    plain = torch.nn.Linear(48, 33).to(torch.float16)
    x = torch.randn(16, 48, dtype=torch.float16)
    torch.testing.assert_close(PackedLinear(plain.weight, plain.bias)(x), plain(x), atol=1e-2, rtol=1e-2)
