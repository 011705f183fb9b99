"""The runner against transformers' own full forward, for every family."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.model.driver import Driver, StepBuilder, expected
from tests.models import FAMILIES, VOCAB, tiny_model

TOLERANCE = 5e-5


def tokens(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, n).tolist()


def assert_close(got: torch.Tensor, want: torch.Tensor) -> None:
    assert got.shape == want.shape
    assert (got - want).abs().max().item() < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("block_size", [1, 4, 64])
def test_forked_groups_equal_full_forward(family: str, block_size: int) -> None:
    oracle = tiny_model(family)
    driver = Driver(tiny_model(family), block_size=block_size)
    long, short = driver.open(tokens(90, 1)), driver.open(tokens(5, 2))
    assert_close(driver.prefill(long, [7, 50, 32]), expected(oracle, long.rows))
    assert_close(driver.prefill(short), expected(oracle, short.rows))
    driver.fork(long, [0, 0, 0], tokens(3, 3))
    driver.fork(short, [0], tokens(1, 4))
    rng = np.random.default_rng(5)
    for step in range(12):
        got = driver.decode(long, short)
        want = torch.cat([expected(oracle, long.rows), expected(oracle, short.rows)])
        assert_close(got, want)
        rows = len(long.rows)
        parents = rng.integers(0, rows, rows + (step % 2)).tolist() if step % 3 else range(rows)
        driver.fork(long, parents, tokens(len(parents), 100 + step))
        driver.fork(short, [0], tokens(1, 200 + step))


@pytest.mark.parametrize("family", FAMILIES)
def test_prompt_across_tiles_equals_full_forward(family: str) -> None:
    oracle = tiny_model(family)
    driver = Driver(tiny_model(family), block_size=16)
    group = driver.open(tokens(700, 1))
    assert_close(driver.prefill(group), expected(oracle, group.rows))
    driver.fork(group, [0, 0], tokens(2, 2))
    assert_close(driver.decode(group), expected(oracle, group.rows))


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_prefill_and_decode_share_a_step(family: str) -> None:
    oracle = tiny_model(family)
    driver = Driver(tiny_model(family), block_size=8)
    running, fresh = driver.open(tokens(30, 1)), driver.open(tokens(41, 2))
    driver.prefill(running)
    driver.fork(running, [0, 0], tokens(2, 3))
    step = StepBuilder()
    step.prefill(fresh, 40)
    step.decode(running, driver.vocab)
    step.decode(fresh, driver.vocab)
    got = driver.run(step)
    assert_close(got, torch.cat([expected(oracle, running.rows), expected(oracle, fresh.rows)]))


@pytest.mark.parametrize("family", FAMILIES)
def test_float16_is_float32_up_to_its_rounding(family: str) -> None:
    oracle = tiny_model(family)
    driver = Driver(tiny_model(family, dtype=torch.float16))
    group = driver.open(tokens(30, 1))
    found = [driver.prefill(group, [7, 22])]
    want = [expected(oracle, group.rows)]
    for parents in ([0, 0, 0], [2, 0], [1, 0, 1, 1]):
        driver.fork(group, parents, tokens(len(parents), 3))
        found.append(driver.decode(group))
        want.append(expected(oracle, group.rows))
    assert (torch.cat(found) - torch.cat(want)).abs().max() < 0.2  # another token's are several apart
