"""The small product against numpy's, every shape of tile, and bit for bit whatever tile a row lies in."""

from __future__ import annotations

import numpy as np
import pytest

from forkdecode_kernels.cpu.selection.jit import entry
from forkdecode_kernels.cpu.tile import product
from forkdecode_kernels.cpu.vectors import LANES


@entry
def run(
    a: np.ndarray, b: np.ndarray, c: np.ndarray, rows: int, columns: int, transposed: bool, onto: int = 1
) -> None:
    if transposed:
        product(
            a.ctypes.data, 1, a.shape[1], b.ctypes.data, b.shape[1], c.ctypes.data, c.shape[1],
            rows, columns, a.shape[0], onto,
        )  # fmt: skip
    else:
        product(
            a.ctypes.data, a.shape[1], 1, b.ctypes.data, b.shape[1], c.ctypes.data, c.shape[1],
            rows, columns, a.shape[1], onto,
        )  # fmt: skip


def normal(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("columns", [n * LANES for n in (1, 2, 3, 4, 5, 7)])
@pytest.mark.parametrize("k", [0, 1, 24])
def test_equals_numpy_and_touches_nothing_else(transposed: bool, columns: int, k: int) -> None:
    for rows in range(15):
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


def test_what_is_there_counts_only_when_asked() -> None:
    a, b = normal(9, 16, seed=1), normal(16, 4 * LANES, seed=2)
    got = np.full((9, 4 * LANES), np.nan, np.float32)
    run(a, b, got, 9, 4 * LANES, False, 0)
    np.testing.assert_allclose(got, a.astype(np.float64) @ b.astype(np.float64), atol=2e-5)


def test_a_row_has_the_same_bits_in_every_tile() -> None:
    a, b = normal(13, 64, seed=1), normal(64, 4 * LANES, seed=2)
    whole = np.zeros((13, 4 * LANES), np.float32)
    run(a, b, whole, 13, 4 * LANES, False)
    for first in range(13):
        for rows in range(1, 14 - first):
            for columns in (LANES, 2 * LANES, 3 * LANES, 4 * LANES):
                c = np.zeros((rows, 4 * LANES), np.float32)
                run(np.ascontiguousarray(a[first:]), b, c, rows, columns, False)
                assert np.array_equal(c[:, :columns], whole[first : first + rows, :columns])
