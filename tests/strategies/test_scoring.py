"""Scores equal transformers' float32 arithmetic, and stay finite where it would not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from forkdecode.strategies.scoring import (
    beam_score,
    contrastive_score,
    length_normalised_score,
    length_scale,
    mean_logprob,
)


@pytest.mark.parametrize("penalty", [-1.0, -0.37, 0.0, 0.5, 0.77, 1.0, 2.0])
@pytest.mark.parametrize("generated", [1, 2, 3, 7, 100, 4096])
def test_one_float32_division_as_torch_does_it(penalty: float, generated: int) -> None:
    sums = -np.random.default_rng(generated).exponential(30, 200).astype(np.float32)
    expected = (torch.from_numpy(sums) / (generated**penalty)).numpy()
    assert beam_score(sums, generated, penalty).tolist() == expected.tolist()


@pytest.mark.parametrize("penalty", [-100.0, 100.0])
def test_extreme_penalties_give_no_nan(penalty: float) -> None:
    assert np.isfinite(length_scale(10**6, penalty))
    scores = beam_score(np.array([0.0, -1e-3, -50.0], np.float32), 10**6, penalty)
    assert np.isfinite(scores).all()
    assert scores[0] >= scores[1] >= scores[2]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("power", [-100.0, 100.0])
@pytest.mark.parametrize("generated", [1, 7_300, 10**6])
def test_every_scorers_scores_are_finite(power: float, generated: int) -> None:
    sums = np.array([0.0, -1e-3, -50.0, -3e38], np.float32)
    baseline = np.array([-1.0, -2.0])
    for scores in (
        length_normalised_score(sums, generated, power),
        contrastive_score(sums, generated, baseline, 0.0, power),
    ):
        assert np.isfinite(scores).all()
        assert (np.diff(scores) <= 0).all()


def test_mean() -> None:
    assert mean_logprob(np.array([-6.0, -4.0]), 2).tolist() == [-3.0, -2.0]
