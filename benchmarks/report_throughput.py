"""Records of benchmarks.throughput as a Markdown table that says where we lose."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.names import shown
from benchmarks.peers.workloads import ALONE, TOKENS, WORKLOADS
from benchmarks.report_layout import spread, table

Result = dict[str, Any]
ORDER = [w.name for w in WORKLOADS]
HEAD = ["workload", "dtype", "new tokens", "peer", "ours / peer", "smallest to largest", "pairs", "goal"]
HEAD += ["tokens/s", "peer's"]


def throughput(results: list[Result]) -> str:
    """Ours over each peer, then the losses; what a peer cannot do, and what went wrong, is said."""
    ordered = sorted(results, key=lambda r: (r["dtype"], ORDER.index(r["workload"]), -r["tokens"]))
    return f"{table(HEAD, map(row, ordered))}\n\n{losses(ordered)}"


def row(r: Result) -> list[str]:
    head = [r["workload"], r["dtype"], str(r["tokens"]), name(r)]
    for why in ("refused", "failed"):
        if why in r:
            return [*head, r[why] if why == "refused" else f"failed: {r[why]}", *[""] * 5]
    goal = "" if r["goal"] is None else f"{r['goal']:g}x"
    speeds = [
        f"{r[key]:.{0 if r[key] >= 10 else 1}f}" for key in ("tokens_per_second", "peer_tokens_per_second")
    ]
    return [*head, *compared(r, r["runs"]), goal, *speeds]


def compared(r: Result, runs: int) -> list[str]:
    """A ratio, in bold where we lose, its spread, and of how many pairs."""
    ratio = f"{r['ratio']:.2f}x" if r["ratio"] >= 1 else f"**{r['ratio']:.2f}x**"
    return [ratio, f"{r['ratio_min']:.2f} to {r['ratio_max']:.2f}" if runs > 1 else "one pair", str(runs)]


def losses(results: list[Result]) -> str:
    """Every measurement that we lose or that is below its goal, by name."""
    measured = [r for r in results if "ratio" in r]
    lost = [f"{where(r)} ({r['ratio']:.2f}x)" for r in measured if r["ratio"] < 1]
    short = [
        f"{where(r)} ({r['ratio']:.2f}x of {r['goal']:g}x)" for r in measured if r["ratio"] < (r["goal"] or 0)
    ]
    return f"{slower_in(lost)} Below the goal: {'; '.join(short) or 'none'}."


def slower_in(lost: list[str]) -> str:
    return f"We are slower in: {'; '.join(lost)}." if lost else "We are slower in none of them."


def where(r: Result) -> str:
    return f"{r['workload']}, {r['dtype']}, {name(r)}"


def name(r: Result) -> str:
    return shown(r["peer"])


def described(workload: str) -> str:
    """A workload in words: "beam 4, 16 prompts of 40 to 200 tokens"."""
    (own,) = (w for w in (*WORKLOADS, *ALONE) if w.name == workload)
    what = own.kind if own.rows == 1 else f"{own.kind} {own.rows}"
    many = f"{len(own.lengths)} prompts" if len(own.lengths) > 1 else "a prompt"
    return f"{what}, {many} of {spread(own.lengths, ',d')} tokens"


def usual(r: Result) -> bool:
    """Whether the run was as long as a run that is told nothing, and the peer as it is without options."""
    return r["tokens"] == TOKENS and ":" not in r["peer"]
