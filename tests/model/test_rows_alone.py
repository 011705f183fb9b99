"""A row's bits don't depend on the rows beside it, however many threads torch cuts its loops over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Olmo2Config

from forkdecode.model.rows_alone import PIECES, RowsAlone, as_torch_has_it, whole_vectors
from tests.model.driver import Driver, StepBuilder
from tests.models import _COMMON, VOCAB, tiny_model

WIDTH = 2816
"""Three threads' chunks of 32 such rows end in rows 10, 21 and 31."""
FUNCTIONS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    torch.nn.functional.silu,
    torch.sigmoid,
    torch.nn.functional.gelu,
    torch.nn.functional.softplus,
    torch.tanh,
    torch.exp,
    torch.cos,
)


@pytest.fixture(autouse=True, scope="module")
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def random(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32) * 3


def test_that_torch_s_own_loops_don_t_leave_rows_alone() -> None:
    """Else all this has no reason."""
    x = random(32, WIDTH)
    apart = [torch.cat([f(x[i : i + 16]) for i in (0, 16)]) for f in FUNCTIONS]
    assert not all(torch.equal(f(x), want) for f, want in zip(FUNCTIONS, apart, strict=True))


@settings(max_examples=40, deadline=None)
@given(
    function=st.sampled_from(FUNCTIONS),
    rows=st.integers(1, 70),
    width=st.sampled_from([1, 2, 60, 64, 100, WIDTH]),
    seed=st.integers(0, 9),
)
def test_each_row_is_as_it_is_alone(
    function: Callable[[torch.Tensor], torch.Tensor], rows: int, width: int, seed: int
) -> None:
    x = random(rows, width, seed=seed)
    with RowsAlone():
        found = function(x)
        alone = [function(x[i : i + 1]) for i in (0, rows // 2, rows - 1)]
    assert torch.equal(torch.cat(alone), found[[0, rows // 2, rows - 1]])
    assert torch.allclose(found, function(x), rtol=1e-6, atol=1e-7)


def test_what_a_function_takes_besides_is_kept() -> None:
    x = random(3, 5)
    with RowsAlone():
        assert torch.allclose(
            torch.nn.functional.gelu(x, approximate="tanh"), torch.nn.functional.gelu(x, approximate="tanh")
        )
        assert torch.equal(torch.sigmoid(input=x), torch.sigmoid(x))
        strided = torch.nn.functional.silu(x[:, ::2])
        assert torch.equal(x**3, x * x * x)
        y = x.clone()
        assert torch.nn.functional.silu(y, inplace=True) is y
    assert torch.equal(y, torch.nn.functional.silu(x))
    assert torch.allclose(strided, torch.nn.functional.silu(x)[:, ::2])
    assert torch.allclose(whole_vectors(torch.pow, 2_048, x.abs(), 1.5), x.abs() ** 1.5)


def test_no_function_is_without_a_piece_that_one_thread_computes() -> None:
    assert set(PIECES.values()) == {2_048, 32_768}


@pytest.mark.parametrize(("experts", "hidden"), [(8, 512), (60, 256)])
def test_a_router_s_rows_are_as_they_are_alone(experts: int, hidden: int) -> None:
    weight = torch.nn.Parameter(random(experts, hidden))
    x, loops = random(130, hidden, seed=2), RowsAlone()
    with torch.inference_mode(), loops:
        whole = torch.nn.functional.linear(x, weight)
        some = [torch.nn.functional.linear(x[:rows], weight) for rows in (1, 16, 48, 129)]
        fresh = torch.nn.functional.linear(x, weight * 1)
    assert all(torch.equal(part, whole[: len(part)]) for part in some)
    assert torch.allclose(fresh, whole, rtol=1e-4, atol=1e-3)
    assert torch.allclose(whole, x @ weight.t(), rtol=1e-4, atol=1e-3)


@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(0, 70),
    width=st.sampled_from([2, 60, 256]),
    outputs=st.sampled_from([1, 8, 100]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    form=st.sampled_from(["linear", "matmul", "mm", "@", "3 by 2", "bmm"]),
)
def test_products_by_one_expert_of_all_are_as_they_are_alone(
    rows: int, width: int, outputs: int, dtype: torch.dtype, form: str
) -> None:
    """As JetMoE's, DBRX's and Llama 4's experts multiply."""
    weights = torch.nn.Parameter(random(3, width, outputs).to(dtype))
    x = random(rows, width, seed=2).to(dtype)

    def product(x: torch.Tensor) -> torch.Tensor:
        if form == "linear":
            return torch.nn.functional.linear(x, weights[1].t())
        if form == "@":
            return x @ weights[1]
        if form == "3 by 2":
            return torch.matmul(x[None], weights[1])[0]
        if form == "bmm":
            return torch.bmm(x.expand(3, *x.shape), weights)[1]
        return torch.mm(x, weights[1]) if form == "mm" else x.matmul(weights[1])

    with torch.inference_mode(), RowsAlone():
        whole = product(x)
        parts = [(product(x[a:b]), whole[a:b]) for a, b in ((0, 1), (rows // 2, rows), (0, rows - 1))]
    assert whole.shape == (rows, outputs)
    assert all(torch.equal(part, same) for part, same in parts)
    exact = x.double() @ weights[1].double()
    assert torch.allclose(whole.double(), exact, rtol=2e-2, atol=1e-3 if dtype == torch.float32 else 1.0)


@pytest.mark.parametrize("rows", [0, 1, 16, 33])
def test_products_are_contiguous_as_torch_s(rows: int) -> None:
    x, weights = random(3, rows, 8), random(3, 8, 5, seed=2)
    with RowsAlone():
        assert torch.bmm(x, weights).is_contiguous()


def test_what_leaves_rows_alone_by_itself_is_torch_s_own() -> None:
    x, weights = random(3, 2, 300), random(3, 300, 5, seed=2)
    with RowsAlone() as loops, mock.patch.object(loops, "__torch_function__") as changed:
        with as_torch_has_it():
            torch.bmm(x, weights)
        assert not changed.called


def tokens(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, n).tolist()  # type: ignore[no-any-return]


def test_batch_mates_change_no_bit_of_transformers_modules() -> None:
    """A row of OLMo 2 alone, and among 31 others in the places where chunks of three threads end."""
    config = Olmo2Config(**(_COMMON | {"intermediate_size": WIDTH}))
    driver = Driver(tiny_model("olmo2", config=config), num_blocks=800)
    mates = [driver.open(tokens(3, 100 + i)) for i in range(31)]
    for mate in mates:
        driver.prefill(mate)
    # Where it made a difference.
    for seed, place in ((1, 21), (2, 10), (5, 31)):
        alone, beside = driver.open(tokens(9, seed)), driver.open(tokens(9, seed))
        want = driver.prefill(alone)
        for i, mate in enumerate(mates):
            driver.fork(mate, [0], tokens(1, 1000 * seed + i))
        step = StepBuilder()
        step.prefill(beside, 8)
        driver.run(step)
        got = driver.decode(*mates[:place], beside, *mates[place:])[place]
        assert torch.equal(got, want[0]), (seed, place)
        alone.table.release()
        beside.table.release()
