"""Results for people (rich tables) and for programs (JSON objects)."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forkdecode.results import Candidate, DecodeResult, Usage

_EXHAUSTED = "No other candidates are legal: fewer than requested."
NARROW = 60
"""Columns of a terminal; fewer leave a table no room for texts."""


def result_record(result: DecodeResult) -> dict[str, Any]:
    """A result as a JSON object. Log-probabilities of candidates only where they were asked for, items only
    where there are any, "exhausted" only where there are fewer candidates than were asked for."""
    return {
        "request_id": result.request_id,
        "strategy": type(result.strategy).__name__,
        "seed": result.seed,
        "prompt_tokens": result.usage.prompt_tokens,
        "candidates": [_candidate_record(candidate) for candidate in result.candidates],
        **({"exhausted": True} if result.exhausted else {}),
        "usage": dataclasses.asdict(result.usage) | {"saved": result.usage.saved},
    }


def _candidate_record(candidate: Candidate) -> dict[str, Any]:
    record = dataclasses.asdict(candidate)
    for name in ("logprobs", "item"):
        if record[name] is None:
            del record[name]
    return record


def candidates_shown(result: DecodeResult, width: int, *, longest: int | None = None) -> RenderableType:
    """The candidates in order, with scores, for so many columns: a table, or lines where they are few.
    longest: characters of text shown at most."""
    return _table(result, longest) if width >= NARROW else _lines(result, longest)


def _table(result: DecodeResult, longest: int | None) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim", show_edge=False)
    table.add_column("#", justify="right")
    table.add_column("score", justify="right")
    table.add_column("log-prob", justify="right")
    table.add_column("tokens", justify="right")
    table.add_column("end")
    if result.exhausted:
        table.caption = _EXHAUSTED
    items = any(candidate.item is not None for candidate in result.candidates)
    if items:
        table.add_column("item")
    table.add_column("text", ratio=1)
    for rank, candidate in enumerate(result.candidates, 1):
        table.add_row(
            str(rank),
            f"{candidate.score:.3f}",
            f"{candidate.cumulative_logprob:.2f}",
            str(len(candidate.token_ids)),
            candidate.finish_reason,
            *((Text(_line(candidate.item or "", longest)),) if items else ()),
            Text(_line(candidate.text, longest)),
        )
    return table


def _lines(result: DecodeResult, longest: int | None) -> Group:
    lines = []
    for rank, one in enumerate(result.candidates, 1):
        facts = [f"score {one.score:.3f}", f"log-prob {one.cumulative_logprob:.2f}"]
        facts += [f"{len(one.token_ids)} tokens", one.finish_reason]
        facts += [] if one.item is None else [f"item {_line(one.item, longest)}"]
        lines += [Text(f"{rank}: {', '.join(facts)}", style="dim"), Text(_line(one.text, longest))]
    return Group(*lines, *([Text(_EXHAUSTED)] if result.exhausted else []))


def _line(text: str, longest: int | None) -> str:
    line = " ".join(text.split())
    return line if longest is None or len(line) <= longest else line[: longest - 1] + "…"


def usage_lines(usage: Usage) -> str:
    """A request's usage in two lines."""
    return (
        f"{usage.prompt_tokens} prompt tokens ({usage.cached_tokens} cached), "
        f"{usage.generated_tokens} generated; first token {usage.time_to_first_token * 1e3:.0f} ms, "
        f"then {usage.time_per_token * 1e3:.1f} ms per step, "
        f"{usage.total_time:.2f} s in total\n"
        f"KV blocks at peak: {usage.peak_unshared_blocks} without sharing, {usage.peak_unique_blocks} with; "
        f"{usage.saved:.1%} saved over time; {usage.copies} copy-on-write copies; "
        f"{usage.preemptions} preemptions"
    )
