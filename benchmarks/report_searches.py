"""Records of benchmarks.tree and benchmarks.grammars as Markdown tables."""

from __future__ import annotations

from typing import Any

from benchmarks.report_layout import table

Result = dict[str, Any]
SIDES = {
    "requests-on": "a request a node, cache on",
    "requests-off": "a request a node, cache off",
    "samples-on": "a request a child, cache on",
    "samples-off": "a request a child, cache off",
    "transformers": "transformers, paths as prompts",
    "transformers-kept": "transformers, cache kept by hand",
}
CASES = {
    "schema": "an object of four properties",
    "any JSON": "any JSON object",
    "date": "a date as a regex",
    "words": "sentences as a regex with counted repetitions",
}
ROWS = "16 rows"


def tree(results: list[Result]) -> str:
    """Each side over the tree."""
    head = ["side", "time / the tree's", "smallest to largest", "pairs", "its seconds", "the tree's"]
    head += ["most KV blocks", "the tree's", "tokens computed", "the tree's"]
    rows = (tree_row(r) for r in sorted(results, key=lambda r: list(SIDES).index(r["side"])))
    r = results[-1]
    unshared = f"{r['leaves']} leaves; independent samples would hold {max(r['unshared_blocks']):,} blocks"
    return f"{table(head, rows)}\n\n{unshared}, of which {r['saved']:.1%} are saved."


def tree_row(r: Result) -> list[str]:
    blocks = [f"{max(b):,}" if b else "" for b in (r["side_blocks"], r["tree_blocks"])]
    computed = ["" if c is None else f"{c:,}" for c in (r["side_computed"], r["tree_computed"])]
    spread = "{:.2f} to {:.2f}".format(*r["ratio_range"]) if r["pairs"] > 1 else "one pair"
    seconds = [f"{r[name]:.0f}" for name in ("side_seconds", "tree_seconds")]
    return [SIDES[r["side"]], f"{r['ratio']:.2f}x", spread, str(r["pairs"]), *seconds, *blocks, *computed]


def grammars(results: list[Result]) -> str:
    """Libraries on equal terms, a case after the other."""
    head = ["", "library", "compile, ms", "fork", "take a token", "mask", "mean", "worst"]
    names = ("fork_us", "take_us", "mask_us", "mask_mean_us", "mask_worst_us")
    rows = (
        [
            CASES[r["case"]],
            r["library"],
            _short(r["compile_ms"]),
            *(_short(r[ROWS][name]) for name in names),
        ]
        for case in CASES
        for r in results
        if r["case"] == case and ROWS in r
    )
    return table(head, rows)


def grammars_beside(results: list[Result]) -> str:
    """What whole requests wait for masks."""
    head = ["", "rows", "step, ms", "masks, ms per step", "share of the time that selections wait"]
    rows = (
        [
            CASES[r["case"]],
            str(r["rows"]),
            _short(r["ms_a_step"]),
            f"{r['masks_ms_a_step']:.2g}",
            f"{r['waited_share']:.1%}",
        ]
        for r in results
    )
    return table(head, rows)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
