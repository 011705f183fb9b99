"""Records of benchmarks.latency as a Markdown table that says where we lose."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.arrivals import MEASURES
from benchmarks.peers.workloads import ALONE
from benchmarks.report_layout import table
from benchmarks.report_throughput import compared, described, name, slower_in, where

Result = dict[str, Any]
ORDER = [w.name for w in ALONE]
WHAT = {"first_token": "first token", "between_tokens": "each further token", "seconds": "last token"}
HEAD = ["request", "dtype", "new tokens", "peer", "time to", "peer's / ours", "smallest to largest", "pairs"]
HEAD += ["ours, ms", "peer's, ms"]


def alone(results: list[Result]) -> str:
    """Each peer's times over ours, then the losses; what a peer cannot do, and what went wrong, is said."""
    ordered = sorted(results, key=lambda r: (r["dtype"], ORDER.index(r["workload"]), -r["tokens"]))
    return f"{table(HEAD, (row for r in ordered for row in rows(r)))}\n\n{losses(ordered)}"


def measured(r: Result) -> list[str]:
    """Which times a record has."""
    return [measure for measure in MEASURES if measure in r]


def rows(r: Result) -> list[list[str]]:
    head = [r["workload"], r["dtype"], str(r["tokens"]), name(r)]
    if why := r.get("refused") or r.get("failed"):
        return [[*head, "", why if "refused" in r else f"failed: {why}", *[""] * 4]]
    return [[*head, WHAT[measure], *cells(r[measure], r["runs"])] for measure in measured(r)]


def cells(told: Result, runs: int) -> list[str]:
    return [*compared(told, runs), *(ms(told[side]) for side in ("ours", "peer"))]


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.{0 if seconds >= 0.1 else 1}f}"


def losses(results: list[Result]) -> str:
    """Every time that is longer than a peer's, by name."""
    lost = [
        f"{where(r)}, {WHAT[measure]} ({r[measure]['ratio']:.2f}x)"
        for r in results
        for measure in measured(r)
        if r[measure]["ratio"] < 1
    ]
    return slower_in(lost)


def short(r: Result, measure: str) -> str:
    """What a time is of, in a few words."""
    return f"{WHAT[measure]}, {described(r['workload'])}"
