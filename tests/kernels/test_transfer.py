"""Packed copies: everything arrives as it was."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from forkdecode_kernels.transfer import to_device, to_host

DTYPES = (np.bool_, np.uint8, np.int32, np.int64, np.float32, np.float64)
SHAPES = st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple)


@given(st.lists(st.tuples(st.sampled_from(DTYPES), SHAPES), min_size=1, max_size=6), st.integers(0, 99))
def test_arrays_go_and_come_back(kinds: list[tuple[type, tuple[int, ...]]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = [rng.integers(0, 2 if dtype is np.bool_ else 100, shape).astype(dtype) for dtype, shape in kinds]
    sent = to_device(arrays, torch.device("cpu"))
    for a, t, back in zip(arrays, sent, to_host(sent), strict=True):
        assert (t.shape, back.dtype, back.shape) == (a.shape, a.dtype, a.shape)
        np.testing.assert_array_equal(t.numpy(), a)
        np.testing.assert_array_equal(back, a)


def test_what_is_strided_comes_in_its_order() -> None:
    table = torch.arange(12, dtype=torch.int64).view(3, 4)
    array, other = to_host([table[:, 1:3], table.T])
    assert array.tolist() == [[1, 2], [5, 6], [9, 10]]
    assert other.tolist() == table.T.tolist()
    (sent,) = to_device([np.arange(6).reshape(2, 3).T], torch.device("cpu"))
    assert sent.tolist() == [[0, 3], [1, 4], [2, 5]]
