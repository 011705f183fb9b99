"""Records of benchmarks.cpu_limits, cpu_attention and layer_calls as Markdown tables."""

from __future__ import annotations

from typing import Any

from benchmarks.report_layout import table

Result = dict[str, Any]


def memory(results: list[Result]) -> str:
    r = results[-1]
    rows = [
        ["the process when its engine is ready", f"{r['ready_mb']:,.0f}"],
        ["KV blocks while 128 rows decode", f"{r['kv_mb']:,.0f}"],
        ["beyond both, at its highest", f"{r['beyond_mb']:,.0f}"],
    ]
    return table(["memory", "MB"], rows)


def stall(results: list[Result]) -> str:
    """A chunk of a prompt beside running rows."""
    head = ["rows alone, ms", "chunk alone, ms", "both in one step, ms", "over both apart"]
    rows = (
        [f"{r['decode_ms']:,.0f}", _span(r["chunk_ms"]), _span(r["between_tokens_ms"]), _over(r)]
        for r in results
    )
    return table(head, rows)


def layer_calls(results: list[Result]) -> str:
    """Steps by their tape, and pass by pass."""
    head = ["workload", "dtype", "passes called by Python, ms", "one compiled call, ms", "ratio"]
    shown = sorted(results, key=lambda r: str(r["dtype"]), reverse=True)
    return table(head, map(_layer_calls_row, shown))


def _layer_calls_row(r: Result) -> list[str]:
    python, tape = r["ms"]["python"], r["ms"]["tape"]
    return [r["workload"], r["dtype"], f"{python:.0f}", f"{tape:.0f}", f"{tape / python:.2f}"]


def _span(values: list[float], form: str = ",.0f") -> str:
    return f"{min(values):{form}} to {max(values):{form}}"


def _over(r: Result) -> str:
    return _span(r["over_both"], ".2f")


def waiting(results: list[Result]) -> str:
    r = results[-1]
    rows = [[policy, *(f"{ms:.0f}" for ms in r[policy])] for policy in ("passive", "active")]
    rows.append(["active / passive", *(f"{ratio:.2f}" for ratio in r["active_over_passive"])])
    return table(["OMP_WAIT_POLICY", "wall, ms per step", "CPU, ms per step"], rows)


def prefill(results: list[Result]) -> str:
    """A prompt beside transformers' forward; where we are slower it is bold."""
    head = ["dtype", "tokens", "one step, ms", "its passes called by Python, ms", "chunks of 512, ms"]
    head += ["transformers' forward, ms", "our speed / its"]
    return table(head, map(prefill_row, sorted(results, key=lambda r: (str(r["dtype"]), r["prompt"]))))


def prefill_row(r: Result) -> list[str]:
    names = ("one step", "pass by pass", "chunks of 512", "forward")
    spent = [f"{r[name]:,.0f}" if name in r else "" for name in names]
    speeds = ", ".join(f"{x:.2f}x" if x >= 1 else f"**{x:.2f}x**" for x in r["speed"].values())
    return [r["dtype"], f"{r['prompt']:,}", *spent, speeds]


def attention(results: list[Result]) -> str:
    """Ours beside torch's over the same plan."""
    ways = list(results[0]["ms"])
    rows = ([r["case"], r["dtype"], *(f"{r['ms'][way]:,.0f}" for way in ways)] for r in results)
    return table(["workload", "dtype", *(f"{way}, ms per step" for way in ways)], rows)
