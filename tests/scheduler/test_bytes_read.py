"""What an engine's statistics say of the bytes that attention read, step by step by hand."""

from __future__ import annotations

import numpy as np
import pytest

from forkdecode.config import EngineConfig
from forkdecode.engine.core import Engine
from forkdecode.scheduler.preemption import PreemptionCost
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.scheduler.scheduler import Scheduler
from forkdecode.types import Sample
from tests.scheduler.engines import VOCAB, request, run, score_request
from tests.scheduler.toy import ToyRunner

TOKEN = 24
"""Bytes: 2 layers, keys and values, one head of 3, bfloat16."""


def engine(*, fail_at: int = 0) -> Engine:
    """Blocks of 4 tokens."""
    config = EngineConfig(block_size=4, watermark=0.0)
    runner = ToyRunner(64, 4, 0, VOCAB)
    runner.fail_at.add(fail_at)
    scheduler = Scheduler(config, 64, 0, PreemptionCost(1.0, 1.0), b"toy", layers=((None, TOKEN),))
    return Engine(scheduler, runner)


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


TWO_SAMPLES = request("a", range(10), Sample(2), max_tokens=3)


def test_two_samples_of_three_tokens() -> None:
    """A chunk of 9 tokens with the row that computes the tenth, then two rows of 11 and of 12 tokens
    behind a trunk of 8."""
    made = engine()
    expected = (9 + 3 * (10 + 22 + 24), 9 + 10 + 22 + 24, 9 + 10 + (8 + 6) + (8 + 8))
    assert read(made, TWO_SAMPLES) == expected
    assert made.stats().read_gain == pytest.approx(65 / 49)


def test_what_the_prefix_cache_holds_is_read_and_not_computed() -> None:
    made = engine()
    read(made, TWO_SAMPLES)
    again = request("b", range(10), Sample(2), max_tokens=1)
    assert read(made, again) == (9 + 3 * 10, 9 + 10, 9 + 10)


@pytest.mark.parametrize("rows", [2, 5])
def test_continuations_read_their_context_once_for_all_their_tokens(rows: int) -> None:
    """A prompt of 9 tokens, then each row's next 3 tokens at once, whose logits give the last 3 of 4."""
    scored = score_request("a", range(9), np.arange(4 * rows).reshape(rows, 4).tolist())
    paged, forest = 8 + 9 + rows * 12, 8 + 9 + 8 + rows * 4
    assert read(engine(), scored) == (8 + 3 * (paged - 8), paged, forest)


def test_a_step_that_failed_is_not_counted() -> None:
    assert read(engine(fail_at=2), TWO_SAMPLES)[1] == 9 + 10


def test_an_engine_that_knows_no_layers_counts_nothing() -> None:
    config = EngineConfig(block_size=4, watermark=0.0)
    made = Engine(Scheduler(config, 64, 0, PreemptionCost(1.0, 1.0), b"toy"), ToyRunner(64, 4, 0, VOCAB))
    assert read(made, TWO_SAMPLES) == (0, 0, 0)
    assert made.stats().read_gain == 1.0
