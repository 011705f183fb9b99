"""Block sizes at width 512, from the records of several benchmarks, as one Markdown table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.report_layout import table

Result = dict[str, Any]
WIDTH, PROMPT = 512, 2500
TOKEN_BYTES = 131_072
"""Of keys and values in Llama 3.1 8B in bfloat16: 32 layers, 8 heads of 128."""
HEAD = (
    "tokens a block",
    "copies per step",
    "tokens in them",
    "table of a step, us: mean",
    "plan, us: least (median)",
    "read without sharing / by the plan",
    "slots held",
    "empty",
    "held by an 8B model, GB",
    "catalogue: step, ms",
    "its copies, ms",
    "its blocks, MB",
    "empty",
)


def block_sizes(results: Mapping[str, list[Result]]) -> str:
    """A size a row: the group's table, its plan for a GPU, and whole steps of a catalogue's beam."""
    tables = {
        r["block_size"]: r
        for r in results.get("control_plane", [])
        if (r["width"], r["prompt"]) == (WIDTH, PROMPT) and "waste" in r
    }
    plans = {
        r["block_size"]: r
        for r in results.get("forest_plan", [])
        if (r.get("width"), r["splits"], r["by"]) == (WIDTH, "fixed", "alone")
    }
    steps = {
        r["block_size"]: r
        for r in results.get("catalogue", [])
        if r["part"] == "wide" and r["width"] == WIDTH and "waste" in r
    }
    sizes = sorted({*tables, *plans, *steps})
    if not sizes:
        return "No record yet."
    rows = [
        [
            str(size),
            *_table(tables.get(size)),
            *_plan(plans.get(size)),
            *_held(tables.get(size)),
            *_step(steps.get(size)),
        ]
        for size in sizes
    ]
    return table(list(HEAD), rows)


def _table(r: Result | None) -> list[str]:
    if r is None:
        return [""] * 3
    return [f"{r['copies_mean']:.0f}", f"{r['copies_mean'] * r['block_size']:,.0f}", f"{r['mean']:.0f}"]


def _plan(r: Result | None) -> list[str]:
    if r is None:
        return [""] * 2
    us = f"{r['least_us']['fresh']:,.0f} ({r['median_us']['fresh']:,.0f})"
    return [us, f"{r['paged_bytes'] / r['plan_bytes']:.1f}x"]


def _held(r: Result | None) -> list[str]:
    if r is None:
        return [""] * 3
    slots = r["slots_mean"]
    return [f"{slots:,.0f}", f"{r['waste']:.1%}", f"{slots * TOKEN_BYTES / 1e9:.2f}"]


def _step(r: Result | None) -> list[str]:
    if r is None:
        return [""] * 4
    ms = r["step_ms"]
    shown = [f"{ms['total']:,.0f}", f"{ms['blocks']:.1f}", f"{r['block_bytes'] / 1e6:.0f}"]
    return [*shown, f"{r['waste']:.1%}"]
