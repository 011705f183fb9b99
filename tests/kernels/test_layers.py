"""The passes between a layer's products: against float64, no worse than twice plain torch's error at
the same precision, and row by row the same bits whatever rows are beside them."""

from __future__ import annotations

from collections.abc import Callable

import numba
import numpy as np
import pytest
import torch

from forkdecode_kernels.cpu.half import narrow, stored, widen
from forkdecode_kernels.gated import gated
from forkdecode_kernels.norm import add_rms_norm
from forkdecode_kernels.reference import layers as reference
from forkdecode_kernels.rotary import split_rotate_write

DTYPES = [torch.float32, torch.bfloat16]
WIDTH, HEADS, KV_HEADS, DIM, SIZE = 72, 6, 2, 24, 4
EPS = 1e-5


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def assert_as_exact(got: torch.Tensor, plain: torch.Tensor, exact: torch.Tensor) -> None:
    """Both against float64. One unit in the last place is granted where plain torch was lucky."""
    assert got.dtype == plain.dtype
    unit = torch.finfo(got.dtype).eps * exact.abs().max()
    error = (got.double() - exact).abs().max()
    assert error <= 2 * (plain.double() - exact).abs().max() + unit


def plain_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight.to(x.dtype), EPS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("delta_norm", [False, True])
def test_add_rms_norm(dtype: torch.dtype, delta: bool, delta_norm: bool) -> None:
    hidden, change = random(37, WIDTH, seed=1).to(dtype), random(37, WIDTH, seed=2).to(dtype)
    weight, inner = random(WIDTH, seed=3), random(WIDTH, seed=4) if delta_norm else None
    summed = hidden.double()
    plain_sum = hidden.clone()
    if delta:
        exact_change = change.double()
        if inner is not None:
            exact_change = reference.rms_norm(exact_change, inner.double(), EPS)
            change_plain = plain_norm(change, inner)
        else:
            change_plain = change
        summed, plain_sum = summed + exact_change, plain_sum + change_plain
    exact = reference.rms_norm(summed, weight.double(), EPS)
    got = add_rms_norm(hidden, change if delta else None, weight, EPS, inner)
    assert_as_exact(got, plain_norm(plain_sum, weight), exact)
    assert_as_exact(hidden, plain_sum, summed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("scale", [1.0, 60.0])
def test_gated(dtype: torch.dtype, activation: str, scale: float) -> None:
    gate_up = (random(37, 2 * WIDTH) * scale).to(dtype)

    def plain(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, -1)
        functional = torch.nn.functional
        return up * (
            functional.silu(gate) if activation == "silu" else functional.gelu(gate, approximate="tanh")
        )

    assert_as_exact(gated(gate_up, activation), plain(gate_up), plain(gate_up.double()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("half", [DIM // 2, 4])
@pytest.mark.parametrize("normed", [False, True])
def test_split_rotate_write(dtype: torch.dtype, half: int, normed: bool) -> None:
    qkv = random(21, (HEADS + 2 * KV_HEADS) * DIM).to(dtype)
    angle = random(21, half, seed=5) * 9
    slots = torch.randperm(10 * SIZE, generator=torch.Generator().manual_seed(1))[:18]
    weights = (random(DIM, seed=6), random(DIM, seed=7)) if normed else (None, None)

    def cache(kind: torch.dtype) -> torch.Tensor:
        return torch.full((2, KV_HEADS, 10, SIZE, DIM), 7.0, dtype=kind)

    kv, kv_plain, kv_exact = cache(dtype), cache(dtype), cache(torch.float64)
    got = split_rotate_write(qkv, kv, angle.cos(), angle.sin(), slots, *weights, EPS)
    plain = reference.split_rotate_write(
        qkv, kv_plain, angle.cos(), angle.sin(), slots, *weights, EPS
    )  # fmt: skip
    wide = [None if w is None else w.double() for w in weights]
    joint = qkv.double().view(21, -1, DIM)
    query, key, value = joint.split([HEADS, KV_HEADS, KV_HEADS], 1)
    turned = [
        reference.rotate(
            x if w is None else reference.rms_norm(x, w, EPS), angle.cos().double(), angle.sin().double()
        )
        for x, w in zip((query, key), wide, strict=True)
    ]
    flat = kv_exact.flatten(2, 3)
    flat[0][:, slots] = turned[1][:18].transpose(0, 1)
    flat[1][:, slots] = value[:18].transpose(0, 1)
    assert_as_exact(got, plain, turned[0].transpose(0, 1))
    assert_as_exact(kv, kv_plain, kv_exact)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_are_bitwise_independent(
    dtype: torch.dtype, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkdecode_kernels.cpu.layer_calls.THREAD_ELEMENTS", 1000)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x, qkv = random(112, 2 * WIDTH).to(dtype), random(112, (HEADS + 2 * KV_HEADS) * DIM).to(dtype)
        weight, angle = random(2 * WIDTH), random(112, DIM // 2)
        ways: list[Callable[[slice], torch.Tensor]] = [
            lambda s: add_rms_norm(x[s].clone(), x[s].flip(1), weight, EPS, weight),
            lambda s: gated(x[s], "silu"),
            lambda s: split_rotate_write(
                qkv[s],
                torch.zeros(2, KV_HEADS, 2, 4, DIM, dtype=dtype),
                angle[s].cos(),
                angle[s].sin(),
                torch.arange(1),
            ).transpose(0, 1),
        ]
        for way in ways:
            whole = way(slice(0, 112))
            for start, stop in ((0, 16), (48, 64), (3, 100), (111, 112)):
                assert torch.equal(way(slice(start, stop)), whole[start:stop])
    finally:
        torch.set_num_threads(before)


def test_arguments_may_have_any_strides() -> None:
    """Kernels are compiled for contiguous memory alone."""
    wide, change, joint = (
        random(9, 2 * WIDTH),
        random(WIDTH, 9).t(),
        random((HEADS + 2 * KV_HEADS) * DIM, 9).t(),
    )
    hidden, whole, weight = wide[:, ::2], wide[:, ::2].clone(), random(2 * WIDTH)[::2]
    angle = random(DIM // 2, 9).t()
    got = add_rms_norm(hidden, change, weight, EPS)
    assert torch.equal(got, add_rms_norm(whole, change.contiguous(), weight.contiguous(), EPS))
    assert torch.equal(hidden, whole)
    assert torch.equal(gated(change, "silu"), gated(change.contiguous(), "silu"))
    first, second = (torch.zeros(2, KV_HEADS, 3, SIZE, DIM) for _ in range(2))
    slots = torch.arange(12)[::2]
    query = split_rotate_write(joint, first, angle, angle, slots)
    straight = [x.contiguous() for x in (joint, angle, slots)]
    want = split_rotate_write(straight[0], second, straight[1], straight[1], straight[2])
    assert torch.equal(query, want)
    assert torch.equal(first, second)
    with pytest.raises(ValueError, match="kv is not contiguous"):
        split_rotate_write(joint, first.transpose(2, 3), angle, angle, slots)


def test_bfloat16_is_rounded_as_torch_does() -> None:
    @numba.njit
    def there(source: np.ndarray, out: np.ndarray) -> None:
        for i in range(source.shape[0]):
            out[i] = narrow(source[i], out[i])

    @numba.njit
    def back(source: np.ndarray, out: np.ndarray) -> None:
        for i in range(source.shape[0]):
            out[i] = widen(source[i])

    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32)
    ties = np.arange(2**16, dtype=np.uint32) << 16 | 0x8000
    values = torch.from_numpy(np.concatenate([bits, ties]).view(np.float32))
    out = torch.zeros(len(values), dtype=torch.bfloat16)
    there(values.numpy(), stored(out))
    want = values.to(torch.bfloat16)
    assert torch.equal(out.isnan(), want.isnan())
    assert torch.equal(out.nan_to_num(), want.nan_to_num())
    wide = torch.zeros(len(values))
    back(stored(out), wide.numpy())
    assert torch.equal(wide.nan_to_num(), out.float().nan_to_num())


def test_unfit_arguments_are_named() -> None:
    x, weight = random(4, 8), random(8)
    kv, angle = torch.zeros(2, 1, 2, 4, 8), torch.zeros(4, 4)
    slots = torch.arange(4)
    wrong: list[tuple[str, Callable[[], object]]] = [
        ("delta", lambda: add_rms_norm(x, x[:2], weight, EPS)),
        ("weight", lambda: add_rms_norm(x, None, weight.double(), EPS)),
        ("weight", lambda: add_rms_norm(x, None, weight[:3], EPS)),
        ("activation", lambda: gated(x, "relu")),
        ("gate_up", lambda: gated(x[:, :7], "silu")),
        ("qkv", lambda: split_rotate_write(x, kv, angle, angle, slots)),
        ("cos", lambda: split_rotate_write(random(4, 24), kv, angle[:2], angle, slots)),
        ("float32", lambda: split_rotate_write(random(4, 24), kv, angle.double(), angle, slots)),
        ("slots", lambda: split_rotate_write(random(4, 24), kv, angle, angle, slots.int())),
    ]
    for name, call in wrong:
        with pytest.raises(ValueError, match=name):
            call()
    with pytest.raises(TypeError, match="float16"):
        gated(x.half(), "silu")
