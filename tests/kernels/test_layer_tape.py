"""Passes of a layer from a tape: the bits of the functions that it notes down, on one thread and on two."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from forkdecode_kernels.attention import attention, plan_attention
from forkdecode_kernels.attention_work import AttentionWork
from forkdecode_kernels.gated import gated
from forkdecode_kernels.layer_tape import LayerTape, tapes
from forkdecode_kernels.norm import add_rms_norm
from forkdecode_kernels.products import pack_weight, product
from forkdecode_kernels.rotary import split_rotate_write
from tests.kernels.attention_cases import Blocks, Segment, Shape, make_kv, make_rows

SHAPE = Shape(heads=6, kv_heads=2, dim=32, block_size=4)
EPS = 1e-5
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 700])
def test_norm_product_gate(threads: int, rows: int, dtype: torch.dtype) -> None:
    """A product reads what the norm before it has written, on whatever threads."""
    generator = torch.Generator().manual_seed(rows)
    hidden, delta = (torch.randn(rows, 448, generator=generator).to(dtype) for _ in range(2))
    weight, own = (torch.rand(448, generator=generator) for _ in range(2))
    panels = pack_weight(torch.randn(1000, 448, generator=generator).to(dtype))
    for activation in ("silu", "gelu_tanh"):
        for change, change_weight in ((None, None), (delta, None), (delta, own)):
            left, right = hidden.clone(), hidden.clone()
            normed = add_rms_norm(left, change, weight, EPS, change_weight)
            want = gated(product(normed, panels), activation)
            tape, out = LayerTape(), torch.empty_like(want)
            mine, both = torch.empty_like(normed), torch.empty(rows, 1000, dtype=dtype)
            tape.norm(right, change, weight, EPS, change_weight, mine)
            tape.product("gate+up", mine, panels, both)
            tape.gate(both, activation, out)
            tape.run()
            assert torch.equal(out, want)
            assert torch.equal(left, right)
            assert [name for name in tape.names if name != "widen"] == ["norm", "gate+up", "gate"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [3, 800])
@pytest.mark.parametrize("normed", [False, True])
def test_rotate(threads: int, rows: int, normed: bool, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(rows)
    width = (SHAPE.heads + 2 * SHAPE.kv_heads) * SHAPE.dim
    qkv = torch.randn(rows, width, generator=generator).to(dtype)
    head = torch.rand(SHAPE.dim, generator=generator)
    cos, sin = (torch.rand(rows, SHAPE.dim // 2, generator=generator) for _ in range(2))
    first = torch.zeros(2, SHAPE.kv_heads, 201, SHAPE.block_size, SHAPE.dim, dtype=dtype)
    second, slots = first.clone(), torch.randperm(804, generator=generator)[: rows - 1]
    weights: tuple[torch.Tensor | None, torch.Tensor | None] = (head, 1 + head) if normed else (None, None)
    want = split_rotate_write(qkv, first, cos, sin, slots, *weights, EPS)
    tape, query = LayerTape(), torch.empty_like(want)
    tape.rotate(qkv, second, (cos, sin), slots, weights, EPS, query)
    tape.run_pass(0)
    assert torch.equal(query, want)
    assert torch.equal(first, second)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [32, 20])
def test_attend(threads: int, dim: int, dtype: torch.dtype) -> None:
    """Groups that share a trunk and one that doesn't, beside a prompt's chunk and without; heads that are no
    whole vectors; a token that is padding."""
    shape = Shape(SHAPE.heads, SHAPE.kv_heads, dim, SHAPE.block_size)
    blocks, generator = Blocks(400, np.random.default_rng(3)), torch.Generator().manual_seed(3)
    groups = (make_rows(blocks, 4, 0, 5, 60, 250), make_rows(blocks, 4, 5, 1, 0, 11))
    chunk = Segment(6, 70, 130, blocks.take(50))
    kv = make_kv(shape, 401, generator).to(dtype)
    query = torch.randn(shape.heads, 77, dim, generator=generator).to(dtype)
    for segments, rows, window, softcap in (
        ((), groups, None, 5.0),
        ((chunk,), groups, 40, None),
        ((chunk,), (), None, 5.0),
    ):
        work = AttentionWork(segments, rows, 77, shape.block_size, 400)
        plan = plan_attention(work, num_heads=shape.heads, kv=kv, window=window)
        assert tapes(plan)
        tape = LayerTape()
        want = attention(query, kv, plan, scale=0.2, window=window, softcap=softcap)
        out = torch.zeros(77, shape.heads * dim, dtype=dtype)
        tape.attend(query, kv, plan, 0.2, softcap, out)
        tape.run()
        assert torch.equal(out.view_as(want), want)
        assert out.any(1).sum() == 6 * len(rows) // 2 + 70 * len(segments)


def test_float16_is_not_noted_down() -> None:
    segment = Segment(0, 3, 0, np.zeros(1, np.int32))
    kv = torch.zeros(2, 2, 3, 4, 8, dtype=torch.float16)
    plan = plan_attention(AttentionWork((segment,), (), 3, 4, 2), num_heads=4, kv=kv)
    assert not tapes(plan)
    with pytest.raises(ValueError, match="compiled kernels"):
        LayerTape().attend(kv[0, :, 0], kv, plan, 1.0, None, torch.zeros(3, 32))
