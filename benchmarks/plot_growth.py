"""Growth as plots, an axis each."""

from __future__ import annotations

from typing import Any

Result = dict[str, Any]
COLOURS = {"beam": "C0", "sample": "C1"}


def growth(results: list[Result]) -> Any:
    """Microseconds a step of the control plane by size."""
    from matplotlib import pyplot

    names = _axes(results)
    figure, axes = pyplot.subplots(1, len(names), figsize=(3.4 * len(names), 3.6), sharey=True, squeeze=False)
    for axis, name in zip(axes[0], names, strict=True):
        _lines(axis, results, name, {"control_us": "schedule + commit", "plan_us": "attention plan"})
        axis.set(xscale="log", yscale="log", xlabel=name)
    axes[0][0].set_ylabel("CPU microseconds a step")
    axes[0][-1].legend(fontsize=7)
    return figure


def growth_model(results: list[Result]) -> Any:
    """Milliseconds a step with a model above, bytes of KV below."""
    from matplotlib import pyplot

    names = _axes(results)
    shape: Any = {"figsize": (3.4 * len(names), 6.4), "sharex": "col", "sharey": "row", "squeeze": False}
    figure, axes = pyplot.subplots(2, len(names), **shape)
    for (above, below), name in zip(axes.T, names, strict=True):
        _lines(above, results, name, {"step_ms": "step", "control_ms": "of which control plane"})
        _lines(below, results, name, {"kv_bytes": "KV blocks", "unshared_bytes": "without sharing"}, 1e-6)
        above.set(xscale="log", yscale="log")
        below.set(xscale="log", yscale="log", xlabel=name)
    axes[0][0].set_ylabel("milliseconds a step")
    axes[1][0].set_ylabel("megabytes")
    for row in axes:
        row[-1].legend(fontsize=7)
    return figure


def _axes(results: list[Result]) -> list[str]:
    return list(dict.fromkeys(r["axis"] for r in results))


def _lines(axis: Any, results: list[Result], name: str, values: dict[str, str], scale: float = 1.0) -> None:
    """A line for each kind and value: the first value's whole, the others' dotted."""
    for r in (r for r in results if r["axis"] == name):
        sizes = [p["size"] for p in r["points"]]
        for style, (value, what) in zip(("o-", "s:"), values.items(), strict=True):
            look = {"color": COLOURS[r["kind"]], "markersize": 4, "label": f"{r['kind']}: {what}"}
            axis.plot(sizes, [scale * p[value] for p in r["points"]], style, **look)
