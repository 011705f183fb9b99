"""Records of benchmarks.serving as Markdown tables."""

from __future__ import annotations

from collections import Counter
from typing import Any

from benchmarks.report_layout import spread, table

Result = dict[str, Any]
LATENCY_PLOT = "serving-latency"


def latency(results: list[Result]) -> str:
    """Percentiles by arrival rate, the two sides one below the other, and the plot of them."""
    ordered = sorted(results, key=lambda r: (load(r), r["rate"], r["side"]))
    head = ["requests of", "arrivals per second", "side", "requests"]
    head += ["first token, ms: p50 (of each run)", "p90", "p99"]
    head += ["between tokens, ms: p50 (of each run)", "p90", "p99", "tokens/s"]
    shown = table(head, map(latency_row, ordered))
    return f"{shown}\n\n![Latency by arrival rate](plots/{LATENCY_PLOT}.svg)"


def load(r: Result) -> str:
    """What the requests of a record are, in words."""
    rows = f"beam {r['width']}" if r["kind"] == "beam" else f"{r['width']} samples"
    return f"{rows} of {r['tokens']} tokens"


def latency_row(r: Result) -> list[str]:
    shown = [load(r), f"{r['rate']:g}", r["side"], str(r["requests"])]
    for name in ("first_token", "between_tokens"):
        middle, *rest = (f"{1e3 * r[name][p]:,.0f}" for p in ("p50", "p90", "p99"))
        if r.get("runs", 1) > 1:
            middle += f" ({spread((1e3 * r[name][p] for p in ('p50_min', 'p50_max')), ',.0f')})"
        shown += [middle, *rest]
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


def hostile(results: list[Result]) -> str:
    """Messages by what is wrong with them and how they ended, summed over the runs."""
    ended = _summed([r["outcomes"] for r in results])
    head = ["requests", "sent", "refused by its field", "refused for its size", "served", "otherwise"]
    rows = (_hostile_row(kind, codes) for kind, codes in sorted(ended.items()))
    requests, steps = (sum(r[name] for r in results) for name in ("requests", "refused_without_a_step"))
    faults, neighbours = sum(len(r["faults"]) for r in results), sum(r["exact_neighbours"] for r in results)
    runs = "one run" if len(results) == 1 else f"{len(results)} runs"
    told = (
        f"{requests:,} requests in {runs}; {steps:,} of them, refused one by one, cost the engine no step; "
        f"{neighbours:,} results of good requests in between were exact; faults: {faults}."
    )
    return f"{table(head, rows)}\n\n{told}"


def _hostile_row(kind: str, codes: dict[str, int]) -> list[str]:
    known = ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "OK")
    rest = sum(n for code, n in codes.items() if code not in known)
    return [kind, *(f"{n:,}" for n in (sum(codes.values()), *(codes.get(code, 0) for code in known), rest))]


def hostile_sessions(results: list[Result]) -> str:
    """Commands of tree sessions likewise."""
    sessions = [r["sessions"] for r in results]
    ended = _summed([s["outcomes"] for s in sessions])
    head = ["commands and calls", "sent", "refused", "accepted or ended well"]
    rows = []
    for kind, codes in sorted(ended.items()):
        good = sum(codes.get(code, 0) for code in ("OK", "accepted"))
        sent = sum(codes.values())
        rows.append([kind, f"{sent:,}", f"{sent - good:,}", f"{good:,}"])
    count, resumed, exact = (sum(s[n] for s in sessions) for n in ("count", "resumed", "exact_neighbours"))
    told = (
        f"{count:,} sessions, {resumed} resumed with their secret; all {exact} good trees searched in between"
    )
    return f"{table(head, rows)}\n\n{told} were exactly as they should be."


def _summed(outcomes: list[dict[str, dict[str, int]]]) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for one in outcomes:
        for kind, codes in one.items():
            found.setdefault(kind, Counter()).update(codes)
    return found
