"""Records of benchmarks.simulate as Markdown tables."""

from __future__ import annotations

from typing import Any

from benchmarks.report_layout import NAMES, table

Result = dict[str, Any]
LOAD_KEYS = ("model", "accelerator", "devices", "trace", "kind", "width", "count")
SYSTEM_NAMES = ("forest", "paged", "unshared", "exact", "contiguous")
ATTAINED = 0.9
FEW = 6
LONG = 0.5
"""Of a steady load's seconds: what is served is counted where it was not given up sooner."""


def load_key(r: Result) -> tuple[Any, ...]:
    return tuple(r[k] for k in LOAD_KEYS)


def title(key: tuple[Any, ...]) -> str:
    model, accelerator, devices, trace, kind, width, count = key
    what = f"beam {width}" if kind == "beam" else "1 sample" if width == 1 else f"{width} samples"
    # A load that lasts as long at each rate has no count of its own.
    many = f"{count:,} requests" if count else "steady"
    return f"{model} on {devices} x {accelerator}, {NAMES.get(trace, trace)}, {what}, {many}"


def simulations(results: list[Result]) -> list[tuple[tuple[Any, ...], list[Result]]]:
    """Results of each load, in the order of their first record."""
    keys = list(dict.fromkeys(map(load_key, results)))
    return [(key, [r for r in results if load_key(r) == key]) for key in keys]


def simulate(results: list[Result]) -> str:
    parts = []
    for key, own in simulations(results):
        head = [
            "rate",
            "system",
            "served",
            "goodput",
            "within target",
            "step, ms",
            "rows a step",
            "pool in use",
            "saving",
        ]
        head += ["preemptions", "most at once", "host, ms a step"]
        parts += [f"**{title(key)}**", "", table(head, map(simulate_row, own)), ""]
    return "\n".join(parts).rstrip()


def simulate_row(r: Result) -> list[str]:
    return [
        f"{r['rate']:g}" if r["rate"] else "at once",
        r["system"],
        f"{r['requests_per_second']:.2f}/s",
        f"{r['goodput']:.2f}/s",
        f"{r['met']:.0%}",
        f"{r['step_ms']:.1f}",
        f"{r['rows_a_step']:.0f}",
        f"{r['pool_use']:.0%}",
        f"{r['saving']:.1%}",
        str(r["preemptions"]),
        f"{r['most_groups']:,}" if "most_groups" in r else "",
        f"{r['host_ms_a_step']:.1f}",
    ]


def told(rates: list[float]) -> str:
    """All of them, or how many between which."""
    if len(rates) > FEW:
        return f"{len(rates)} from {rates[0]:g} to {rates[-1]:g}"
    return ", ".join(f"{rate:g}" for rate in rates)


def counted(r: Result) -> bool:
    """Whether a load lasted long enough to say what is served of it."""
    return bool(r["count"]) or bool(r["window_seconds"] >= LONG * r["load_seconds"])


def most_served(results: list[Result]) -> dict[tuple[Any, ...], dict[str, float]]:
    """Of steady loads the most requests a second that each system served at any rate."""
    found: dict[tuple[Any, ...], dict[str, float]] = {}
    for r in results:
        if not r["count"] and counted(r):
            most = found.setdefault(load_key(r), {})
            most[r["system"]] = max(most.get(r["system"], 0.0), r["requests_per_second"])
    return found


def served(results: list[Result]) -> str:
    """The same, and the ratios of systems."""
    rows = []
    for key, most in most_served(results).items():
        if len(most) > 1:
            shown = [f"{most[system]:.3g}" if system in most else "" for system in SYSTEM_NAMES]
            pairs = (("paged", "unshared"), ("forest", "paged"), ("forest", "contiguous"))
            ratios = [f"{most[a] / most[b]:.2f}x" if a in most and b in most else "" for a, b in pairs]
            rows.append([title(key), *shown, *ratios])
    head = ["load", *SYSTEM_NAMES, "paged / unshared", "forest / paged", "forest / contiguous"]
    return table(head, rows)


def attained(results: list[Result]) -> dict[tuple[Any, ...], dict[str, float]]:
    """Of each load and system the highest rate at which ATTAINED of the requests met the target; where there
    is none the system is left out."""
    found: dict[tuple[Any, ...], dict[str, float]] = {}
    for r in results:
        if r["rate"] and r["met"] >= ATTAINED:
            best = found.setdefault(load_key(r), {})
            best[r["system"]] = max(best.get(r["system"], 0.0), r["rate"])
    return found


def carried(results: list[Result]) -> str:
    """Of each system the highest rate that is carried."""
    rows, best = [], attained(results)
    for key, own in simulations([r for r in results if r["rate"]]):
        shown = []
        for system in SYSTEM_NAMES:
            rates = [r["rate"] for r in own if r["system"] == system]
            least = f"below {min(rates):g}" if rates else ""
            good = best.get(key, {}).get(system)
            shown.append(f"{good:g}" if good else least)
        rows.append([title(key), told(sorted({r["rate"] for r in own})), *shown])
    return table(["load", "rates simulated", *SYSTEM_NAMES], rows)


def calibration(results: list[Result]) -> str:
    """Real steps beside the roofline's, and what is left when its mean error is taken off."""
    r = results[-1]
    mean = r["mean_ratio"]
    head = ["workload", "rows", "measured, ms", "predicted, ms", "measured / predicted"]
    head += ["predicted x mean ratio, ms", "error"]
    rows = (
        [
            w["workload"],
            str(w["rows"]),
            f"{w['measured_ms']:.0f}",
            f"{w['predicted_ms']:.0f}",
            f"{w['ratio']:.2f}",
            f"{w['predicted_ms'] * mean:.0f}",
            f"{w['predicted_ms'] * mean / w['measured_ms'] - 1:+.0%}",
        ]
        for w in r["workloads"]
    )
    errors = [abs(mean / w["ratio"] - 1) for w in r["workloads"]]
    speeds = f"{r['bandwidth'] / 1e9:.1f} GB/s and {r['flops'] / 1e9:.0f} GFLOP/s"
    told = f"steps take {mean:.2f} times what the roofline says (geometric mean)"
    off = f"{sum(errors) / len(errors):.0%} on average, {max(errors):.0%} at most"
    return f"{table(head, rows)}\n\nThis thread: {speeds}; {told}; corrected by that it is off by {off}."
