"""A group's results have the same bits whatever runs beside it and however its prompt is cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest
import torch

from tests.model.driver import Driver, Group, StepBuilder
from tests.models import FAMILIES, VOCAB, tiny_model

LEAN = ("llama", "qwen2", "qwen3", "mistral", "phi3", "gemma2", "gemma3")
"""Families that have a decoder of their own beside the generic one."""
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
STEPS = 4


@pytest.fixture(autouse=True)
def set_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.getfixturevalue("threads"))
    yield
    torch.set_num_threads(before)


def tokens(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, n).tolist()


def follow(driver: Driver, group: Group, mates: list[Group]) -> list[torch.Tensor]:
    """The group's distributions over steps that fork and prune it, beside `mates`."""
    seen = []
    for step in range(STEPS):
        got = driver.decode(*mates[: len(mates) // 2], group, *mates[len(mates) // 2 :])
        first = sum(len(m.rows) for m in mates[: len(mates) // 2])
        seen.append(got[first : first + len(group.rows)])
        for i, mate in enumerate(mates):
            driver.fork(mate, [0] * (1 + (i + step) % 3), tokens(1 + (i + step) % 3, 50 + step))
        parents = [0, 0, 0] if step == 0 else [2, 0, 1, 1][: 3 + step % 2]
        driver.fork(group, parents, tokens(len(parents), step))
    return seen


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("family", "threads", "decoder"),
    [
        *((f, 1, d) for f in FAMILIES for d in ("auto", "generic") if d == "auto" or f in LEAN),
        *((f, 2, "auto") for f in ("llama", "gemma2", "gpt_oss")),
        ("llama", 2, "generic"),
    ],
)
def test_batch_mates_and_chunks_change_no_bit(
    family: str, dtype: torch.dtype, threads: int, decoder: Literal["auto", "generic"]
) -> None:
    prompt = tokens(83, 1)
    driver = Driver(tiny_model(family, dtype=dtype), num_blocks=800, decoder=decoder)
    alone = driver.open(prompt)
    first = driver.prefill(alone)
    driver.fork(alone, [0], tokens(1, 9))
    want = follow(driver, alone, [])
    for mates, chunks in ((1, [1, 81]), (7, [30, 3, 49])):
        others = [driver.open(tokens(3 + 5 * i, 20 + i)) for i in range(mates)]
        for other in others:
            driver.prefill(other)
            driver.fork(other, [0], tokens(1, 9))
        group = driver.open(prompt)
        for chunk in chunks:
            # The chunk runs in one step with the mates' own decoding.
            step = StepBuilder()
            for other in others:
                step.decode(other, driver.vocab)
            step.prefill(group, chunk)
            driver.run(step)
            for other in others:
                driver.fork(other, [0], tokens(1, 10))
        assert torch.equal(driver.decode(group), first)
        driver.fork(group, [0], tokens(1, 9))
        for got, expected in zip(follow(driver, group, others), want, strict=True):
            assert torch.equal(got, expected)
        for table in (g.table for g in (group, *others)):
            table.release()
