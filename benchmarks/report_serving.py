"""Records of benchmarks.serving as Markdown tables."""

from __future__ import annotations

from typing import Any

from benchmarks.report_layout import table

Result = dict[str, Any]
LATENCY_PLOT = "serving-latency"


def latency(results: list[Result]) -> str:
    """Percentiles by arrival rate, the two sides one below the other, and the plot of them."""
    ordered = sorted(results, key=lambda r: (load(r), r["rate"], r["side"]))
    head = ["requests of", "arrivals a second", "side", "requests", "first token, ms: p50", "p90", "p99"]
    head += ["between tokens, ms: p50", "p90", "p99", "tokens/s"]
    shown = table(head, map(latency_row, ordered))
    return f"{shown}\n\n![Latency by arrival rate](plots/{LATENCY_PLOT}.svg)"


def load(r: Result) -> str:
    """What the requests of a record are, in words."""
    rows = f"beam {r['width']}" if r["kind"] == "beam" else f"{r['width']} samples"
    return f"{rows} of {r['tokens']} tokens"


def latency_row(r: Result) -> list[str]:
    shown = [load(r), f"{r['rate']:g}", r["side"], str(r["requests"])]
    for name in ("first_token", "between_tokens"):
        shown += [f"{1e3 * r[name][p]:,.0f}" for p in ("p50", "p90", "p99")]
    return [*shown, f"{r['tokens_per_second']:.0f}"]


def overhead(results: list[Result]) -> str:
    """Throughput of the service over that of the engine in process."""
    head = ["workload", "service / in process", "smallest to largest", "pairs", "goal"]
    return table(
        head,
        (
            [
                r["workload"],
                f"{r['ratio']:.2f}",
                f"{r['ratio_min']:.2f} to {r['ratio_max']:.2f}",
                str(r["runs"]),
                f"{r['goal']:.2f}",
            ]
            for r in results
        ),
    )


def soak(results: list[Result]) -> str:
    """What became of each kind of client, and whether memory grew."""
    r = results[-1]
    meant = {"ok": "read to the end", "cancel": "cancelled", "deadline": "missed their deadline"}
    meant |= {"slow": "stopped reading for a while", "killed": "had their client process killed"}
    rows = [[what, str(_count(r, name))] for name, what in meant.items()]
    rows = [[f"requests in {r['seconds']:.0f} s, {r['streams']} at once", f"{r['requests']:,}"], *rows]
    rows.append(["ended as nobody asked for", str(len(r["faults"]))])
    for name, what in (("front", "front end"), ("engine", "engine")):
        rows.append([f"memory of the {what}, last quarter / second", f"{r['memory_growth'][name]:.3f}"])
    rows.append(["blocks held afterwards", "none" if r["idle"] else "some"])
    return table(["", ""], rows)


def _count(r: Result, meant: str) -> int:
    return sum(n for status, n in r["by_status"].items() if status.startswith(f"{meant}:"))


def kill(results: list[Result]) -> str:
    """How requests ended when the engine was killed, and how long until it served again."""
    r = results[-1]
    back = r["seconds_until_it_serves"]
    statuses = {status.removeprefix("ok: "): n for status, n in r["by_status"].items()}
    rows = [["kills", str(r["kills"])]]
    rows += [[f"requests that ended with {status}", f"{n:,}"] for status, n in sorted(statuses.items())]
    rows.append(["ended as nobody asked for", str(len(r["faults"]))])
    span = f"{back[0]:.0f}, {back[len(back) // 2]:.0f}, {back[-1]:.0f}"
    return table(["", ""], [*rows, ["seconds until it served again: least, median, most", span]])
