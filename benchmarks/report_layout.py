"""The form of Markdown tables and of what stands in them, and what traces are called."""

from __future__ import annotations

from collections.abc import Iterable

NAMES = {"alpaca": "Alpaca", "sharegpt": "ShareGPT", "short": "short", "brief": "brief"}


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def spread(values: Iterable[float], form: str) -> str:
    """The least and the most, or the only one; by what is shown of them."""
    found = sorted(values)
    low, high = f"{found[0]:{form}}", f"{found[-1]:{form}}"
    return low if low == high else f"{low} to {high}"
