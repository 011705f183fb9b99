"""gpu_check's end to end part sees an engine that is wrong, or that computes in a slower way than asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import structlog
import torch

from benchmarks.gpu import engine
from benchmarks.gpu.bench import Bench
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
    ],
)
def test_is_judged(
    monkeypatch: pytest.MonkeyPatch, score: float, events: tuple[dict[str, Any], ...], ok: bool
) -> None:
    monkeypatch.setattr(engine, "decoded", lambda *_: made(score, *events))
    assert engine.end_to_end(BENCH, "none")["ok"] == ok


@pytest.mark.parametrize("event", ["kernels_off", "graphs_off"])
def test_what_the_engine_logs_of_itself_is_read(monkeypatch: pytest.MonkeyPatch, event: str) -> None:
    class Stub:
        def decode(self, *_: object, **__: object) -> list[Result]:
            structlog.get_logger("forkdecode.model").warning(event, reason="they differ")
            return [Result(0.0, (1,))]

    @contextmanager
    def llm(*_: object, **__: object) -> Iterator[Stub]:
        yield Stub()

    monkeypatch.setattr(engine, "LLM", llm)
    run = engine.decoded(engine.case(BENCH), torch.device("cpu"))
    assert [(told["event"], told["reason"]) for told in run.fell_back] == [(event, "they differ")] * 2
