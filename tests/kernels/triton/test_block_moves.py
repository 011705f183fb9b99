"""Block copies and KV writes, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode_kernels import copy_blocks as public_copy
from forkdecode_kernels.triton.copy_blocks import copy_blocks
from forkdecode_kernels.triton.write_kv import write_kv

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}


def random_bits(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Any bit pattern, NaN among them."""
    info = torch.iinfo(BITS[dtype])
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(info.min, info.max, shape, dtype=BITS[dtype], generator=generator).view(dtype)


def equal_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(BITS[a.dtype]), b.view(BITS[b.dtype]))


@settings(max_examples=15)
@given(
    st.sampled_from(DTYPES),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([1, 2, 16, 128]),
    st.sampled_from([8, 64, 80, 96]),
    st.integers(0, 4),
    st.integers(0, 2**31),
)
def test_copies_every_layer(
    dtype: torch.dtype, layers: int, heads: int, block_size: int, dim: int, count: int, seed: int
) -> None:
    pool = random_bits((layers, 2, heads, 9, block_size, dim), dtype, seed)
    ids = torch.from_numpy(np.random.default_rng(seed).permutation(9)[:8].reshape(4, 2))
    expected = pool.clone()
    public_copy.copy_blocks(expected, expected, ids[:count])
    copy_blocks(pool, pool, ids, torch.tensor([count], dtype=torch.int32))
    assert equal_bits(pool, expected)


def test_copies_between_pools_of_different_size() -> None:
    source = random_bits((2, 2, 2, 5, 4, 16), torch.bfloat16, 0)
    target = random_bits((2, 2, 2, 3, 4, 16), torch.bfloat16, 1)
    pairs = torch.tensor([[4, 0], [4, 2]])
    expected = target.clone()
    expected[:, :, :, [0, 2]] = source[:, :, :, [4, 4]]
    by_one_launch = target.clone()
    copy_blocks(source, target, pairs, torch.tensor([2], dtype=torch.int32))
    assert equal_bits(target, expected)
    public_copy.copy_blocks(source, by_one_launch, pairs, reached=True)
    assert equal_bits(by_one_launch, expected)


def test_refuses_what_it_would_misread() -> None:
    pool = torch.zeros(2, 2, 1, 4, 2, 8).transpose(-1, -2)
    with pytest.raises(ValueError, match="contiguous"):
        copy_blocks(pool, pool, torch.tensor([[0, 1]]), torch.tensor([1], dtype=torch.int32))


@settings(max_examples=15)
@given(
    st.sampled_from(DTYPES),
    st.sampled_from([1, 3, 8]),
    st.sampled_from([1, 4, 16, 128]),
    st.sampled_from([64, 80, 96, 128, 256]),
    st.integers(1, 6),
    st.integers(0, 2**31),
    st.booleans(),
)
def test_writes_to_its_slots_alone(
    dtype: torch.dtype, heads: int, block_size: int, dim: int, tokens: int, seed: int, strided: bool
) -> None:
    rng = np.random.default_rng(seed)
    kv = random_bits((2, heads, 7, block_size, dim), dtype, seed)
    key, value = random_bits((2, tokens, heads, dim), dtype, seed + 1)
    key, value = key.transpose(0, 1), value.transpose(0, 1)
    if not strided:
        key, value = key.contiguous(), value.contiguous()
    slots = torch.from_numpy(rng.permutation(7 * block_size)[:tokens])
    skipped = torch.from_numpy(rng.random(tokens) < 0.3)
    slots[skipped] = -1
    expected = kv.clone()
    flat = expected.view(2, heads, -1, dim)
    flat[0][:, slots[~skipped]] = key[:, ~skipped]
    flat[1][:, slots[~skipped]] = value[:, ~skipped]
    write_kv(kv, key, value, slots)
    assert equal_bits(kv, expected)
