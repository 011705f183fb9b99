"""What an engine's statistics say of the bytes that attention read, step by step by hand: what they would
have been without sharing, beside what the runner tells."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from forkdecode.config import EngineConfig
from forkdecode.engine.core import Engine
from forkdecode.kv import KvLayers
from forkdecode.scheduler.preemption import PreemptionCost
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.scheduler.scheduler import Scheduler
from forkdecode.step import StepOutput, StepPlan
from forkdecode.types import Beam, BestOf, DiverseBeam, Sample, StochasticBeam, Strategy
from tests.scheduler.engines import VOCAB, request, run, score_request
from tests.scheduler.toy import ToyRunner

TOKEN = 24
"""Bytes: 2 layers, keys and values, one head of 3, bfloat16."""
TOLD = 7
"""Tokens that the runner says it has read in each step."""


class TellingRunner(ToyRunner):
    """A runner that knows what its attention reads."""

    def execute(self, plan: StepPlan) -> StepOutput:
        return dataclasses.replace(super().execute(plan), attention_bytes=TOLD * TOKEN)


def engine(
    *,
    fail_at: int = 0,
    layers: KvLayers = ((None, TOKEN),),
    runner: type[ToyRunner] = TellingRunner,
) -> Engine:
    """Blocks of 4 tokens."""
    config = EngineConfig(block_size=4, watermark=0.0)
    made = runner(64, 4, 0, VOCAB)
    made.fail_at.add(fail_at)
    return Engine(Scheduler(config, 64, 0, PreemptionCost(1.0, 1.0), b"toy", layers=layers), made)


def read(engine: Engine, what: DecodeRequest) -> tuple[float, float, float]:
    """Tokens by which naive, paged and forest have grown when the request has ended."""
    before = engine.stats()
    engine.submit(what)
    run(engine)
    after = engine.stats()
    return (
        (after.naive_kv_bytes - before.naive_kv_bytes) / TOKEN,
        (after.paged_kv_bytes - before.paged_kv_bytes) / TOKEN,
        (after.forest_kv_bytes - before.forest_kv_bytes) / TOKEN,
    )


def two_rows(strategy: Strategy) -> DecodeRequest:
    """A chunk of 9 tokens with the row that computes the tenth, then two rows of 11 and of 12 tokens."""
    return request("a", range(10), strategy, max_tokens=3)


@pytest.mark.parametrize("strategy", [Sample(2), BestOf(2)])
def test_two_samples_of_three_tokens_are_never_copied(strategy: Strategy) -> None:
    made = engine()
    assert read(made, two_rows(strategy)) == (65, 9 + 10 + 22 + 24, 3 * TOLD)
    assert made.stats().read_gain == pytest.approx(65 / 21)


@pytest.mark.parametrize("strategy", [Beam(2), DiverseBeam(2, groups=2), StochasticBeam(2)])
def test_two_beams_are_copied_once_there_are_two(strategy: Strategy) -> None:
    assert read(engine(), two_rows(strategy)) == (9 + 10 + 3 * (22 + 24), 65, 3 * TOLD)


def test_groups_that_decode_together_are_counted_each_by_its_kind() -> None:
    made = engine()
    made.submit(request("b", range(20, 30), Beam(2), max_tokens=3))
    assert read(made, two_rows(Sample(2))) == (2 * 65 + 2 * (22 + 24), 2 * 65, 3 * TOLD)


def test_one_beam_is_never_copied() -> None:
    assert read(engine(), two_rows(Beam(1))) == (9 + 10 + 11 + 12, 9 + 10 + 11 + 12, 3 * TOLD)


def test_what_the_prefix_cache_holds_is_read_and_not_computed() -> None:
    made = engine()
    read(made, two_rows(Sample(2)))
    again = request("b", range(10), Sample(2), max_tokens=1)
    assert read(made, again) == (9 + 10, 9 + 10, TOLD)


@pytest.mark.parametrize("rows", [2, 5])
def test_continuations_read_their_context_once_for_all_their_tokens(rows: int) -> None:
    """A prompt of 9 tokens, then each row's next 3 tokens at once, whose logits give the last 3 of 4."""
    scored = score_request("a", range(9), np.arange(4 * rows).reshape(rows, 4).tolist())
    paged = 8 + 9 + rows * 12
    assert read(engine(), scored)[:2] == (paged, paged)


def test_a_step_that_failed_is_not_counted() -> None:
    assert read(engine(fail_at=2), two_rows(Sample(2))) == (9 + 10, 9 + 10, TOLD)


def test_nothing_is_counted_where_one_side_is_not_known() -> None:
    for made in (engine(layers=()), engine(runner=ToyRunner)):
        assert read(made, two_rows(Sample(2))) == (0, 0, 0)
        assert made.stats().read_gain == 1.0
