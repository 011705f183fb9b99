"""What a Prometheus server scrapes: series of requests, of their sequences, and of the engine.

Everything lives in a registry of its own. The engine's series are read from its stats at each scrape
(engine_metrics.py); those of requests are counted as requests end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from typing import Protocol
from urllib.parse import urlsplit

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    start_http_server,
)

from forkdecode.checks import shown
from forkdecode.errors import invalid
from forkdecode.results import EngineStats, Usage
from forkdecode.server.engine_metrics import EngineCollector, EngineState

STRATEGIES = ("greedy", "sample", "best_of", "beam", "diverse_beam", "stochastic_beam", "score")
"""What the label `strategy` may say: the names of the protocol's strategies, and score."""

_LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_TOKEN_LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
_LENGTHS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class Sequence(Protocol):
    """What is asked of a candidate: results.Candidate, or the engine's record of one."""

    @property
    def token_ids(self) -> tuple[int, ...]: ...

    @property
    def finish_reason(self) -> str: ...


class TreeCounts(Protocol):
    """What is asked of the server's tree sessions, from any thread."""

    @property
    def count(self) -> int: ...

    @property
    def num_detached(self) -> int: ...

    @property
    def num_nodes(self) -> int: ...


class Metrics:
    """Counts requests, and answers scrapes. Safe to call from any thread; nothing here blocks.

    registry: None for a fresh one. Never the global one of prometheus_client: several servers in one
    process must not count into each other.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = CollectorRegistry() if registry is None else registry
        self._requests = _RequestSeries(self.registry)
        self._sequences = _SequenceSeries(self.registry)
        self._engine = EngineCollector()
        self.registry.register(self._engine)
        ProcessCollector(registry=self.registry)
        build = Info("forkdecode_build", "The running server.", registry=self.registry)
        build.info({"version": version("forkdecode")})

    def watch_engine(self, stats: Callable[[], EngineStats]) -> None:
        """stats: EnginePort.stats, called at each scrape in a thread of the metrics port's."""
        self._engine.watch(stats)

    def watch_trees(self, trees: TreeCounts) -> None:
        """Asked at each scrape."""
        for name, text, read in (
            ("sessions", "Tree sessions that are open, those without a connection included.", "count"),
            ("sessions_detached", "Tree sessions that have lost their connection.", "num_detached"),
            ("nodes", "Live nodes of all tree sessions.", "num_nodes"),
        ):
            gauge = Gauge(f"forkdecode_tree_{name}", text, registry=self.registry)
            gauge.set_function(partial(_count, trees, read))

    def engine_state(self, state: EngineState) -> None:
        """The engine is "starting", "serving" or "down"; each "serving" after the first is a restart."""
        self._engine.state(state)

    def request_started(self, strategy: str) -> None:
        """A request passed every check and goes to the engine. Each needs its request_ended()."""
        self._requests.running.labels(strategy).inc()

    def request_ended(
        self,
        strategy: str,
        status: str,
        usage: Usage | None = None,
        *,
        duration: float,
        candidates: Iterable[Sequence] = (),
    ) -> None:
        """A request that had started is over.

        status: the name of its gRPC code ("OK", "CANCELLED", "UNAVAILABLE" ...). usage: where the
        engine said it, of failed requests too. duration: seconds from its arrival to its last
        message. candidates: those it was answered with.
        """
        found = list(candidates)
        self._requests.running.labels(strategy).dec()
        self._requests.ended(strategy, status, duration)
        self._sequences.ended(strategy, found)
        if usage is not None:
            self._requests.used(strategy, usage, max((len(c.token_ids) for c in found), default=0))
            self._sequences.tokens.labels(strategy).inc(usage.generated_tokens)

    def request_refused(self, status: str) -> None:
        """A call ended before it started a request: who called is unknown, what it says is wrong, or
        there is no room for it."""
        self._requests.refused.labels(status).inc()
        self._requests.errors.labels(status).inc()

    def start_http(self, listen: str) -> MetricsServer:
        """Answers GET /metrics on `listen` ("host:port", port 0 for a free one) in threads of its own.

        Raises InvalidRequestError for what is no address, OSError for one that can't be had.
        """
        return MetricsServer(self.registry, listen)


class MetricsServer:
    """The metrics port. address: where it listens, as "host:port"."""

    def __init__(self, registry: CollectorRegistry, listen: str) -> None:
        host, port = _host_and_port(listen)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise OSError(f"metrics_listen: {listen} can't be had: {error.strerror or error}") from None
        shown_host = f"[{host}]" if ":" in host else host
        self.address = f"{shown_host}:{self._server.server_port}"

    def close(self) -> None:
        """Stops listening. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _RequestSeries:
    """One observation a request, however many sequences it decodes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"forkdecode_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"forkdecode_{name}", text, ["strategy"], registry=registry, buckets=buckets)

        self.running = Gauge(
            "forkdecode_requests_in_progress",
            "Requests that started and have not ended, those that wait in the engine included.",
            ["strategy"],
            registry=registry,
        )
        self.requests = counter("requests", "Requests that ended, by gRPC status.", "strategy", "status")
        self.refused = counter("requests_refused", "Calls refused before they became requests.", "status")
        self.errors = counter("errors", "Requests refused or ended with another status than OK.", "status")
        self.prompt = counter("request_prompt_tokens", "Prompt tokens of requests that ended.", "strategy")
        self.cached = counter(
            "request_cached_tokens", "Of the prompt tokens, those found in the prefix cache.", "strategy"
        )
        self.hits = counter("request_prefix_hits", "Requests that found part of their prompt.", "strategy")
        self.duration = histogram(
            "request_duration_seconds", "From a request's arrival to its last message.", _LATENCY
        )
        self.queue = histogram(
            "request_queue_seconds", "How long a request waited for blocks in the engine.", _LATENCY
        )
        self.first = histogram(
            "request_time_to_first_token_seconds", "From submission to the engine to a first token.", _LATENCY
        )
        self.per_token = histogram(
            "request_time_per_token_seconds",
            "Mean time between two tokens of a request's longest sequence.",
            _TOKEN_LATENCY,
        )
        for strategy in STRATEGIES:
            # So that a first request shows as an increase from zero.
            self.requests.labels(strategy, "OK")
            for series in (self.running, self.prompt, self.cached, self.hits):
                series.labels(strategy)

    def ended(self, strategy: str, status: str, duration: float) -> None:
        self.requests.labels(strategy, status).inc()
        self.duration.labels(strategy).observe(duration)
        if status != "OK":
            self.errors.labels(status).inc()

    def used(self, strategy: str, usage: Usage, longest: int) -> None:
        """What a request took; times that it has no meaning for are left out."""
        self.prompt.labels(strategy).inc(usage.prompt_tokens)
        self.cached.labels(strategy).inc(usage.cached_tokens)
        if usage.cached_tokens:
            self.hits.labels(strategy).inc()
        self.queue.labels(strategy).observe(usage.queue_time)
        if usage.generated_tokens:
            self.first.labels(strategy).observe(usage.time_to_first_token)
        if longest > 1:
            self.per_token.labels(strategy).observe(usage.time_per_token)


class _SequenceSeries:
    """One observation a candidate: a request of 16 samples counts 16 times."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.finished = Counter(
            "forkdecode_sequences",
            "Candidates that requests were answered with, by why they ended.",
            ["strategy", "finish_reason"],
            registry=registry,
        )
        self.tokens = Counter(
            "forkdecode_sequence_tokens",
            "Tokens generated for requests that ended, of all their candidates and of pruned beams.",
            ["strategy"],
            registry=registry,
        )
        self.length = Histogram(
            "forkdecode_sequence_length_tokens",
            "Generated tokens of a candidate.",
            ["strategy"],
            registry=registry,
            buckets=_LENGTHS,
        )
        for strategy in STRATEGIES:
            self.tokens.labels(strategy)

    def ended(self, strategy: str, candidates: Iterable[Sequence]) -> None:
        length = self.length.labels(strategy)
        for candidate in candidates:
            self.finished.labels(strategy, candidate.finish_reason).inc()
            length.observe(len(candidate.token_ids))


def _count(trees: TreeCounts, name: str) -> float:
    return float(getattr(trees, name))


def _host_and_port(listen: str) -> tuple[str, int]:
    with suppress(ValueError):
        parts = urlsplit(f"//{listen}")
        if parts.hostname and parts.port is not None and parts.netloc == listen and "@" not in listen:
            return parts.hostname, parts.port
    raise invalid("metrics_listen", f"{shown(listen)} is no address", "host:port, such as 127.0.0.1:9090")
