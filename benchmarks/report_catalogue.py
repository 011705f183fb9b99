"""Records of benchmarks.catalogue as a Markdown table."""

from __future__ import annotations

from typing import Any

from benchmarks.report_layout import table

Result = dict[str, Any]
PARTS = ("forward", "logits", "select", "blocks", "control")


def catalogue(results: list[Result]) -> str:
    """Milliseconds of a step by width; the other parts of the benchmark are not told here."""
    wide = sorted((r for r in results if r["part"] == "wide"), key=lambda r: int(r["width"]))
    head = ["width", "forward", "logits", "selection", "block copies", "schedule, commit, trie"]
    goal = f"{wide[0]['goal_share']:.0%}" if wide else "none"
    return table([*head, f"not the model's (goal {goal})", "whole request"], map(row, wide))


def row(r: Result) -> list[str]:
    ms = r["step_ms"]
    shown = [f"{ms[part]:,.0f}" if ms[part] >= 5 else f"{ms[part]:.1f}" for part in PARTS]
    return [f"{r['width']:,}", *shown, f"{ms['share']:.1%}", f"{r['seconds']:.1f} s"]
