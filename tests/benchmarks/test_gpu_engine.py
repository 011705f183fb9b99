"""gpu_check's end to end part sees an engine that is wrong, or that computes in a slower way than asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.gpu import engine
from benchmarks.gpu.bench import Bench
from forkdecode.logs import get_logger
from forkdecode.results import Candidate

BENCH = Bench(rehearse=True)


class Result:
    """A DecodeResult, as far as it is read."""

    def __init__(self, score: float, tokens: tuple[int, ...]) -> None:
        self.candidates = (Candidate(0, tokens, "", "length", 0.0, 0.0, score),)


def made(score: float, *events: dict[str, Any]) -> engine.Run:
    work = engine.case(BENCH)
    return engine.Run(1.0, tuple(Result(score, (1, 2)) for _ in range(work.prompts)), events)  # type: ignore[misc]


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers gives every prompt a score of -2."""
    scores = np.full(engine.case(BENCH).prompts, -2.0)
    monkeypatch.setattr(engine, "generated", lambda *_: (1.0, scores, None))
    monkeypatch.setattr(engine, "rescored", lambda *_: scores)


@pytest.mark.usefixtures("theirs")
@pytest.mark.parametrize(
    ("score", "events", "ok"),
    [
        (-2.01, (), True),
        (-2.1, (), False),
        (np.nan, (), False),
        (-2.0, ({"event": "graphs_off"},), False),
        (-2.0, ({"event": "kernels_off"},), False),
        (-2.0, ({"event": "graphs_dropped"},), False),
        (-2.0, ({"event": "graphs_differ_in_last_bits"},), True),
    ],
)
def test_is_judged(
    monkeypatch: pytest.MonkeyPatch, score: float, events: tuple[dict[str, Any], ...], ok: bool
) -> None:
    monkeypatch.setattr(engine, "decoded", lambda *_, **__: made(score, *events))
    assert engine.end_to_end(BENCH, "none")["ok"] == ok


@pytest.mark.parametrize("event", engine.TOLD)
def test_what_the_engine_logs_of_itself_is_read(monkeypatch: pytest.MonkeyPatch, event: str) -> None:
    class Stub:
        def decode(self, *_: object, **__: object) -> list[Result]:
            get_logger("forkdecode.model.graphed").info(event, reason="they differ")
            return [Result(0.0, (1,))]

    @contextmanager
    def llm(*_: object, **__: object) -> Iterator[Stub]:
        yield Stub()

    monkeypatch.setattr(engine, "LLM", llm)
    run = engine.decoded(engine.case(BENCH), torch.device("cpu"))
    assert {(told["event"], told["reason"]) for told in run.told} == {(event, "they differ")}


def test_a_step_is_told_without_the_work_of_prompts(monkeypatch: pytest.MonkeyPatch, theirs: None) -> None:
    work = engine.case(BENCH)
    run = dataclasses.replace(made(-2.0), seconds=0.5 + (work.new_tokens - 1) / 1000, first=0.5)
    monkeypatch.setattr(engine, "decoded", lambda *_, **__: run)
    found = engine.end_to_end(BENCH, "none")
    assert found["step_ms"] == pytest.approx(1.0)
    assert found["prefill_ms"] == pytest.approx(500.0)


def test_what_the_gpu_waits_for_is_told_as_a_share_of_a_step_of_8b(
    monkeypatch: pytest.MonkeyPatch, theirs: None
) -> None:
    run = dataclasses.replace(made(-2.0), idle=100.0)
    monkeypatch.setattr(engine, "decoded", lambda *_, **__: run)
    found = engine.end_to_end(Bench(rehearse=True, bandwidth=4e12), "none")
    assert found["idle_share_of_8b_step"] == pytest.approx(1e-4 / (16e9 / 4e12))


def test_the_cache_holds_what_the_beams_need() -> None:
    work = engine.case(Bench(rehearse=False))
    blocks = -(-(work.prompt_len + work.new_tokens) // 16)
    assert work.prompts * (blocks + work.width * -(-work.new_tokens // 16)) < work.blocks < 5000
