"""Engines on the toy model, and requests for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from forkdecode.config import EngineConfig
from forkdecode.engine.core import Engine
from forkdecode.scheduler.events import CandidateRecord, GroupEvent, GroupFailed, GroupFinished
from forkdecode.scheduler.preemption import PreemptionCost
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.scheduler.scheduler import Scheduler
from forkdecode.step import ProcessorSpec
from forkdecode.types import BestOf, Continuations, Options, Sample, Strategy
from tests.scheduler.toy import ToyRunner

VOCAB = 32


def toy_engine(num_blocks: int = 4096, host_slots: int = 4096, **config: Any) -> Engine:
    settings = EngineConfig(**{"block_size": 4, "watermark": 0.0, **config})
    scheduler = Scheduler(settings, num_blocks, host_slots, PreemptionCost(1.0, 1.0), b"toy")
    return Engine(scheduler, ToyRunner(num_blocks, settings.block_size, host_slots, VOCAB))


def request(
    name: str, prompt: Sequence[int], strategy: Strategy, eos: Sequence[int] = (), **options: Any
) -> DecodeRequest:
    chosen = Options(**options)
    seed = strategy.seed if isinstance(strategy, (Sample, BestOf)) and strategy.seed is not None else 7
    stops = np.array(chosen.stop_token_ids, np.int64)
    ends = np.union1d(np.array(eos, np.int64), stops).astype(np.int64)
    return DecodeRequest(
        request_id=name,
        prompt=np.array(prompt, np.int64),
        strategy=strategy,
        options=chosen,
        seed=seed,
        processors=ProcessorSpec(
            min_tokens=chosen.min_tokens,
            suppressed_ids=ends,
            repetition_penalty=chosen.repetition_penalty,
            no_repeat_ngram_size=chosen.no_repeat_ngram_size,
        ),
        eos_ids=np.array(eos, np.int64),
        stop_ids=stops,
        automaton=None,
    )


def score_request(
    name: str, prompt: Sequence[int], continuations: Sequence[Sequence[int]], **options: Any
) -> DecodeRequest:
    asked = Continuations(tuple(map(tuple, continuations)))
    chosen = Options(**{"logprobs": 0, **options}, max_tokens=asked.longest)
    none = np.empty(0, np.int64)
    return DecodeRequest(
        name, np.array(prompt, np.int64), asked, chosen, 0, ProcessorSpec(), none, none, automaton=None
    )


def run(engine: Engine, limit: int = 10_000) -> dict[str, GroupEvent]:
    """Steps until idle, checking every invariant after each; the last event of each request."""
    last: dict[str, GroupEvent] = {}
    for _ in range(limit):
        if not engine.has_work:
            return last
        for event in engine.step():
            if isinstance(event, (GroupFinished, GroupFailed)):
                last[event.request_id] = event
        engine.scheduler.check()
    raise AssertionError(f"no end after {limit} steps")


def decode_alone(what: DecodeRequest, **config: Any) -> tuple[CandidateRecord, ...]:
    """What a request gives with an engine to itself."""
    engine = toy_engine(**config)
    engine.submit(what)
    event = run(engine)[what.request_id]
    assert isinstance(event, GroupFinished), event
    return event.candidates


def assert_idle(engine: Engine) -> None:
    """Nothing runs and every block is back."""
    stats = engine.stats()
    assert stats.used_blocks == 0
    assert stats.free_blocks + stats.cached_blocks == stats.total_blocks
    assert engine.scheduler.host.num_free == engine.scheduler.host.num_slots


def tokens(candidates: Sequence[CandidateRecord]) -> list[tuple[Any, ...]]:
    return [(c.index, c.token_ids, c.finish_reason, round(c.score, 4)) for c in candidates]


def renamed(what: DecodeRequest, name: str) -> DecodeRequest:
    return dataclasses.replace(what, request_id=name)
