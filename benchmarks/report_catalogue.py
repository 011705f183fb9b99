"""Records of benchmarks.catalogue as Markdown tables."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.report_layout import spread, table

Result = dict[str, Any]
PARTS = ("forward", "logits", "select", "blocks", "control")
BLOCK_SIZE = 4
"""Of the runs that are told by their width."""


def wide(results: list[Result]) -> list[Result]:
    """One beam search each, in blocks of BLOCK_SIZE."""
    return [r for r in results if r["part"] == "wide" and r["block_size"] == BLOCK_SIZE]


def catalogue(results: list[Result]) -> str:
    """Milliseconds of a step by width, medians over the seeds."""
    own = wide(results)
    head = ["width", "seeds", "forward", "logits", "selection", "block copies", "schedule, commit, trie"]
    goal = f"{own[0]['goal_share']:.0%}" if own else "none"
    head += [f"not the model's (goal {goal})", "whole request, s", "complete items"]
    widths = sorted({int(r["width"]) for r in own})
    return table(head, (_row([r for r in own if r["width"] == width]) for width in widths))


def _row(own: list[Result]) -> list[str]:
    spent = [statistics.median(r["step_ms"][part] for r in own) for part in PARTS]
    shown = [f"{ms:,.0f}" if ms >= 5 else f"{ms:.1f}" for ms in spent]
    share = spread((r["step_ms"]["share"] for r in own), ".1%")
    complete = spread((r["complete"] for r in own), ",")
    seconds = spread((r["seconds"] for r in own), ".1f")
    return [f"{own[0]['width']:,}", str(len(own)), *shown, share, seconds, complete]


def trie(results: list[Result]) -> str:
    """Microseconds by depth, the least and the most of the seeds."""
    own = [r for r in results if r["part"] == "trie"]
    if not own:
        return "No record yet."
    depths = list(zip(*(r["us_by_depth"] for r in own), strict=True))
    head = ["rows", "seeds", "built in, s", *(f"depth {depth}, us" for depth in range(len(depths)))]
    built = spread((r["build_seconds"] for r in own), ".1f")
    shown = [f"{own[0]['rows']:,}", str(len(own)), built, *(spread(us, ".0f") for us in depths)]
    return table([*head, "goal, us"], [[*shown, f"{own[0]['goal_us']:.0f}"]])


def against(results: list[Result]) -> str:
    """transformers at the widths that it was run at, and what its line says of the others."""
    own = [r for r in wide(results) if r.get("transformers")]
    head = ["width", "transformers, s", "its peak, MB", "its time / ours", "same items"]
    rows = []
    for width in sorted({one["width"] for r in own for one in r["transformers"]}):
        found = [one for r in own for one in r["transformers"] if one["width"] == width]
        shown = [
            spread((one["seconds"] for one in found), ".0f"),
            spread((one["peak_bytes"] / 1e6 for one in found), ",.0f"),
        ]
        ratio = spread((one["ratio"] for one in found), ".1f")
        rows.append([str(width), *shown, f"{ratio}x", spread((one["same_items"] for one in found), ".0%")])
    return "\n\n".join([table(head, rows), *map(_line, own)])


def _line(r: Result) -> str:
    memory = (
        f"{r['naive_bytes'] / 1e9:.0f} GB; the blocks of ours, of {r['block_size']} tokens each, are "
        f"{r['block_bytes'] / 1e6:.0f} MB"
    )
    return (
        f"By the straight line through these times width {r['width']:,} would take "
        f"{r['at_width_seconds'] / 60:.0f} minutes, {r['at_width_ratio']:.0f}x ours, and its copies of the "
        f"cache {memory}."
    )


def concurrent(results: list[Result]) -> str:
    """Requests at once, by the budget of a step."""
    head = ["a step's budget of tokens", "at once", "seconds", "requests per second", "over one alone"]
    rows = []
    for r in (r for r in results if r["part"] == "concurrent"):
        budget = f"{r['max_step_tokens']:,}" if r.get("max_step_tokens") else "the engine's own, 2,048"
        for count in r["at"]:
            found, alone = r[str(count)], r[str(r["at"][0])]
            gain = found["per_second"] / alone["per_second"]
            shown = [f"{found['seconds']:.0f}", f"{found['per_second']:.3f}", f"{gain:.2f}x"]
            rows.append([budget, str(count), *shown, f"{found['most_rows']:,}"])
    return table([*head, "most rows in a step"], rows)
