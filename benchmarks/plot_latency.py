"""Latency by arrival rate as a plot."""

from __future__ import annotations

from typing import Any

from benchmarks.report_serving import load

Result = dict[str, Any]
STYLES = {"p50": "o-", "p90": "s--", "p99": "^:"}
COLOURS = {"service": "C0", "in process": "C1"}


def latency(results: list[Result]) -> Any:
    """Percentiles of the time to the first token and of the waits between tokens; a row of two for each
    kind of request."""
    from matplotlib import pyplot

    loads = list(dict.fromkeys(map(load, results)))
    figure, axes = pyplot.subplots(len(loads), 2, figsize=(10, 4 * len(loads)), squeeze=False)
    for row, name in zip(axes, loads, strict=True):
        own = [r for r in results if load(r) == name]
        for axis, value in zip(row, ("first_token", "between_tokens"), strict=True):
            _percentiles(axis, own, value)
        row[0].set(title=name, ylabel="time to first token, ms")
        row[1].set(title=name, ylabel="between tokens, ms")
    axes[0][0].legend(fontsize=8)
    return figure


def _percentiles(axis: Any, results: list[Result], value: str) -> None:
    for side, colour in COLOURS.items():
        own = sorted((r for r in results if r["side"] == side), key=lambda r: float(r["rate"]))
        rates = [r["rate"] for r in own]
        for percentile, style in STYLES.items():
            label = f"{side}, {percentile}"
            axis.plot(rates, [1e3 * r[value][percentile] for r in own], style, color=colour, label=label)
    axis.set(xlabel="arrivals a second", yscale="log")
    for ticks in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
        ticks("{x:g}")
    axis.set_xlim(0)
