"""Metrics as a Prometheus server sees them: scraped over HTTP, parsed by its own client's parser."""

from __future__ import annotations

import dataclasses
import itertools
import re
import threading
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from forkdecode.errors import InvalidRequestError, UnavailableError
from forkdecode.results import BATCH_ROW_BOUNDS, EngineStats, Usage
from forkdecode.scheduler.events import CandidateRecord, GroupFailed, GroupFinished
from forkdecode.server import engine_metrics
from forkdecode.server.metrics import STRATEGIES, Metrics, MetricsServer
from forkdecode.types import Beam, Sample
from tests.scheduler.engines import request, run, toy_engine

STATS = EngineStats(
    **{f.name: 0 for f in dataclasses.fields(EngineStats) if f.name != "steps_by_rows"},
    steps_by_rows=(0,) * (len(BATCH_ROW_BOUNDS) + 1),
)
USAGE = Usage(
    **{f.name: 0 for f in dataclasses.fields(Usage)}  # type: ignore[arg-type]
)


class Scraped:
    """One scrape: value(name, labels) of a sample, text and type of a family."""

    def __init__(self, server: MetricsServer) -> None:
        with urlopen(f"http://{server.address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        self.families: dict[str, Metric] = {f.name: f for f in text_string_to_metric_families(text)}
        self._samples = {
            (s.name, tuple(sorted(s.labels.items()))): s.value
            for family in self.families.values()
            for s in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        return self._samples.get((f"forkdecode_{name}", tuple(sorted(labels.items()))))


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def server(metrics: Metrics) -> Iterator[MetricsServer]:
    server = metrics.start_http("127.0.0.1:0")
    yield server
    server.close()


def candidates(*lengths: int) -> list[CandidateRecord]:
    return [CandidateRecord(i, (1,) * n, "eos", 0.0, 0.0, 0.0, None) for i, n in enumerate(lengths)]


def test_one_request_of_three_samples_counts_once_and_its_sequences_thrice(
    metrics: Metrics, server: MetricsServer
) -> None:
    usage = dataclasses.replace(
        USAGE,
        prompt_tokens=20,
        cached_tokens=16,
        generated_tokens=9,
        queue_time=0.5,
        time_to_first_token=0.7,
        time_per_token=0.02,
    )
    metrics.request_started("sample")
    assert Scraped(server).value("requests_in_progress", strategy="sample") == 1
    metrics.request_ended("sample", "OK", usage, duration=1.5, candidates=candidates(2, 3, 4))
    seen = Scraped(server)
    assert seen.value("requests_in_progress", strategy="sample") == 0
    assert seen.value("requests_total", strategy="sample", status="OK") == 1
    assert seen.value("sequences_total", strategy="sample", finish_reason="eos") == 3
    assert seen.value("sequence_tokens_total", strategy="sample") == 9
    assert seen.value("sequence_length_tokens_sum", strategy="sample") == 9
    assert seen.value("sequence_length_tokens_bucket", strategy="sample", le="1.0") == 0
    assert seen.value("request_prompt_tokens_total", strategy="sample") == 20
    assert seen.value("request_cached_tokens_total", strategy="sample") == 16
    assert seen.value("request_prefix_hits_total", strategy="sample") == 1
    assert seen.value("request_duration_seconds_sum", strategy="sample") == 1.5
    assert seen.value("request_queue_seconds_sum", strategy="sample") == 0.5
    assert seen.value("request_time_to_first_token_seconds_sum", strategy="sample") == 0.7
    assert seen.value("request_time_per_token_seconds_sum", strategy="sample") == 0.02
    assert seen.value("build_info", version=version("forkdecode")) == 1


def test_times_that_a_request_does_not_have_are_not_observed(metrics: Metrics, server: MetricsServer) -> None:
    metrics.request_started("greedy")
    metrics.request_ended("greedy", "CANCELLED", USAGE, duration=0.1)
    metrics.request_started("greedy")
    one = dataclasses.replace(USAGE, generated_tokens=1)
    metrics.request_ended("greedy", "OK", one, duration=0.1, candidates=candidates(1))
    seen = Scraped(server)
    assert seen.value("request_queue_seconds_count", strategy="greedy") == 2
    assert seen.value("request_time_to_first_token_seconds_count", strategy="greedy") == 1
    assert seen.value("request_time_per_token_seconds_count", strategy="greedy") is None


def test_errors_are_counted_by_status(metrics: Metrics, server: MetricsServer) -> None:
    metrics.request_refused("INVALID_ARGUMENT")
    metrics.request_refused("UNAUTHENTICATED")
    metrics.request_started("beam")
    metrics.request_ended("beam", "UNAVAILABLE", duration=2.0)
    seen = Scraped(server)
    assert seen.value("requests_refused_total", status="INVALID_ARGUMENT") == 1
    assert seen.value("errors_total", status="UNAUTHENTICATED") == 1
    assert seen.value("errors_total", status="UNAVAILABLE") == 1
    assert seen.value("requests_refused_total", status="UNAVAILABLE") is None
    assert seen.value("requests_total", strategy="beam", status="UNAVAILABLE") == 1


def test_series_of_every_strategy_are_there_before_its_first_request(server: MetricsServer) -> None:
    seen = Scraped(server)
    for strategy in STRATEGIES:
        assert seen.value("requests_total", strategy=strategy, status="OK") == 0
        assert seen.value("requests_in_progress", strategy=strategy) == 0


def test_a_scrape_while_the_engine_is_down_answers(metrics: Metrics, server: MetricsServer) -> None:
    def down() -> EngineStats:
        raise UnavailableError("the engine is down")

    assert Scraped(server).value("engine_up") == 0  # nobody said yet where the engine is
    metrics.watch_engine(lambda: dataclasses.replace(STATS, total_blocks=7))
    metrics.engine_state("starting")
    metrics.engine_state("serving")
    seen = Scraped(server)
    assert (seen.value("engine_up"), seen.value("engine_restarts_total")) == (1, 0)
    assert seen.value("kv_blocks") == 7
    metrics.watch_engine(down)
    metrics.engine_state("down")
    seen = Scraped(server)
    assert (seen.value("engine_up"), seen.value("kv_blocks")) == (0, None)
    for state in ("starting", "serving", "serving"):
        metrics.engine_state(state)  # type: ignore[arg-type]
    seen = Scraped(server)
    assert (seen.value("engine_up"), seen.value("engine_restarts_total")) == (1, 1)


def test_a_step_that_does_not_end_is_seen(
    metrics: Metrics, server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The alert for it needs series that stand still, not a scrape without an answer."""
    goes_on, asked = threading.Event(), itertools.count()

    def stats() -> EngineStats:
        number = next(asked)
        if number:
            goes_on.wait()
        return dataclasses.replace(STATS, running_groups=2, steps=8 if number else 7)

    metrics.watch_engine(stats)
    metrics.engine_state("serving")
    assert Scraped(server).value("steps_total") == 7
    monkeypatch.setattr(engine_metrics, "_PATIENCE", 0.05)
    for _ in range(3):
        seen = Scraped(server)
        assert (seen.value("engine_up"), seen.value("steps_total"), seen.value("requests_running")) == (
            1,
            7,
            2,
        )
    assert next(asked) == 2  # one that waits is enough
    monkeypatch.setattr(engine_metrics, "_PATIENCE", 60.0)
    goes_on.set()
    assert Scraped(server).value("steps_total") == 8


def test_what_a_real_engine_did_is_what_is_scraped(metrics: Metrics, server: MetricsServer) -> None:
    engine = toy_engine(num_blocks=64)
    metrics.watch_engine(engine.stats)
    engine.submit(request("a", range(3, 12), Sample(n=4, seed=1), max_tokens=6))
    engine.submit(request("b", range(3, 12), Beam(width=3), max_tokens=6))
    engine.submit(request("c", range(3, 9), Beam(width=2), max_tokens=6))
    engine.cancel("c")
    for event in run(engine).values():
        assert isinstance(event, (GroupFinished, GroupFailed))
        metrics.request_started("beam")
        metrics.request_ended("beam", "OK", event.usage, duration=0.1, candidates=event.candidates)
    stats, seen = engine.stats(), Scraped(server)
    assert stats.copies > 0
    assert seen.value("steps_total") == stats.steps > 0
    assert seen.value("generated_tokens_total") == stats.generated_tokens
    assert seen.value("sequence_tokens_total", strategy="beam") == stats.generated_tokens
    assert seen.value("kv_block_copies_total") == stats.copies
    assert seen.value("kv_saved_ratio") == pytest.approx(stats.saved)
    assert seen.value("engine_requests_failed_total") == 1
    blocks = [seen.value(f"kv_blocks_{part}") for part in ("free", "used", "cached")]
    assert sum(b for b in blocks if b is not None) == seen.value("kv_blocks") == 64
    assert seen.value("batch_rows_count") == stats.steps
    assert seen.value("batch_rows_bucket", le="+Inf") == stats.steps
    assert seen.value("batch_rows_bucket", le="8.0") == stats.steps  # 4 samples and 3 beams
    assert seen.value("batch_rows_bucket", le="1.0") < stats.steps  # type: ignore[operator]
    assert seen.value("batch_rows_sum") == stats.decoded_rows


def test_names_and_help_are_as_prometheus_asks(metrics: Metrics, server: MetricsServer) -> None:
    metrics.watch_engine(lambda: STATS)
    for name, family in Scraped(server).families.items():
        assert family.documentation.strip(), name
        if not name.startswith("forkdecode_"):
            assert name.startswith("process_"), name
            continue
        if family.type == "counter":
            assert not name.endswith("_total"), name  # the parser has taken it off
        else:
            assert not name.endswith(("_total", "_count", "_sum")), name
        assert not {"ms", "millis", "milliseconds"} & set(name.split("_")), name


def test_two_servers_in_one_process_do_not_count_into_each_other(metrics: Metrics) -> None:
    other = Metrics()
    metrics.request_refused("INTERNAL")
    server = other.start_http("127.0.0.1:0")
    try:
        assert Scraped(server).value("errors_total", status="INTERNAL") is None
    finally:
        server.close()
        server.close()


@pytest.mark.parametrize(
    "listen", ["", "9090", "localhost", "localhost:", "host:port", "a:1/b", "a:99999", "u@h:1"]
)
def test_what_is_no_address_is_refused_by_name(metrics: Metrics, listen: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^metrics_listen: .*host:port"):
        metrics.start_http(listen)


def test_a_port_that_is_taken_is_an_oserror(metrics: Metrics, server: MetricsServer) -> None:
    with pytest.raises(OSError, match=r"metrics_listen: .* can't be had: Address already in use"):
        Metrics().start_http(server.address)


class NoTrees:
    """A server's tree sessions when there are none."""

    count = num_detached = num_nodes = 0


def test_the_docs_name_every_series_and_no_other(metrics: Metrics, server: MetricsServer) -> None:
    metrics.watch_engine(lambda: STATS)
    metrics.watch_trees(NoTrees())
    seen = set()
    for name, family in Scraped(server).families.items():
        if name.startswith("forkdecode_") and not name.endswith("_created"):
            seen.add(name + ("_total" if family.type == "counter" else ""))
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    tables = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `forkdecode_")]
    told = {name for cell in tables for name in re.findall(r"`(\w+)`", cell)}
    assert told == seen - {"forkdecode_build_info"}
    assert "forkdecode_build_info" in text
