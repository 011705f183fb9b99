"""Records as plots (matplotlib, SVG)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.memory_trace import PAPER
from benchmarks.plot_growth import growth, growth_model
from benchmarks.plot_latency import latency
from benchmarks.plot_simulate import plot_name, simulated
from benchmarks.plot_throughput import throughput
from benchmarks.report_growth import MODEL_PLOT
from benchmarks.report_layout import NAMES
from benchmarks.report_serving import LATENCY_PLOT
from benchmarks.report_simulate import simulations

Result = dict[str, Any]


def plots(results: dict[str, list[Result]], folder: Path) -> list[Path]:
    """Draws what there are records for; the files written. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    # The same records give the same file.
    matplotlib.rcParams.update({"svg.hashsalt": "forkdecode", "axes.grid": True, "grid.alpha": 0.3})
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for name, benchmark, draw in PLOTS:
        if results.get(benchmark):
            figure = draw(results[benchmark])
            drawn.append(_save(figure, folder / f"{name}.svg"))
    for key, own in simulations(results.get("simulate", [])):
        drawn.append(_save(simulated(own), folder / f"{plot_name(key, own)}.svg"))
    return drawn


def _save(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path


def saving(results: list[Result]) -> Any:
    """Saving by width, beside the span that the paper reports for 2 to 6."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 4), sharey=True)
    for axis, kind, name in zip(axes, ("sample", "beam"), ("samples", "beam width"), strict=True):
        for i, trace in enumerate(NAMES):
            own = sorted(
                (r for r in results if r["kind"] == kind and r["trace"] == trace), key=lambda r: r["width"]
            )
            if not own:
                continue
            widths = [r["width"] for r in own]
            axis.plot(widths, [100 * r["saving"] for r in own], "o-", color=f"C{i}", label=NAMES[trace])
            low, high = PAPER[trace, kind]
            label = f"{NAMES[trace]}, paper" if kind == "beam" else None
            axis.plot([2, 6], [low, high], "s:", color=f"C{i}", alpha=0.6, label=label)
        axis.set(xscale="log", xlabel=name, xticks=[2, 4, 6, 8, 16, 32], ylim=(0, 90))
        axis.set_xticklabels([2, 4, 6, 8, 16, 32])
        axis.minorticks_off()
    axes[0].set_ylabel("KV blocks saved, %")
    axes[1].legend(loc="lower right")
    return figure


def block_sizes(results: list[Result]) -> Any:
    """Blocks over the ideal by block size, width 4."""
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6, 4))
    for r in results:
        if r["width"] != 4:
            continue
        sizes = [int(s) for s in r["block_sizes"]]
        values = [s["blocks_over_ideal"] for s in r["block_sizes"].values()]
        style = "o-" if r["kind"] == "beam" else "s--"
        colour = f"C{list(NAMES).index(r['trace'])}"
        what = "beam 4" if r["kind"] == "beam" else "4 samples"
        axis.plot(sizes, values, style, color=colour, label=f"{NAMES[r['trace']]}, {what}")
    axis.set(xscale="log", yscale="log", xlabel="block size, tokens", ylabel="memory held / token trie")
    axis.set_xticks(sizes, [str(s) for s in sizes])
    axis.set_yticks([1, 1.5, 2, 3, 4, 6], ["1", "1.5", "2", "3", "4", "6"])
    axis.minorticks_off()
    axis.legend()
    return figure


def curve(results: list[Result]) -> Any:
    """Blocks over the steps of a run, one below the other for each."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(results), 1, figsize=(8, 3.6 * len(results)), squeeze=False)
    for axis, r in zip(axes[:, 0], results, strict=True):
        steps = range(len(r["unique"]))
        axis.plot(steps, r["unshared"], color="C3", label="if no row shared")
        axis.plot(steps, r["unique"], color="C0", label="held")
        axis.plot(steps, r["ideal"], color="C2", linestyle="--", label="token trie (the least)")
        what = f"beam {r['width']}" if r["kind"] == "beam" else f"{r['width']} samples"
        name = f"{NAMES[r['trace']]}, {what}: {r['requests']} requests, one each {r['gap']} steps"
        axis.set(xlabel="step", ylabel="blocks of 16 tokens", title=name)
        axis.set_ylim(0)
        axis.legend()
    return figure


PLOTS: tuple[tuple[str, str, Callable[[list[Result]], Any]], ...] = (
    ("memory-saving", "memory", saving),
    ("memory-block-size", "memory", block_sizes),
    ("memory-curve", "memory_curve", curve),
    ("throughput", "throughput", throughput),
    ("growth", "growth", growth),
    (MODEL_PLOT, "growth_model", growth_model),
    (LATENCY_PLOT, "serving_latency", latency),
)
