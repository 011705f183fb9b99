"""Latencies of a run as a picture."""

from __future__ import annotations

from pathlib import Path

from benchmarks.load.measure import Summary


def plot_latencies(summary: Summary, path: Path) -> None:
    """Shares of requests that were faster than so much: time to first token and time per token, by
    strategy. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
    good = [s for s in summary.seen if s.meant == "ok" and s.first is not None]
    for kind in sorted({s.kind for s in good}):
        own = [s for s in good if s.kind == kind]
        for axis, values in zip(
            axes, ([s.first for s in own], [s.per_token for s in own if s.per_token]), strict=True
        ):
            ordered = sorted(v for v in values if v is not None)
            shares = [(i + 1) / len(ordered) for i in range(len(ordered))]
            axis.step([1000 * v for v in ordered], shares, where="post", label=kind)
    axes[0].set(xlabel="time to first token, ms", ylabel="share of requests", xscale="log")
    axes[1].set(xlabel="time per token, ms", xscale="log")
    axes[1].legend()
    for axis in axes:
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)
