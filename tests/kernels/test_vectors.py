"""Sums of products and running softmaxes in explicit vectors, against numpy in float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from forkdecode_kernels.cpu.selection.jit import entry
from forkdecode_kernels.cpu.vectors import (
    LANES,
    dots_1,
    dots_4,
    dots_16,
    rescale,
    weigh_columns,
    weigh_row,
)

NONE = np.float32(-np.inf)


@entry
def run_dots(row: np.ndarray, keys: np.ndarray, out: np.ndarray, tokens: int) -> None:
    line, key, stride, vectors = row.ctypes.data, keys.ctypes.data, keys.shape[1], row.shape[0] // LANES
    if tokens == 16:
        dots_16(line, key, stride, vectors, out.ctypes.data)
    elif tokens == 4:
        dots_4(line, key, stride, vectors, out.ctypes.data)
    else:
        dots_1(line, key, stride, vectors, out.ctypes.data)


@entry
def run_columns(scores: np.ndarray, state: np.ndarray) -> None:
    weigh_columns(scores.ctypes.data, scores.shape[1], scores.shape[0], state.ctypes.data, state.shape[1])


@entry
def run_row(scores: np.ndarray, state: np.ndarray) -> None:
    weigh_row(scores.ctypes.data, scores.shape[0] // LANES, state.ctypes.data, state.shape[1])


@entry
def run_rescale(out: np.ndarray, factors: np.ndarray) -> None:
    rescale(out.ctypes.data, out.shape[1] // LANES, factors.ctypes.data, out.shape[0])


def normal(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("tokens", [1, 4, 16])
@pytest.mark.parametrize("dim", [16, 64, 80])
def test_dots_equal_numpy_and_have_the_same_bits_for_any_number_of_tokens(tokens: int, dim: int) -> None:
    row, keys = normal(dim, seed=1), normal(16, dim + 3, seed=2)
    got, one = np.full(17, np.nan, np.float32), np.zeros(1, np.float32)
    run_dots(row, keys, got, tokens)
    want = keys[:tokens, :dim].astype(np.float64) @ row.astype(np.float64)
    np.testing.assert_allclose(got[:tokens], want, atol=1e-5)
    assert np.isnan(got[tokens:]).all()
    for t in range(tokens):
        run_dots(row, np.ascontiguousarray(keys[t:]), one, 1)
        assert one[0] == got[t]


def test_no_vectors_sum_to_zero() -> None:
    got = np.ones(16, np.float32)
    run_dots(np.zeros(0, np.float32), normal(16, 4, seed=1), got, 16)
    assert not got.any()


@pytest.mark.parametrize("cuts", [[0, 40], [0, 1, 40], [0, 16, 17, 40]])
def test_columns_in_pieces_sum_to_a_softmax(cuts: list[int]) -> None:
    scores = 9 * normal(40, LANES + 3, seed=3)
    state = np.stack([np.full(LANES + 1, NONE), *np.zeros((2, LANES + 1), np.float32)])
    weights = np.zeros((0, LANES))
    for low, high in itertools.pairwise(cuts):
        piece = scores[low:high].copy()
        run_columns(piece, state)
        assert np.array_equal(piece[:, LANES:], scores[low:high, LANES:])
        weights = np.concatenate([weights * state[2, :LANES], piece[:, :LANES]])
    wide = scores[:, :LANES].astype(np.float64)
    want = np.exp(wide - wide.max(0))
    np.testing.assert_allclose(weights, want, rtol=2e-6, atol=1e-37)
    np.testing.assert_allclose(state[1, :LANES], want.sum(0), rtol=2e-6)
    assert state[0, -1] == NONE


@pytest.mark.parametrize("cuts", [[0, 64], [0, 16, 64]])
def test_a_row_in_pieces_sums_to_a_softmax(cuts: list[int]) -> None:
    scores = 9 * normal(64, seed=4)
    scores[:5] = scores[60:] = NONE
    state = np.array([[NONE, 5], [0, 6], [0, 7]], np.float32)
    weights = np.zeros(0)
    for low, high in itertools.pairwise(cuts):
        piece = scores[low:high].copy()
        run_row(piece, state)
        weights = np.concatenate([weights * state[2, 0], piece])
    wide = scores.astype(np.float64)
    want = np.exp(wide - wide.max())
    np.testing.assert_allclose(weights, want, rtol=2e-6, atol=1e-37)
    np.testing.assert_allclose(state[1, 0], want.sum(), rtol=2e-6)
    assert state[:, 1].tolist() == [5, 6, 7]


def test_nan_reaches_the_sums() -> None:
    scores, state = normal(16, seed=5), np.array([[NONE], [0], [0]], np.float32)
    scores[3] = np.nan
    run_row(scores, state)
    assert np.isnan(state[1, 0])
    columns, states = normal(4, LANES, seed=6), np.zeros((3, LANES), np.float32)
    columns[2, 5] = np.nan
    run_columns(columns, states)
    assert np.isnan(states[1]).nonzero()[0].tolist() == [5]


def test_rescale_multiplies_each_row_by_its_own() -> None:
    out, factors = normal(5, 2 * LANES, seed=7), normal(4, seed=8)
    want = out.copy()
    want[:4] *= factors[:, None]
    run_rescale(out[:4], factors)
    assert np.array_equal(out, want)
