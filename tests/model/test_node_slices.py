"""Steps whose partial results take too much memory run in slices, which give the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from forkdecode.model.node_plans import Key, NodePlans, Planners
from forkdecode.model.node_slices import Slice, sliced
from forkdecode.model.runner import Runner
from forkdecode.model.step_shape import StepShape
from forkdecode.step import DecodeRows, QuerySegment
from forkdecode_kernels.attention import attention
from forkdecode_kernels.node_list import SlicedNodes
from tests.model.driver import Driver
from tests.models import tiny_model

CPU = torch.device("cpu")
HEADS, KV_HEADS, DIM, SIZE = 4, 2, 8, 16
KEY = (HEADS, KV_HEADS, DIM, None)
PART = 4 * HEADS * (DIM + 1)
"""Bytes of a part."""


def step() -> tuple[StepShape, int]:
    """A chunk of 90 tokens behind 700 others, one of 30 behind the same 512 of them, 70 rows behind 600
    tokens, three padding tokens. Also the number of blocks."""
    names = np.random.default_rng(0).permutation(50 + 40 + 38 + 140).astype(np.int32)
    chunk, rest, trunk, tails = np.split(names, [50, 90, 128])
    other = np.concatenate([chunk[:32], rest[:4]])
    segments = [QuerySegment(0, 90, 700, chunk), QuerySegment(90, 30, 530, other)]
    rows = DecodeRows(120, trunk, tails.reshape(70, 2), 38 * SIZE + 20)
    return StepShape(segments, [rows], 193), len(names)


def parts_of(shape: StepShape) -> int:
    return Planners(SIZE, CPU).plan(KEY, 4, shape).num_parts


@pytest.mark.parametrize("most", [5, 20, 100, 250, 10_000])
def test_slices_hold_all_and_are_small(most: int) -> None:
    shape, _ = step()
    slices = sliced(shape, most, parts_of)
    assert [s.start for s in slices] == [0, *(s.stop for s in slices[:-1])]
    assert slices[-1].stop == shape.num_tokens
    assert all(parts_of(s.shape) <= most for s in slices)
    tokens = [s.start + t for s in slices for t in covered(s.shape)]
    assert tokens == list(range(190))
    assert len(slices) <= max(1, 6 * parts_of(shape) // most)


def covered(shape: StepShape) -> list[int]:
    spans = [(s.token_start, s.token_count) for s in shape.segments]
    spans += [(d.token_start, d.rows) for d in shape.decodes]
    return sorted(first + i for first, count in spans for i in range(count))


@pytest.mark.parametrize("window", [None, 300])
@pytest.mark.parametrize("most", [20, 150])
def test_attention_by_slices_is_attention(most: int, window: int | None) -> None:
    shape, num_blocks = step()
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(HEADS, shape.num_tokens, DIM, generator=generator)
    kv = torch.randn(2, KV_HEADS, num_blocks, SIZE, DIM, generator=generator)
    found = []
    for part_bytes in (1 << 30, most * PART):
        plan = NodePlans(Planners(SIZE, CPU, part_bytes), shape, CPU).plan(HEADS, kv, window)
        assert isinstance(plan, SlicedNodes) == (part_bytes < 1 << 30)
        found.append(attention(query, kv, plan, scale=0.3, window=window))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_a_groups_result_does_not_hang_on_what_is_beside_it() -> None:
    shape, num_blocks = step()
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(HEADS, shape.num_tokens, DIM, generator=generator)
    kv = torch.randn(2, KV_HEADS, num_blocks, SIZE, DIM, generator=generator)
    planners = Planners(SIZE, CPU, 150 * PART)
    together = attention(query, kv, NodePlans(planners, shape, CPU).plan(HEADS, kv, None), scale=0.3)
    first = StepShape(shape.segments[:1], (), 90)
    alone = attention(query[:, :90], kv, NodePlans(planners, first, CPU).plan(HEADS, kv, None), scale=0.3)
    torch.testing.assert_close(alone, together[:90], rtol=0, atol=0)


class Watched(Planners):
    """Counts the steps that it cut."""

    cut = 0

    def slices(self, key: Key, element_bytes: int, step: StepShape) -> list[Slice]:
        self.cut += 1
        return super().slices(key, element_bytes, step)


def test_a_step_of_a_model_may_run_in_slices() -> None:
    seen = []
    for part_bytes in (1 << 30, 8 * PART):
        driver = Driver(tiny_model("gemma2"), attention="nodes")
        runner: Runner = driver.runner
        planners = runner._planners = Watched(4, CPU, part_bytes)
        group = driver.open(list(range(60)))
        rows = [driver.prefill(group, [30, 29])]
        for tokens in ([1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]):
            driver.fork(group, [0] * 6, tokens)
            rows.append(driver.decode(group))
        seen.append(torch.cat(rows))
        assert bool(planners.cut) == (part_bytes < 1 << 30)
    torch.testing.assert_close(*seen, rtol=1e-4, atol=1e-5)
