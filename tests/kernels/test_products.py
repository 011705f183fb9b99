"""Products of packed weights against the specification, and a row's bits however rows are put together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forkdecode_kernels.cpu import team
from forkdecode_kernels.cpu.product_tile import FULL, HALF, RUN
from forkdecode_kernels.cpu.products import THREAD_WORK, unpack
from forkdecode_kernels.products import pack_weight, product
from forkdecode_kernels.reference import products as reference

DTYPES = [torch.float32, torch.bfloat16]
MOST_ROWS = 2 * HALF.rows[0] + 1


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def normal(*shape: int, seed: int, half: bool = False) -> torch.Tensor:
    found = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return found.bfloat16().float() if half else found


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want).square().mean().sqrt())


@given(
    rows=st.integers(1, MOST_ROWS),
    outputs=st.integers(1, 2 * FULL.width + 1),
    inputs=st.one_of(st.integers(1, 40), st.integers(RUN - 1, RUN + 1), st.just(2 * RUN + 3)),
    half=st.booleans(),
    bias=st.booleans(),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_is_as_exact_as_torch_and_rows_stand_alone(
    rows: int, outputs: int, inputs: int, half: bool, bias: bool, dtype: torch.dtype, seed: int
) -> None:
    x = normal(rows, inputs, seed=seed).to(dtype)
    weight = normal(outputs, inputs, seed=seed + 1, half=half) / 16
    offset = normal(outputs, seed=seed + 2) if bias else None
    panels = pack_weight(weight, offset)
    assert panels.half == half or inputs * outputs < 20
    got = product(x, panels)
    exact = x.double() @ weight.double().T + (0.0 if offset is None else offset.double())
    want = reference.product(x, weight, offset)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    torch.testing.assert_close(got, want, atol=1e-5 if dtype == torch.float32 else 1e-2, rtol=1e-2)
    # A few numbers may round unluckily: the bound is of as many as a step has.
    assert error(got, exact) <= 2 * error(want, exact) + 1e-6 * float(exact.abs().max())
    for first in range(rows):
        for count in (1, 2, rows - first):
            part = product(x[first : first + count], panels)
            assert torch.equal(part, got[first : first + count])


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_at_every_row_count_and_place(
    half: bool, dtype: torch.dtype, threads: int
) -> None:
    """Rows of several blocks, and enough of them that threads take part."""
    x = normal(700, 576, seed=1).to(dtype)
    panels = pack_weight(normal(200, 576, seed=2, half=half))
    whole = product(x, panels)
    assert x.numel() * panels.outputs > THREAD_WORK
    for first, count in ((0, 1), (699, 1), (3, 2), (11, 13), (100, 64), (227, 230), (1, 699)):
        assert torch.equal(product(x[first : first + count], panels), whole[first : first + count])


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_and_storage_change_no_bit(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = normal(130, 300, seed=1).to(dtype), normal(333, 300, seed=2, half=True)
    bias = normal(333, seed=3)
    half = pack_weight(weight, bias)
    # One number that is not a bfloat16 number, in an output that is not compared.
    weight[332, 299] += 1e-6
    full = pack_weight(weight, bias)
    assert half.half
    assert not full.half
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        want = product(x, half)[:, :332]
        assert torch.equal(product(x, full)[:, :332], want)
        for count in (2, 3):
            torch.set_num_threads(count)
            assert torch.equal(product(x, half)[:, :332], want)
        monkeypatch.setattr(team, "_start_team", lambda: None)  # as on a system without OpenMP's entry
        assert torch.equal(product(x, half)[:, :332], want)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("odd", [1 + 2**-8, 3.4e38, 1e-41])
def test_one_number_that_bfloat16_lacks_keeps_float32(odd: float) -> None:
    weight = normal(70, 9, seed=1, half=True)
    assert pack_weight(weight).half
    weight[69, 8] = odd
    packed = pack_weight(weight)
    assert not packed.half
    assert torch.equal(unpack(packed), weight)


@pytest.mark.parametrize("shape", [(1, 1), (HALF.width, 3), (HALF.width + 1, 5), (2 * FULL.width - 1, 4)])
def test_packing_loses_nothing(shape: tuple[int, int]) -> None:
    for half in (False, True):
        weight = normal(*shape, seed=1, half=half)
        assert torch.equal(unpack(pack_weight(weight)), weight)
    packed = pack_weight(weight)
    assert packed.memory.numel() * 2 < 2 * (weight.numel() + HALF.width * shape[1])


@pytest.mark.parametrize("half", [False, True])
def test_strides_of_rows_and_weight_do_not_matter(half: bool) -> None:
    weight, x = normal(50, 64, seed=1, half=half), normal(9, 64, seed=2)
    want = product(x, pack_weight(weight))
    wide, apart = torch.zeros(9, 100), torch.zeros(18, 64)
    wide[:, 20:84], apart[::2] = x, x
    packed = pack_weight(weight.t().contiguous().t())
    for given_x in (wide[:, 20:84], apart[::2], x.t().contiguous().t()):
        assert torch.equal(product(given_x, packed), want)
    assert torch.equal(product(x[:1].expand(9, -1), packed), want[:1].expand(9, -1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("half", [False, True])
def test_what_is_not_finite_stays_in_its_row(half: bool, dtype: torch.dtype) -> None:
    weight = normal(41, 30, seed=1, half=half).abs()
    x = normal(14, 30, seed=2).to(dtype)
    packed = pack_weight(weight)
    want = product(x, packed)
    x[3, 4], x[5, 29], x[6, 0] = torch.nan, torch.inf, -torch.inf
    got = product(x, packed)
    assert got[3].isnan().all()
    assert (got[5] == torch.inf).all()
    assert (got[6] == -torch.inf).all()
    rest = [r for r in range(14) if r not in (3, 5, 6)]
    assert torch.equal(got[rest], want[rest])


def test_no_rows_give_none() -> None:
    assert product(torch.empty(0, 3), pack_weight(torch.ones(2, 3))).shape == (0, 2)


@pytest.mark.parametrize(
    ("weight", "bias", "message"),
    [
        (torch.zeros(3), None, "weight is"),
        (torch.zeros(0, 3), None, "weight is"),
        (torch.zeros(3, 3, dtype=torch.float16), None, "must be float32 or bfloat16"),
        (torch.zeros(3, 3, device="meta"), None, "must be on the CPU"),
        (torch.zeros(3, 3), torch.zeros(2), "bias is"),
    ],
    ids=["1-d", "empty", "dtype", "device", "bias"],
)
def test_refuses_unfit_weights(weight: torch.Tensor, bias: torch.Tensor | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pack_weight(weight, bias)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(3), "x is"),
        (torch.zeros(2, 4), r"\[T, K = 3\]"),
        (torch.zeros(2, 3, dtype=torch.float64), "float32 or bfloat16"),
        (torch.zeros(2, 3, device="meta"), "on the CPU"),
    ],
    ids=["1-d", "inputs", "dtype", "device"],
)
def test_refuses_unfit_rows(x: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        product(x, pack_weight(torch.zeros(2, 3)))
