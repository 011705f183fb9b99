"""Typical sampling by guesses and side by side, against the same by a sort of all distances."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode_kernels.cpu.selection.rows import exponentials, tile_maxima, unordered
from forkdecode_kernels.cpu.selection.scratch import Scratch, make_scratch
from forkdecode_kernels.cpu.selection.typical import LISTED, count_from, gather_typical, keep_typical


@numba.njit
def _all_side_by_side(
    row: np.ndarray, scale: np.float32, min_p: float, mass: float, scratch: Scratch
) -> tuple[int, np.float32]:
    best, _ = tile_maxima(row, scratch.tiles)
    maximum = unordered(best)
    exponentials(row, maximum, scale, scratch.exps[: row.shape[0]], scratch.sums)
    return gather_typical(row, maximum, scale, min_p, mass, scratch), maximum


@numba.njit
def _listed_first(
    row: np.ndarray, scale: np.float32, min_p: float, mass: float, scratch: Scratch
) -> tuple[int, np.float32]:
    best, _ = tile_maxima(row, scratch.tiles)
    maximum = unordered(best)
    exponentials(row, maximum, scale, scratch.exps[: row.shape[0]], scratch.sums)
    n = 0
    for i in range(row.shape[0]):
        if scratch.exps[i] > 0.0 and scratch.exps[i] >= min_p:
            scratch.ids[n], scratch.weights[n] = i, scratch.exps[i]
            n += 1
    return keep_typical(row, maximum, scale, n, mass, scratch), maximum


def _sorted(
    row: np.ndarray, weights: np.ndarray, maximum: np.float32, scale: np.float32, min_p: float, mass: float
) -> np.ndarray:
    """The ids that stay, by a stable sort of float32 distances and sums in float64."""
    ids = np.flatnonzero((weights > 0) & (weights >= min_p))
    w = weights[ids].astype(np.float64)
    z = ((row[ids] - maximum) * scale).astype(np.float64)
    distance = np.abs(np.sum(w * z) / np.sum(w) - z).astype(np.float32)
    order = np.argsort(distance, kind="stable")
    reached = np.searchsorted(np.cumsum(w[order]), mass * np.sum(w))
    return ids[distance <= distance[order[min(reached, len(ids) - 1)]]]


KINDS = ("normal", "coarse", "close", "steep", "half impossible", "equal")


def made_row(kind: str, vocab: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    row = rng.standard_normal(vocab).astype(np.float32) * {"close": 1e-4, "steep": 60}.get(kind, 3)
    if kind == "coarse":
        row = np.round(row * 1.7) / np.float32(1.7)
    if kind == "half impossible":
        row[1:][rng.random(vocab - 1) < 0.5] = -np.inf
    return np.full(vocab, 1.5, np.float32) if kind == "equal" else row.astype(np.float32)


def check(row: np.ndarray, scale: np.float32, min_p: float, mass: float) -> None:
    scratch = make_scratch(len(row))
    for way in (_all_side_by_side, _listed_first):
        n, maximum = way(row, scale, min_p, mass, scratch)
        ids, kept = scratch.ids[:n].copy(), scratch.weights[:n].copy()
        weights = scratch.exps[: len(row)].copy()
        np.testing.assert_array_equal(
            ids, _sorted(row, weights, np.float32(maximum), scale, min_p, mass), way.__name__
        )
        np.testing.assert_array_equal(kept, weights[ids])


# Odd masses, so that no sum of tied weights equals one exactly.
MASSES = st.sampled_from([1e-9, 0.0131, 0.2013, 0.5171, 0.9137, 0.9531, 0.9999991, 1 - 1e-12])


@settings(max_examples=250, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(KINDS),
    vocab=st.one_of(st.integers(1, 70), st.integers(400, 2200)),
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([1.0, 1.25, 0.3, 20.0, 1e-4]),
    min_p=st.sampled_from([0.0, 1e-6, 0.07]),
    mass=MASSES,
)
def test_what_stays_is_what_a_sort_leaves(
    kind: str, vocab: int, seed: int, scale: float, min_p: float, mass: float
) -> None:
    check(made_row(kind, vocab, seed), np.float32(scale), min_p, mass)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab", [49_152, 262_144])
def test_whole_vocabularies(kind: str, vocab: int) -> None:
    for mass in (0.2013, 0.9137):
        check(made_row(kind, vocab, 3), np.float32(1.25), 0.0, mass)


def test_some_rows_are_worked_on_in_either_way() -> None:
    """What the draw decides by: many tokens of a flat row, few of a steep one."""
    for kind, many in (("normal", True), ("steep", False)):
        row = made_row(kind, 2000, 0)
        weights = np.exp((row - row.max()).astype(np.float64)).astype(np.float32)
        assert (int(count_many(weights)) * LISTED > len(row)) is many


@numba.njit
def count_many(weights: np.ndarray) -> int:
    return count_from(weights, 0.0)
