"""Throughput over that of others as a plot."""

from __future__ import annotations

from typing import Any

from benchmarks.report_throughput import ORDER, name, usual

Result = dict[str, Any]
GOAL = "#333333"
ROOM = 1.35
"""What a number beside a bar takes of a logarithmic axis, as a factor."""
TICKS = (0.5, 1, 2, 3, 5, 7, 10, 20)


def throughput(results: list[Result]) -> Any:
    """A bar for each workload, dtype and peer that was measured as usual, with its spread; 1 is equal."""
    from matplotlib import pyplot

    own = [r for r in results if "ratio" in r and usual(r)]
    own.sort(key=lambda r: (ORDER.index(r["workload"]), r["dtype"], r["peer"]), reverse=True)
    peers = sorted({r["peer"] for r in own})
    figure, axis = pyplot.subplots(figsize=(8, 1.2 + 0.36 * len(own)))
    for place, r in enumerate(own):
        spread = [[r["ratio"] - r["ratio_min"]], [r["ratio_max"] - r["ratio"]]]
        colour = f"C{peers.index(r['peer'])}"
        axis.barh(place, r["ratio"], xerr=spread, color=colour, capsize=3)
        # Beside the goal's mark where it would lie on it.
        end = r["ratio_max"]
        if r["goal"] and end <= r["goal"] < ROOM * end:
            end = r["goal"]
        axis.annotate(f" {r['ratio']:.1f}x", (end, place), va="center", fontsize=8)
        if r["goal"]:
            axis.plot([r["goal"]], [place], "|", color=GOAL, markersize=14)
    axis.set_yticks(range(len(own)), [f"{r['workload']}, {r['dtype']}, {name(r)}" for r in own], fontsize=8)
    axis.axvline(1, color=GOAL, linewidth=1)
    axis.set(xscale="log", xlabel="our tokens a second / the peer's (|: the goal)")
    axis.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axis.minorticks_off()
    axis.set_xlim(min(0.8, *(0.8 * r["ratio_min"] for r in own)), ROOM * max(r["ratio_max"] for r in own))
    return figure
