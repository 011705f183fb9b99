"""Records of benchmarks.simulate as Markdown tables."""

from __future__ import annotations

from typing import Any

from benchmarks.report_layout import NAMES, table

Result = dict[str, Any]
LOAD_KEYS = ("model", "accelerator", "devices", "trace", "kind", "width", "count", "host_us")
SYSTEM_NAMES = ("forest", "paged", "copied", "unshared", "exact", "contiguous")
ATTAINED = 0.9
FEW = 6
LONG = 0.5
"""Of a steady load's seconds: what is served is counted where it was not given up sooner."""
QUEUE, EXCESS = 20, 0.04
"""A load is more than a system can do where at least so many more wait at the end, and such a part of what
arrives is not served."""
PAIRS = (
    ("forest", "unshared"),
    ("copied", "unshared"),
    ("paged", "copied"),
    ("forest", "paged"),
    ("forest", "contiguous"),
)


def load_key(r: Result) -> tuple[Any, ...]:
    return tuple(r.get(k) for k in LOAD_KEYS)


def title(key: tuple[Any, ...]) -> str:
    model, accelerator, devices, trace, kind, width, count, host = key
    what = f"beam {width}" if kind == "beam" else "1 sample" if width == 1 else f"{width} samples"
    # A load that lasts as long at each rate has no count of its own.
    many = f"{count:,} requests" if count else "steady"
    clock = ", with the host's time" if host else ""
    return f"{model} on {devices} x {accelerator}, {NAMES.get(trace, trace)}, {what}, {many}{clock}"


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
            "rows per step",
            "pool in use",
            "saving",
        ]
        head += ["preemptions", "most at once", "host, ms per step"]
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


def overloaded(r: Result) -> bool:
    """Whether more arrived than the system could serve, so that what was served is all that it can."""
    before, after = r["waiting"]
    queue = after - before >= max(QUEUE, EXCESS * r["rate"] * r["window_seconds"])
    return bool(queue and r["requests_per_second"] <= (1 - EXCESS) * r["rate"])


def most_served(results: list[Result], every: bool = False) -> dict[tuple[Any, ...], dict[str, float]]:
    """Of steady loads the most requests a second that each system served at any rate, of those that had more
    than they could do at one; every: of others too, of which it is known only that they can do as much."""
    steady = [r for r in results if not r["count"] and counted(r)]
    full = {(load_key(r), r["system"]) for r in steady if overloaded(r)}
    found: dict[tuple[Any, ...], dict[str, float]] = {}
    for r in steady:
        if every or (load_key(r), r["system"]) in full:
            most = found.setdefault(load_key(r), {})
            most[r["system"]] = max(most.get(r["system"], 0.0), r["requests_per_second"])
    return found


def served(results: list[Result]) -> str:
    """The same, and the ratios of systems: of those alone that had more than they could do."""
    rows, full = [], most_served(results)
    for key, known in most_served(results, every=True).items():
        most = full.get(key, {})
        if len(known) > 1:
            shown = [
                f"{most[s]:.3g}" if s in most else f"{known[s]:.3g} or more" if s in known else ""
                for s in SYSTEM_NAMES
            ]
            ratios = [f"{most[a] / most[b]:.2f}x" if {a, b} <= most.keys() else "" for a, b in PAIRS]
            rows.append([title(key), *shown, *ratios])
    return table(["load", *SYSTEM_NAMES, *(f"{a} / {b}" for a, b in PAIRS)], rows)


def capacity(results: list[Result]) -> dict[str, str]:
    """By load what is served with sharing, and over what is without; with the host's time too."""
    told = {}
    by_load = sorted(most_served(results).items(), key=lambda pair: (*pair[0][:3], pair[0][-1] or ""))
    for key, most in by_load:
        if {"forest", "unshared"} <= most.keys():
            model, accelerator, devices, _, kind, width, _, host = key
            clock = ", with the host's time" if host else ""
            ratio = most["forest"] / most["unshared"]
            load = f"{model} on {devices} x {accelerator}, {kind} {width}{clock}"
            told[load] = f"{most['forest']:.3g}/s, {ratio:.2f}x"
    return told


def attained(results: list[Result]) -> dict[tuple[Any, ...], dict[str, float]]:
    """Of each load and system the highest rate at which ATTAINED of the requests met the target; where there
    is none the system is left out."""
    found: dict[tuple[Any, ...], dict[str, float]] = {}
    for r in results:
        if r["rate"] and r["met"] >= ATTAINED:
            best = found.setdefault(load_key(r), {})
            best[r["system"]] = max(best.get(r["system"], 0.0), r["rate"])
    return found


def limits(results: list[Result]) -> dict[tuple[Any, ...], dict[str, tuple[float, float | None]]]:
    """The same, and the lowest rate above it that was simulated and is not carried; None without one."""
    found: dict[tuple[Any, ...], dict[str, tuple[float, float | None]]] = {}
    for key, best in attained(results).items():
        for system, rate in best.items():
            own = (r["rate"] for r in results if load_key(r) == key and r["system"] == system)
            found.setdefault(key, {})[system] = rate, min((x for x in own if x > rate), default=None)
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
    head = ["workload", "tokens per step", "measured, ms", "predicted, ms", "measured / predicted"]
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
