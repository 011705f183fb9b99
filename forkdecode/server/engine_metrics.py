"""The engine's series: its stats, asked for whenever somebody scrapes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from itertools import accumulate
from typing import Literal, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from forkdecode.results import BATCH_ROW_BOUNDS, EngineStats

EngineState: TypeAlias = Literal["starting", "serving", "down"]

_PATIENCE = 5.0
"""Seconds that a scrape waits for the end of the engine's step; Prometheus gives up after 10."""
_GAUGES = (
    ("requests_running", "Requests that hold KV blocks.", "running_groups"),
    ("requests_waiting", "Requests that wait for KV blocks.", "waiting_groups"),
    ("rows_running", "Candidates of the running requests.", "running_rows"),
    ("kv_blocks", "KV blocks of the pool; the sum of free, used and cached.", "total_blocks"),
    ("kv_blocks_free", "KV blocks that nobody holds.", "free_blocks"),
    ("kv_blocks_used", "KV blocks that requests and tree nodes hold.", "used_blocks"),
    ("kv_blocks_shared", "KV blocks that are held more than once.", "shared_blocks"),
    ("kv_blocks_cached", "KV blocks that the prefix cache alone holds: free to take.", "cached_blocks"),
    ("kv_blocks_held", "KV blocks that tree nodes alone hold.", "held_blocks"),
    ("tree_nodes_held", "Tree nodes that hold KV, or did until it was given up.", "held_nodes"),
    (
        "kv_saved_ratio",
        "Share of KV blocks that sharing saved since the engine started, averaged over steps.",
        "saved",
    ),
    (
        "kv_waste_ratio",
        "Share of the slots in held KV blocks that held no token since the engine started.",
        "waste",
    ),
    (
        "kv_read_gain",
        "Bytes of keys and values that candidates without sharing would have read for each that attention "
        "moved, since the engine started.",
        "read_gain",
    ),
)
_COUNTERS = (
    ("steps", "Steps of the engine.", "steps"),
    ("generated_tokens", "Tokens generated, those of running requests included.", "generated_tokens"),
    ("prefill_tokens", "Prompt tokens computed, again ones after preemption included.", "prefill_tokens"),
    (
        "cached_prompt_tokens",
        "Prompt tokens taken from the prefix cache or from tree nodes.",
        "cached_prompt_tokens",
    ),
    ("recomputed_tokens", "Tokens computed again after preemption.", "recomputed_tokens"),
    ("kv_block_copies", "KV blocks copied on write.", "copies"),
    ("preemptions", "How often a request was put aside to make room.", "preemptions"),
    ("swapped_blocks", "KV blocks swapped out to host memory.", "swapped_blocks"),
    ("tree_nodes_swapped", "How often a tree node's KV went to host memory to make room.", "swapped_nodes"),
    ("tree_nodes_dropped", "How often a tree node's KV was given up to make room.", "dropped_nodes"),
    ("rebuilt_tokens", "Tokens computed again because a tree node's KV was given up.", "rebuilt_tokens"),
    ("kv_unique_block_steps", "Sum over steps of KV blocks held.", "unique_block_steps"),
    (
        "kv_unshared_block_steps",
        "Sum over steps of the KV blocks that would be held if nothing were shared.",
        "unshared_block_steps",
    ),
    (
        "kv_naive_bytes",
        "Bytes of keys and values that attention would have read, and beams copied, if each candidate held "
        "all of its context.",
        "naive_kv_bytes",
    ),
    (
        "kv_paged_bytes",
        "Bytes of keys and values that attention would have read if each candidate read its own context.",
        "paged_kv_bytes",
    ),
    (
        "kv_forest_bytes",
        "Bytes of keys and values that attention read, and of partial results that it moved.",
        "forest_kv_bytes",
    ),
    ("engine_requests_finished", "Requests that the engine finished.", "finished_groups"),
    ("engine_requests_failed", "Requests that failed in the engine or were cancelled.", "failed_groups"),
)


class EngineCollector(Collector):
    """Answers while the engine is down, too: then with its state alone. Of an engine that does not come
    to the end of a step it tells what was last known, so that it is seen to stand still."""

    def __init__(self) -> None:
        self._stats: Callable[[], EngineStats] | None = None
        self._asked: Future[EngineStats | None] | None = None
        """While it is within a step."""
        self._last: EngineStats | None = None
        self._lock = threading.Lock()
        self._state: EngineState = "starting"
        self._starts = 0

    def watch(self, stats: Callable[[], EngineStats]) -> None:
        """Where the numbers come from. `stats` may raise while the engine is down."""
        with self._lock:
            self._stats = stats

    def state(self, state: EngineState) -> None:
        """What the engine has come to."""
        with self._lock:
            if state == "serving" and self._state != "serving":
                self._starts += 1
            self._state = state

    def collect(self) -> Iterator[Metric]:
        found = self._ask()
        with self._lock:
            up, restarts = self._state == "serving", max(0, self._starts - 1)
        yield GaugeMetricFamily(
            "forkdecode_engine_up", "1 while the engine serves, 0 while it starts or is down.", int(up)
        )
        yield CounterMetricFamily(
            "forkdecode_engine_restarts", "How often the engine came back after it had gone down.", restarts
        )
        if found is not None:
            yield from _families(found)

    def _ask(self) -> EngineStats | None:
        with self._lock:
            if self._stats is None:
                return None
            if self._asked is None:
                self._asked = Future()
                threading.Thread(target=self._answer, args=(self._stats, self._asked), daemon=True).start()
            asked, last = self._asked, self._last
        wait([asked], _PATIENCE)
        return asked.result() if asked.done() else last

    def _answer(self, stats: Callable[[], EngineStats], asked: Future[EngineStats | None]) -> None:
        try:
            found = stats()
        except Exception:  # whatever is wrong with the engine, the scrape says that it is down
            found = None
        with self._lock:
            self._asked, self._last = None, found
        asked.set_result(found)


def _families(stats: EngineStats) -> Iterator[Metric]:
    for name, text, field in _GAUGES:
        yield GaugeMetricFamily(f"forkdecode_{name}", text, getattr(stats, field))
    for name, text, field in _COUNTERS:
        yield CounterMetricFamily(f"forkdecode_{name}", text, getattr(stats, field))
    if stats.steps_by_rows:
        yield _batch_rows(stats)


def _batch_rows(stats: EngineStats) -> Metric:
    bounds = [*map(str, map(float, BATCH_ROW_BOUNDS)), "+Inf"]
    sums = accumulate(stats.steps_by_rows)
    family = HistogramMetricFamily("forkdecode_batch_rows", "Candidates decoded in a step.")
    family.add_metric([], list(zip(bounds, sums, strict=True)), stats.decoded_rows)
    return family
