"""Records of what is measured without an engine as Markdown tables: choices, products, plans, tables."""

from __future__ import annotations

from typing import Any

from benchmarks.report_layout import spread, table

Result = dict[str, Any]
ROUNDED, ANY, BFLOAT16 = "float32, weights of bfloat16 numbers", "float32, any weights", "bfloat16"
PRODUCTS = {ANY: ("float32", "full"), ROUNDED: ("float32", "half"), BFLOAT16: ("bfloat16", "half")}
"""Kinds of products and what benchmarks.products calls them: dtype, weight."""


def selection(results: list[Result]) -> str:
    """Microseconds a row; an option a line, a batch a column."""
    batches = sorted(results, key=lambda r: (r["dtype"] != "float32", r["rows"], -r["groups"]))
    names = dict.fromkeys(name for r in batches for name in r["microseconds"])
    head = ["option", *(_batch(r) for r in batches)]
    return table(head, ([name, *(_cell(r["microseconds"].get(name)) for r in batches)] for name in names))


def _batch(r: Result) -> str:
    rows = f"{r['rows']:,} rows, {r['groups']} group{'s' * (r['groups'] > 1)}"
    return rows if r["dtype"] == "float32" else f"{rows}, {r['dtype']}"


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def products(results: list[Result]) -> str:
    """Time of oneDNN over ours by rows, the least and the most of the layers' shapes; the head apart."""
    head = ["rows", *(f"{kind}{part}" for kind in PRODUCTS for part in ("", ": head"))]
    rows = sorted({int(r["rows"]) for r in results})
    return table(head, ([f"{count:,}", *_ratios(results, count)] for count in rows))


def _ratios(results: list[Result], rows: int) -> list[str]:
    shown = []
    for dtype, weight in PRODUCTS.values():
        for of_head in (False, True):
            found = [
                r["ms"]["oneDNN"] / r["ms"][weight]
                for r in results
                if (r["dtype"], r["rows"], r["shape"] == "head") == (dtype, rows, of_head)
            ]
            told = spread(found, ".1f") if found else ""
            shown.append(f"**{told}**" if found and min(found) < 1 else told)
    return shown


def forest_plan(results: list[Result]) -> str:
    """The least microseconds of a plan with fixed splits, numpy's beside the compiled one; of the latter
    alone the median too."""
    own = [r for r in results if r["splits"] == "fixed" and not r.get("width")]
    by = {(r["step"], r["by"]): r["least_us"] for r in own}
    alone = {r["step"]: r["median_us"]["fresh"] for r in own if r["by"] == "alone"}
    goal = {r["goal_us"] for r in own}
    rows = []
    for step in dict.fromkeys(r["step"] for r in own):
        numpy, compiled = by.get((step, "numpy"), {}), by[step, "compiled"]
        shown = [_cell(numpy.get("fresh")), _cell(compiled["fresh"])]
        shown.append(f"{_cell(by[step, 'alone']['fresh'])} ({_cell(alone[step])})" if step in alone else "")
        rows.append([step, *shown, _cell(compiled["grown"]), _cell(compiled["same"])])
    told = f"alone (median; goal {', '.join(map(_cell, sorted(goal)))})"
    head = ["step", "fresh, numpy", "fresh, compiled", told, "contexts grown", "nothing changed"]
    return table(head, rows)


def control_plane(results: list[Result]) -> str:
    """One step of a group's table by its prompt, in blocks of 16."""
    head = ["width", "prompt", "median, us", "mean", "p99", "copies per step", "goal, median"]
    rows = (
        [
            f"{r['width']:,}",
            f"{r['prompt']:,}",
            *(f"{r[name]:.0f}" for name in ("median", "mean", "p99", "copies_mean", "goal_us")),
        ]
        for r in sorted(results, key=lambda r: (r["width"], r["prompt"]))
        if r["block_size"] == 16
    )
    return table(head, rows)
