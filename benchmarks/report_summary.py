"""What the records say in short: claim, number, command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from benchmarks import report_catalogue, report_latency, report_throughput
from benchmarks.report_layout import spread, table
from benchmarks.report_simulate import capacity

Result = dict[str, Any]
Say = Callable[[list[Result]], str]


def parity(results: list[Result]) -> str:
    """A row for each part: equal hypotheses and the largest difference of scores."""
    rows = []
    for name in ("widths 1, 2, 4, 8 and 16, 32 new tokens", "stopping rules and length penalties, width 4"):
        # The prompts of the second part have short answers.
        own = [r for r in results if r["case"].startswith("short-") == name.startswith("stopping")]
        if own:
            equal, error = sum(r["equal"] for r in own), max(r["score_error"] for r in own)
            lengths = [r["prompt_tokens"] for r in own]
            prompts = f"{min(lengths):,} to {max(lengths):,} tokens"
            rows.append([name, prompts, str(len(own)), str(equal), f"{error:.1e}"])
    return table(["part", "prompts", "cases", "equal", "largest score error"], rows)


def summary(results: Mapping[str, list[Result]]) -> str:
    """A row for each claim that has records."""
    rows = [
        [claim, number, f"`python -m benchmarks.{command}`"]
        for claim, benchmark, say, command in CLAIMS
        if results.get(benchmark) and (number := say(results[benchmark]))
    ]
    return table(["claim", "number", "command"], rows)


def said_equal(results: list[Result]) -> str:
    equal = sum(r["equal"] for r in results)
    return f"{equal} of {len(results)} cases, scores within {max(r['score_error'] for r in results):.1e}"


def said_throughput(results: list[Result]) -> str:
    """By dtype; of the usual runs."""
    found: dict[str, dict[str, list[float]]] = {}
    for r in results:
        if "ratio" in r and report_throughput.usual(r):
            found.setdefault(r["dtype"], {}).setdefault(report_throughput.name(r), []).append(r["ratio"])
    return _ranges(found)


def said_alone(results: list[Result]) -> str:
    """By dtype, over the peers; of the usual runs."""
    found: dict[str, dict[str, list[float]]] = {}
    for r in filter(report_throughput.usual, results):
        for measure in report_latency.measured(r):
            what = report_latency.short(r, measure)
            found.setdefault(r["dtype"], {}).setdefault(what, []).append(r[measure]["ratio"])
    return _ranges(found)


def _ranges(found: Mapping[str, Mapping[str, list[float]]]) -> str:
    """Of ratios by dtype and name."""
    told = []
    for dtype, by_name in sorted(found.items(), reverse=True):
        ranges = ", ".join(f"{name} {spread(ratios, '.1f')}x" for name, ratios in by_name.items())
        told.append(f"{dtype}: {ranges}")
    return "; ".join(told)


def said_saving(kind: str) -> Say:
    def say(results: list[Result]) -> str:
        parts = []
        for trace, name in (("alpaca", "Alpaca"), ("sharegpt", "ShareGPT")):
            own = [r for r in results if (r["trace"], r["kind"]) == (trace, kind)]
            if own:
                widths = spread((r["width"] for r in own), "d")
                parts.append(f"{name} {spread((r['saving'] for r in own), '.0%')} (width {widths})")
        return "; ".join(parts)

    return say


def said_cache(results: list[Result]) -> str:
    ratios = (r["transformers_cache_bytes"] / r["ours_peak_bytes"] for r in results)
    return f"{spread(ratios, '.1f')}x (width {spread((r['width'] for r in results), 'd')})"


def said_exponents(value: str) -> Say:
    def say(results: list[Result]) -> str:
        beams = [r for r in results if r["kind"] == "beam"] or results
        return ", ".join(f"{r['axis']} {r['exponents'][value]:.2f}" for r in beams)

    return say


def said_soak(results: list[Result]) -> str:
    r = results[-1]
    grown = spread(r["memory_growth"].values(), ".3f")
    return f"{r['requests']:,} requests, {len(r['faults'])} faults, memory {grown} of what it was"


def said_kill(results: list[Result]) -> str:
    r = results[-1]
    return f"{r['kills']} kills, {len(r['faults'])} requests that ended otherwise than they should"


def said_overhead(results: list[Result]) -> str:
    return "; ".join(f"{r['workload']}: {r['ratio']:.2f}" for r in results)


def said_latency(results: list[Result]) -> str:
    """At the lowest rate, where no queue stands."""
    own = [r for r in results if r["side"] == "service"] or results
    r = min(own, key=lambda r: float(r["rate"]))
    first, between = (
        " and ".join(f"{1e3 * r[name][p]:,.0f} ms ({p})" for p in ("p50", "p99"))
        for name in ("first_token", "between_tokens")
    )
    return f"{r['rate']:g} arrivals a second: first token {first}, between tokens {between}"


def said_score(results: list[Result]) -> str:
    forward, cached = (
        spread((r["cpu_ratio"][name] for r in results), ".1f") for name in ("forward", "cached")
    )
    return f"{forward}x; {cached}x where it keeps the prompt's cache"


def said_profile(results: list[Result]) -> str:
    """Of the workload with the most beams."""
    parts = ("schedule", "plan", "commit", "detokenise")
    told = [
        f"{r['dtype']} {sum(r['ms'].get(part, 0.0) for part in parts):.1f} of {sum(r['ms'].values()):.0f} ms"
        for r in results
        if r["workload"] == "beam4x16"
    ]
    return "; ".join(told)


def said_prefill(results: list[Result]) -> str:
    whole = (r for r in results if r["prompt"] == 1000)
    return "; ".join(f"{r['dtype']} {spread(r['speed'].values(), '.2f')}x" for r in whole)


def said_int8(results: list[Result]) -> str:
    r = results[-1]
    worse = [r[name][1] / r[name][0] - 1 for name in ("documentation", "books")]
    ratios = spread((ratio for *_, ratio in r["ms"].values()), ".1f")
    return f"a step {ratios}x as fast, perplexity {spread(worse, '.0%')} higher"


def said_catalogue(results: list[Result]) -> str:
    """Of the seeds the median."""
    wide = report_catalogue.wide(results)
    told = []
    for width in sorted({int(r["width"]) for r in wide}):
        own = [r["step_ms"] for r in wide if r["width"] == width]
        spent = sum(median(ms[part] for ms in own) for part in report_catalogue.PARTS)
        share = median(ms["share"] for ms in own)
        told.append(f"width {width:,}: {spent / 1e3:.1f} s, {share:.1%} not the model's")
    return "; ".join(told)


def said_tree(results: list[Result]) -> str:
    saved = f"{results[-1]['saved']:.1%} of the blocks saved"
    return "; ".join([saved, *(f"{r['side']}: {r['ratio']:.1f}x the tree's time" for r in results)])


def said_hostile(results: list[Result]) -> str:
    requests, faults = sum(r["requests"] for r in results), sum(len(r["faults"]) for r in results)
    commands = sum(sum(codes.values()) for r in results for codes in r["sessions"]["outcomes"].values())
    return f"{requests:,} requests, {commands:,} commands of tree sessions, {faults} faults"


GROWTH_MODEL = "growth --model smollm2-135m-instruct"
CLAIMS: tuple[tuple[str, str, Say, str], ...] = (
    ("beams equal transformers' token for token", "parity", said_equal, "parity"),
    ("throughput over that of others, 1 is equal", "throughput", said_throughput, "throughput"),
    ("time of one request alone, others' over ours", "latency", said_alone, "latency"),
    ("KV blocks that sharing saves, beams", "memory", said_saving("beam"), "memory --kind beam"),
    ("KV blocks that sharing saves, samples", "memory", said_saving("sample"), "memory --kind sample"),
    (
        "transformers' cache over ours",
        "memory_transformers",
        said_cache,
        "memory --part transformers",
    ),
    ("growth of the control plane's time, exponents", "growth", said_exponents("control_us"), "growth"),
    ("growth of a step's time, exponents", "growth_model", said_exponents("step_ms"), GROWTH_MODEL),
    ("latency of the service", "serving_latency", said_latency, "serving latency"),
    ("throughput of the service over in process", "serving_overhead", said_overhead, "serving overhead"),
    ("requests served, and over those without sharing, simulated", "simulate", capacity, "simulate"),
    ("a server under faults of every kind", "serving_soak", said_soak, "serving soak"),
    ("a server whose engine is killed", "serving_kill", said_kill, "serving kill"),
    ("messages that nobody should send", "hostile", said_hostile, "hostile --spawn"),
    ("scoring continuations, CPU time of transformers / ours", "score", said_score, "score"),
    ("everything but the model, of a step of 16 beams of 4", "step_profile", said_profile, "step_profile"),
    (
        "reading a prompt of 1,000 tokens, our speed / that of transformers' forward",
        "cpu_prefill",
        said_prefill,
        "cpu_limits prefill",
    ),
    ("8-bit weights", "int8", said_int8, "int8"),
    ("a step of a wide beam over a million items", "catalogue", said_catalogue, "catalogue wide"),
    ("a search of 64 leaves as a tree, and without one", "tree", said_tree, "tree"),
)
"""What is claimed, the benchmark whose records say so, how it is said, and the command."""
