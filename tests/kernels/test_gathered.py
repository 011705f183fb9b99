"""Attention over gathered keys and values against the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode_kernels import gathered
from forkdecode_kernels.attention import attention
from forkdecode_kernels.attention_work import make_work
from forkdecode_kernels.reference.attention import attention as reference
from tests.kernels.attention_cases import Blocks, Rows, Segment, Shape, make_kv, make_rows
from tests.kernels.test_attention import POOL, SCALE, inputs_of, work_cases


@settings(max_examples=20, deadline=None)
@given(
    case=work_cases(),
    window=st.none() | st.integers(1, 50),
    softcap=st.none() | st.just(2.0),
    with_sinks=st.booleans(),
    work_bytes=st.sampled_from([1, 20_000, gathered.WORK_BYTES]),
)
def test_equals_reference(
    case: tuple[Shape, list[Segment], list[Rows], int, int],
    window: int | None,
    softcap: float | None,
    with_sinks: bool,
    work_bytes: int,
) -> None:
    shape, segments, decodes, tokens, _ = case
    query, kv, sinks = inputs_of(case, with_sinks)
    work = make_work(segments, decodes, tokens, shape.block_size, POOL)
    options = {"window": window, "softcap": softcap, "sinks": sinks}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathered, "WORK_BYTES", work_bytes)
        got = attention(query, kv, work, scale=SCALE, **options)  # type: ignore[arg-type]
    want = reference(query, kv, work, scale=SCALE, **options)  # type: ignore[arg-type]
    torch.testing.assert_close(got, want, atol=2e-5, rtol=2e-5)


def test_bfloat16_is_off_by_its_last_places() -> None:
    shape, generator = Shape(4, 2, 16, 4), torch.Generator().manual_seed(1)
    kv = make_kv(shape, POOL, generator, torch.bfloat16)
    decodes = [make_rows(Blocks(POOL, np.random.default_rng(1)), 4, 0, 5, 20, 90)]
    query = torch.randn(4, 5, 16, generator=generator).bfloat16()
    work = make_work([], decodes, 5, 4, POOL)
    options = {"window": None, "softcap": None, "sinks": None}
    got = attention(query, kv, work, scale=SCALE, **options)  # type: ignore[arg-type]
    want = reference(query, kv, work, scale=SCALE, **options)  # type: ignore[arg-type]
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, want, atol=0.03, rtol=0.03)
