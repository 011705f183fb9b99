"""Records of the engine's own work, of scoring and of 8-bit weights as Markdown tables."""

from __future__ import annotations

from typing import Any

from benchmarks.report_layout import table

Result = dict[str, Any]
WORK_PARTS = ("schedule", "work list", "commit", "beams", "frame", "text")
OPTION_PARTS = ("schedule", "selection", "commit", "text")
STREAMS = ("committed alone", "every 8 steps, best", "every step, best", "every step, all")
STEP_PARTS = {
    "products of the layers": ("qkv", "attention out", "gate+up", "down", "widen", "modules"),
    "head": ("lm_head",),
    "attention": ("attention",),
    "norms": ("norms",),
    "rotation, KV write": ("rotate+write",),
    "gate": ("gate",),
    "selection": ("selection",),
    "block copies": ("blocks",),
    "schedule, plan, commit, text": ("schedule", "plan", "commit", "detokenise"),
    "rest, clock included": ("rest", "embedding"),
}
"""Columns of a step's time, and what benchmarks.step_profile calls the parts of each."""


def score(results: list[Result]) -> str:
    """transformers' ways over ours."""
    names = {
        "forward": "one batched forward pass over prompt and continuation of every row",
        "cached": "the prompt once, its cache repeated for the rows, one pass over the continuations",
    }
    head = ["dtype", "transformers", "CPU time / ours", "wall time / ours", "smallest to largest", "rounds"]
    rows = (
        [
            r["dtype"],
            told,
            f"{r['cpu_ratio'][name]:.1f}x",
            f"{r['ratio'][name]:.1f}x",
            "{:.1f} to {:.1f}".format(*r["ratio_range"][name]),
            str(r["runs"]),
        ]
        for r in results
        for name, told in names.items()
    )
    gap = max(r["largest_gap"] for r in results)
    return f"{table(head, rows)}\n\nLog-probabilities differ from transformers' by at most {gap:.1e}."


def engine_work(results: list[Result]) -> str:
    """Microseconds of a step's parts."""
    return table(["", *WORK_PARTS, "all", "a group"], map(engine_work_row, results))


def engine_work_row(r: Result) -> list[str]:
    spent = [float(r[part]) for part in WORK_PARTS]
    return [r["workload"], *(f"{us:,.0f}" for us in (*spent, sum(spent), sum(spent) / r["groups"]))]


def engine_options(results: list[Result]) -> str:
    """Microseconds a row of a step's parts with each option: of the most rows, and all of other numbers."""
    counts = sorted({int(r["rows"]) for r in results}, reverse=True)
    by_name: dict[str, dict[int, Result]] = {}
    for r in results:
        by_name.setdefault(r["option"], {})[r["rows"]] = r
    head = ["option", *OPTION_PARTS, *(f"all, {count} rows" for count in counts)]
    return table(head, ([name, *engine_options_row(own, counts)] for name, own in by_name.items()))


def engine_options_row(own: dict[int, Result], counts: list[int]) -> list[str]:
    """own: an option's results by rows."""
    most = own.get(counts[0])
    parts = ["" if most is None else f"{most[part]:,.1f}" for part in OPTION_PARTS]
    sums = (sum(own[c][part] for part in OPTION_PARTS) if c in own else None for c in counts)
    return [*parts, *("" if us is None else f"{us:,.0f}" for us in sums)]


def step_profile(results: list[Result]) -> str:
    """Milliseconds of a step's parts."""
    head = ["workload", "dtype", *STEP_PARTS, "sum"]
    shown = sorted(results, key=lambda r: str(r["dtype"]), reverse=True)
    return table(head, map(step_profile_row, shown))


def step_profile_row(r: Result) -> list[str]:
    parts = [sum(r["ms"].get(part, 0.0) for part in own) for own in STEP_PARTS.values()]
    spent = [*parts, sum(r["ms"].values())]
    return [r["workload"], r["dtype"], *(f"{ms:,.0f}" if ms >= 10 else f"{ms:.1f}" for ms in spent)]


def beam_stream(results: list[Result]) -> str:
    """What streaming adds, over a step that nobody hears."""
    head = ["width", "a step that nobody hears, us", "committed tokens alone", "the best beam every 8 steps"]
    head += ["the best every step", "all every step", "text of the best, of all"]
    rows = (
        [
            f"{r['width']:,}",
            f"{r['quiet_median_us']:.0f}",
            *(f"{r[way]['mean']:.2f}" for way in STREAMS),
            ", ".join(f"{r[way]['text']:.2g}" for way in STREAMS[2:]),
        ]
        for r in sorted(results, key=lambda r: int(r["width"]))
    )
    return table(head, rows)


def int8(results: list[Result]) -> str:
    """Time of a step, then quality."""
    r = results[-1]
    times = table(
        ["rows", "native, ms per step", "int8", "ratio"],
        (
            [rows, f"{one:.0f}", f"{other:.0f}", f"{ratio:.1f}"]
            for rows, (one, other, ratio) in r["ms"].items()
        ),
    )
    forced, free = r["greedy"]
    tokens = f"({r['prompts']} prompts, {r['tokens']} tokens)"
    quality = [
        [f"perplexity of {told}", *(f"{value:.1f}" for value in r[name][:2])]
        for name, told in (
            ("documentation", "this project's documentation"),
            ("books", "openings of books"),
        )
    ]
    quality.append([f"greedy tokens equal, given the same tokens before {tokens}", "", f"{forced:.1%}"])
    quality.append(["until the first that differs, decoding freely", "", f"{free:.1%} of {r['tokens']}"])
    return f"{times}\n\n{table(['', 'native', 'int8'], quality)}"
