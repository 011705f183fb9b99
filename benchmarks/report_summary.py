"""What the records say in short: claim, number, command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any

from benchmarks import report_catalogue, report_latency, report_throughput
from benchmarks.report_layout import spread, table
from benchmarks.report_simulate import capacity

Result = dict[str, Any]
Say = Callable[[list[Result]], str | dict[str, str]]
"""One number, or several by what each is of."""


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
    """A row for each number of each claim that has records."""
    rows = [
        [claim, what, number, f"`python -m benchmarks.{command}`"]
        for claim, benchmark, say, command in CLAIMS
        if results.get(benchmark)
        for what, number in _parts(say(results[benchmark]))
    ]
    return table(["claim", "of", "number", "command"], rows)


def _parts(said: str | dict[str, str]) -> Iterable[tuple[str, str]]:
    """What each number is of, and the number; nothing where nothing was said."""
    if isinstance(said, dict):
        return said.items()
    return [("", said)] if said else []


def said_equal(results: list[Result]) -> str:
    equal = sum(r["equal"] for r in results)
    return f"{equal} of {len(results)} cases, scores within {max(r['score_error'] for r in results):.1e}"


def said_throughput(results: list[Result]) -> dict[str, str]:
    """By dtype and workload, over each peer; of the usual runs."""
    found: dict[tuple[str, str], list[str]] = {}
    for r in sorted(results, key=lambda r: report_throughput.ORDER.index(r["workload"])):
        if "ratio" in r and report_throughput.usual(r):
            key = r["dtype"], report_throughput.described(r["workload"])
            found.setdefault(key, []).append(f"{report_throughput.name(r)} {r['ratio']:.1f}x")
    return _of_each(found)


def said_alone(results: list[Result]) -> dict[str, str]:
    """By dtype, request and time, over each peer; of the usual runs."""
    found: dict[tuple[str, str], list[str]] = {}
    for r in filter(report_throughput.usual, results):
        for measure in report_latency.measured(r):
            key = r["dtype"], report_latency.short(r, measure)
            found.setdefault(key, []).append(f"{report_throughput.name(r)} {r[measure]['ratio']:.1f}x")
    return _of_each(found)


def _of_each(found: Mapping[tuple[str, str], list[str]]) -> dict[str, str]:
    """Of what is found by dtype and name: float32 first."""
    ordered = sorted(found.items(), key=lambda item: item[0][0], reverse=True)
    return {f"{name}, {dtype}": ", ".join(ratios) for (dtype, name), ratios in ordered}


def said_saving(kind: str) -> Say:
    def say(results: list[Result]) -> dict[str, str]:
        parts = {}
        for trace, name in (("alpaca", "Alpaca"), ("sharegpt", "ShareGPT")):
            own = [r for r in results if (r["trace"], r["kind"]) == (trace, kind)]
            if own:
                widths = spread((r["width"] for r in own), "d")
                parts[name] = f"{spread((r['saving'] for r in own), '.0%')} (width {widths})"
        return parts

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


def said_overhead(results: list[Result]) -> dict[str, str]:
    return {r["workload"]: f"{r['ratio']:.2f}" for r in results}


def said_latency(results: list[Result]) -> str:
    """At the lowest rate, where no queue stands."""
    own = [r for r in results if r["side"] == "service"] or results
    r = min(own, key=lambda r: float(r["rate"]))
    first, between = (
        " and ".join(f"{1e3 * r[name][p]:,.0f} ms ({p})" for p in ("p50", "p99"))
        for name in ("first_token", "between_tokens")
    )
    return f"{r['rate']:g} arrivals per second: first token {first}, between tokens {between}"


def said_score(results: list[Result]) -> str:
    forward, cached = (
        spread((r["cpu_ratio"][name] for r in results), ".1f") for name in ("forward", "cached")
    )
    return f"{forward}x; {cached}x where it keeps the prompt's cache"


def said_profile(results: list[Result]) -> dict[str, str]:
    """Of the workload with the most beams."""
    parts = ("schedule", "plan", "commit", "detokenise")
    return {
        r["dtype"]: f"{sum(r['ms'].get(part, 0.0) for part in parts):.1f} of {sum(r['ms'].values()):.0f} ms"
        for r in results
        if r["workload"] == "beam4x16"
    }


def said_prefill(results: list[Result]) -> dict[str, str]:
    whole = (r for r in results if r["prompt"] == 1000)
    return {r["dtype"]: f"{spread(r['speed'].values(), '.2f')}x" for r in whole}


def said_int8(results: list[Result]) -> str:
    r = results[-1]
    worse = [r[name][1] / r[name][0] - 1 for name in ("documentation", "books")]
    ratios = spread((ratio for *_, ratio in r["ms"].values()), ".1f")
    return f"a step {ratios}x as fast, perplexity {spread(worse, '.0%')} higher"


def said_catalogue(results: list[Result]) -> dict[str, str]:
    """Of the seeds the median."""
    wide = report_catalogue.wide(results)
    told = {}
    for width in sorted({int(r["width"]) for r in wide}):
        own = [r["step_ms"] for r in wide if r["width"] == width]
        spent = sum(median(ms[part] for ms in own) for part in report_catalogue.PARTS)
        share = median(ms["share"] for ms in own)
        told[f"width {width:,}"] = f"{spent / 1e3:.1f} s, {share:.1%} not the model's"
    return told


def said_tree(results: list[Result]) -> str:
    saved = f"{results[-1]['saved']:.1%} of the blocks saved"
    return "; ".join([saved, *(f"{r['side']}: {r['ratio']:.1f}x the tree's time" for r in results)])


def said_hostile(results: list[Result]) -> str:
    requests, faults = sum(r["requests"] for r in results), sum(len(r["faults"]) for r in results)
    commands = sum(sum(codes.values()) for r in results for codes in r["sessions"]["outcomes"].values())
    return f"{requests:,} requests, {commands:,} commands of tree sessions, {faults} faults"


GROWTH_MODEL = "growth --model smollm2-135m-instruct"
CLAIMS: tuple[tuple[str, str, Say, str], ...] = (
    ("beams equal to transformers', token for token", "parity", said_equal, "parity"),
    ("throughput over the peer's", "throughput", said_throughput, "throughput"),
    ("time of a single request, the peer's over ours", "latency", said_alone, "latency"),
    ("KV blocks saved by sharing, beams", "memory", said_saving("beam"), "memory --kind beam"),
    ("KV blocks saved by sharing, samples", "memory", said_saving("sample"), "memory --kind sample"),
    (
        "memory of the KV cache, transformers' over ours",
        "memory_transformers",
        said_cache,
        "memory --part transformers",
    ),
    ("growth of the control plane's time (exponents)", "growth", said_exponents("control_us"), "growth"),
    ("growth of a step's time (exponents)", "growth_model", said_exponents("step_ms"), GROWTH_MODEL),
    ("latency of the service", "serving_latency", said_latency, "serving latency"),
    ("throughput of the service over in-process", "serving_overhead", said_overhead, "serving overhead"),
    ("requests served, and ratio to no sharing, simulated", "simulate", capacity, "simulate"),
    ("server under faults of every kind", "serving_soak", said_soak, "serving soak"),
    ("server whose engine is killed", "serving_kill", said_kill, "serving kill"),
    ("server under hostile messages", "hostile", said_hostile, "hostile --spawn"),
    ("CPU time of scoring continuations, transformers' over ours", "score", said_score, "score"),
    ("all but the model in a step of 16 beams of 4", "step_profile", said_profile, "step_profile"),
    (
        "speed of reading a prompt of 1,000 tokens, over transformers' forward",
        "cpu_prefill",
        said_prefill,
        "cpu_limits prefill",
    ),
    ("8-bit weights", "int8", said_int8, "int8"),
    ("step of a wide beam over a million items", "catalogue", said_catalogue, "catalogue wide"),
    ("search of 64 leaves, as a tree and without one", "tree", said_tree, "tree"),
)
"""What is claimed, the benchmark whose records say so, how it is said, and the command."""
