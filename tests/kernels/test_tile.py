"""The small product against numpy's, every shape of tile, and bit for bit whatever tile a row lies in."""

from __future__ import annotations

import numpy as np
import pytest

from forkdecode_kernels.cpu.selection.jit import entry
from forkdecode_kernels.cpu.tile import LANES, product


@entry
def run(a: np.ndarray, b: np.ndarray, c: np.ndarray, rows: int, columns: int, transposed: bool) -> None:
    if transposed:
        product(
            a.ctypes.data, 1, a.shape[1], b.ctypes.data, b.shape[1], c.ctypes.data, c.shape[1],
            rows, columns, a.shape[0],
        )  # fmt: skip
    else:
        product(
            a.ctypes.data, a.shape[1], 1, b.ctypes.data, b.shape[1], c.ctypes.data, c.shape[1],
            rows, columns, a.shape[1],
        )  # fmt: skip


def normal(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("columns", [LANES, 2 * LANES, 3 * LANES])
@pytest.mark.parametrize("k", [0, 1, 24])
def test_equals_numpy_and_touches_nothing_else(transposed: bool, columns: int, k: int) -> None:
    for rows in range(13):
        a, b, c = (
            normal(rows, k, seed=1),
            normal(k, columns + 5, seed=2),
            normal(rows + 1, columns + 3, seed=3),
        )
        want = c.astype(np.float64)
        want[:rows, :columns] += a.astype(np.float64) @ b[:, :columns].astype(np.float64)
        untouched = c.copy()
        given = np.ascontiguousarray(a.T) if transposed else a
        run(given, b, c, rows, columns, transposed)
        np.testing.assert_allclose(c, want, atol=2e-5)
        assert np.array_equal(c[rows:], untouched[rows:])
        assert np.array_equal(c[:, columns:], untouched[:, columns:])


def test_a_row_has_the_same_bits_in_every_tile() -> None:
    a, b = normal(13, 64, seed=1), normal(64, 3 * LANES, seed=2)
    whole = np.zeros((13, 3 * LANES), np.float32)
    run(a, b, whole, 13, 3 * LANES, False)
    for first in range(13):
        for rows in range(1, 14 - first):
            for columns in (LANES, 2 * LANES, 3 * LANES):
                c = np.zeros((rows, 3 * LANES), np.float32)
                run(np.ascontiguousarray(a[first:]), b, c, rows, columns, False)
                assert np.array_equal(c[:, :columns], whole[first : first + rows, :columns])
