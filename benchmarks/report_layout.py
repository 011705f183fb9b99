"""The form of a Markdown table, and what traces are called."""

from __future__ import annotations

from collections.abc import Iterable

NAMES = {"alpaca": "Alpaca", "sharegpt": "ShareGPT", "short": "short", "brief": "brief"}


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])
