"""Plots of simulated loads: what is served and in time, memory, saving and preemptions of each system."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.report_simulate import SYSTEM_NAMES, counted, load_key, title

Result = dict[str, Any]
COLOURS = {
    "forest": "C0",
    "paged": "C1",
    "copied": "C5",
    "unshared": "C2",
    "exact": "C4",
    "contiguous": "C3",
}
DASHES = {"paged": (0, (4, 2)), "copied": (0, (6, 1.5, 1, 1.5)), "exact": (0, (1, 1.5))}
"""Of systems whose lines often lie on those of others."""
PANELS: tuple[tuple[str, str, bool, Callable[[Result], float]], ...] = (
    ("throughput", "requests served a second", True, lambda r: r["requests_per_second"]),
    ("goodput", "of them within target a second", True, lambda r: r["goodput"]),
    ("in time", "requests within target, %", False, lambda r: 100 * r["met"]),
    ("memory", "KV blocks in use, % on average", False, lambda r: 100 * r["pool_use"]),
    ("saving", "KV blocks that sharing saves, %", False, lambda r: 100 * r["saving"]),
    ("preemptions", "for each 100 requests that ended", False, lambda r: 100 * r["preemptions"] / ended(r)),
)
"""Title, what is shown, whether only of loads that lasted long enough to say, and how it is read."""


def ended(r: Result) -> int:
    """Requests that did; the first records, of which all ended, do not say."""
    return int(r.get("finished") or r["count"] or 1)


def plot_name(key: tuple[Any, ...], results: list[Result]) -> str:
    model, accelerator, devices, trace, kind, width, count, host = key
    load = f"{model}-{devices}x{accelerator}-{trace}-{kind}{width}{'-host' if host else ''}"
    if by_rate(results):
        return f"goodput-{load}{'' if count else '-steady'}"
    return f"simulated-{load}{f'-{count}' if count else '-steady'}"


def by_rate(results: list[Result]) -> bool:
    return len({r["rate"] for r in results}) > 1


def simulated(results: list[Result]) -> Any:
    """Of one load. By arrival rate, a line a system; of a load of one rate a bar a system."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(13, 7.4))
    draw = _lines if by_rate(results) else _bars
    for axis, (name, label, long, value) in zip(axes.flat, PANELS, strict=True):
        own = [r for r in results if counted(r) or not long]
        draw(axis, own, value)
        axis.set(title=name, ylabel=label)
        axis.set_ylim(0, None if any(map(value, own)) else 1)
    if by_rate(results):
        # The panel with every system names them for all.
        axes.flat[0].legend(*axes.flat[2].get_legend_handles_labels(), loc="best", fontsize=9)
    first = results[0]
    target = f"first token in {first['first_target']:g} s, others in {1e3 * first['token_target']:g} ms"
    figure.suptitle(f"{title(load_key(first))}; target: {target}", x=0.02, ha="left", fontsize=11)
    return figure


def _lines(axis: Any, results: list[Result], value: Callable[[Result], float]) -> None:
    for system in SYSTEM_NAMES:
        own = sorted((r for r in results if r["system"] == system), key=lambda r: float(r["rate"]))
        if own:
            axis.plot(
                [r["rate"] for r in own],
                [value(r) for r in own],
                marker="o",
                color=COLOURS[system],
                label=system,
                alpha=0.8,
                linestyle=DASHES.get(system, "-"),
            )
    axis.set(xlabel="arrivals a second")


def _bars(axis: Any, results: list[Result], value: Callable[[Result], float]) -> None:
    own = {r["system"]: value(r) for r in results}
    names = [system for system in SYSTEM_NAMES if system in own]
    bars = axis.bar(names, [own[name] for name in names], color=[COLOURS[name] for name in names], width=0.5)
    axis.bar_label(bars, fmt="{:,.4g}", padding=2)
    axis.margins(y=0.15)
    rate = results[0]["rate"] if results else 0
    axis.set(xlabel=f"{rate:,g} arrivals a second" if rate else "all at once")
