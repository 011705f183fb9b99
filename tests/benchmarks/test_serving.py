"""The load test, short and on a tiny model: a real server process, every kind of client, a killed engine."""

from __future__ import annotations

import asyncio
import itertools
import random
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from benchmarks.load import clients
from benchmarks.load.latency import requests, together
from benchmarks.load.measure import Seen, growth, percentiles
from benchmarks.load.server_process import _address
from benchmarks.load.traffic import Ask
from benchmarks.serving import parse, run
from forkdecode import Delta, Sample
from tests.tiny_model import save_tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_llama(tmp_path_factory.mktemp("model"), max_position_embeddings=4096))


def test_faults_of_every_kind_leave_a_server_whole(model: str) -> None:
    args = ["soak", "--model", model, "--seconds", "6", "--streams", "8", "--words", "40", "--threads", "1"]
    (found,) = run(parse(args))
    assert found["faults"] == []
    assert found["idle"]
    assert found["requests"] >= 8


def test_a_killed_engine_is_followed_by_another(model: str, tmp_path: Path) -> None:
    args = ["kill", "--model", model, "--times", "1", "--streams", "4", "--words", "40", "--threads", "1"]
    (found,) = run(parse(args))
    assert found["faults"] == []
    assert found["kills"] == len(found["seconds_until_it_serves"]) == 1


def test_latency_is_told_for_each_rate_and_side(model: str) -> None:
    """The same arrivals on both sides: as many requests, and as many waits between tokens, as were asked."""
    args = ["latency", "--model", model, "--rates", "4", "12", "--seconds", "0.75", "--tokens", "6"]
    found = run(parse([*args, "--runs", "2", "--width", "3", "--threads", "1"]))
    assert [(r["rate"], r["side"]) for r in found] == [
        (rate, side) for rate in (4, 12) for side in ("service", "in process")
    ]
    for r in found:
        assert r["faults"] == []
        assert r["first_token"]["count"] == r["requests"] > 0
        assert (r["runs"], r["seed"]) == (2, 1)
        assert 0 < r["first_token"]["p50"] <= r["first_token"]["p90"] <= r["first_token"]["p99"]
        assert r["between_tokens"]["count"] <= r["requests"] * 3 * 5
        assert r["tokens_per_second"] == pytest.approx(r["requests"] * 18 / r["until_last"])
    assert [r["requests"] for r in found[::2]] == [r["requests"] for r in found[1::2]]
    # A side that reads late is sent several tokens at once; in this little time not all of them.
    assert all(r["between_tokens"]["count"] > r["requests"] for r in found)


def test_runs_are_told_together_with_the_spread_of_their_medians() -> None:
    def one(tokens: int, seconds: float, *first: float) -> dict[str, Any]:
        waits = {"first_token": list(first), "between_tokens": []}
        return {"requests": len(first), "until_last": seconds, "tokens": tokens, "faults": ["x"], **waits}

    found = together([one(10, 2.0, 0.1, 0.2, 0.4), one(20, 3.0, 0.5, 0.6, 0.7)], width=4)
    assert (found["requests"], found["until_last"], found["tokens_per_second"]) == (6, 5.0, 24.0)
    assert (found["faults"], found["between_tokens"]) == (["x", "x"], {})
    first = found["first_token"]
    assert (first["p50"], first["p50_min"], first["p50_max"], first["count"]) == (0.5, 0.2, 0.6, 6)


def test_what_a_service_costs_is_a_ratio_of_pairs(model: str) -> None:
    args = ["overhead", "--model", model, "--runs", "2", "--tokens", "4", "--threads", "1"]
    for found in run(parse(args)):
        assert 0 < found["ratio_min"] <= found["ratio"] <= found["ratio_max"]


def test_requests_of_a_seed_are_the_same_again() -> None:
    first, again, other = (list(islice(requests(seed, "sample", 2, 5), 20)) for seed in (1, 1, 2))
    assert first == again != other
    assert {ask.options["max_tokens"] for ask in first} == {5}


def test_a_stream_tells_when_each_candidate_had_new_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two candidates, a tick an event: 1 and 3, 2 and 5. What brings no tokens is no arrival."""
    events = [Delta("r", 0, (1,), "a"), Delta("r", 1, (1,), "a"), Delta("r", 0, (2,), "b")]
    events += [Delta("r", 0, (), "c"), Delta("r", 1, (2, 3), "bc")]

    class Client:
        async def stream(self, *_: object, **__: object) -> AsyncIterator[Delta]:
            for event in events:
                yield event

    ticks = itertools.count()
    monkeypatch.setattr(clients.time, "perf_counter", lambda: float(next(ticks)))
    seen = Seen("Sample")
    asyncio.run(clients.ok(Client(), Ask("x", Sample(2)), random.Random(0), seen))
    assert seen.first == 1.0
    assert seen.gaps == [2.0, 3.0]


def test_percentiles_and_growth() -> None:
    assert percentiles([None]) == {}
    assert percentiles([0.1 * i for i in range(100)])["p90"] == pytest.approx(9.0)
    assert growth([5, 5, 1, 1, 2, 2, 2, 2]) == 2.0
    assert growth([]) == 1.0


def test_a_server_that_does_not_start_says_why() -> None:
    command = [sys.executable, "-S", "-c", "raise SystemExit('no such model')"]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
        pytest.raises(RuntimeError, match="before it was ready: no such model"),
    ):
        _address(process, errors)
