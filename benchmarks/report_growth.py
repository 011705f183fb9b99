"""Records of benchmarks.growth as Markdown tables."""

from __future__ import annotations

from typing import Any

from benchmarks.report_layout import table

Result = dict[str, Any]
MODEL_PLOT = "growth-model"


def growth(results: list[Result]) -> str:
    """The control plane alone."""
    head = ["kind", "axis", "sizes", "schedule + commit, us", "exponent", "attention plan, us", "exponent"]
    return table([*head, "blocks, exponent"], map(growth_row, results))


def growth_row(r: Result) -> list[str]:
    e = r["exponents"]
    return [
        r["kind"],
        r["axis"],
        _span(r, "size", ",.0f"),
        _span(r, "control_us", ",.0f"),
        f"{e['control_us']:.2f}",
        _span(r, "plan_us", ",.0f"),
        f"{e['plan_us']:.2f}",
        f"{e['unique_blocks']:.2f}",
    ]


def growth_model(results: list[Result]) -> str:
    """Whole steps, with what was left out, and the plot of them."""
    head = ["kind", "axis", "sizes", "step, ms", "exponent", "of which control plane, ms", "exponent"]
    head += ["KV blocks, MB", "exponent", "without sharing, MB", "left out"]
    shown = table(head, map(growth_model_row, results))
    return f"{shown}\n\n![Growth with a model](plots/{MODEL_PLOT}.svg)"


def growth_model_row(r: Result) -> list[str]:
    e = r["exponents"]
    return [
        r["kind"],
        r["axis"],
        _span(r, "size", ",.0f"),
        _span(r, "step_ms", ",.0f"),
        f"{e['step_ms']:.2f}",
        _span(r, "control_ms", ".1f"),
        f"{e['control_ms']:.2f}",
        _span(r, "kv_bytes", ",.1f", 1e-6),
        f"{e['kv_bytes']:.2f}",
        _span(r, "unshared_bytes", ",.1f", 1e-6),
        "; ".join(f"{int(size):,}: {reason}" for size, reason in r["left_out"].items()),
    ]


def _span(r: Result, name: str, form: str, scale: float = 1.0) -> str:
    first, last = (scale * r["points"][i][name] for i in (0, -1))
    return f"{first:{form}} to {last:{form}}"
