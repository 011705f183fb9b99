"""Tables of hostile requests, summed over the runs."""

from __future__ import annotations

from typing import Any

from benchmarks import report_serving
from tests.benchmarks.test_report_tables import cells

Result = dict[str, Any]


def attacked(**changes: Any) -> Result:
    sessions = {
        "count": 2, "resumed": 1, "exact_neighbours": 3,
        "outcomes": {"plain": {"accepted": 5, "OK": 1, "INVALID_ARGUMENT": 4}},
    }  # fmt: skip
    outcomes = {
        "huge": {"RESOURCE_EXHAUSTED": 7},
        "garbage": {"INVALID_ARGUMENT": 2, "OK": 1, "INTERNAL": 1},
    }
    found = {
        "requests": 11,
        "refused_without_a_step": 4,
        "exact_neighbours": 2,
        "faults": [],
        "outcomes": outcomes,
    }
    return {**found, "sessions": sessions, **changes}


def test_messages_are_told_by_how_they_ended() -> None:
    table = report_serving.hostile([attacked(), attacked(faults=["x"], requests=1000)])
    assert cells(table)[:2] == [["garbage", "8", "4", "0", "2", "2"], ["huge", "14", "0", "14", "0", "0"]]
    assert table.endswith(
        "1,011 requests in 2 runs; 8 of them, refused one by one, cost the engine no step; "
        "4 results of good requests in between were exact; faults: 1."
    )
    assert "11 requests in one run" in report_serving.hostile([attacked()])


def test_commands_of_sessions_are_told_likewise() -> None:
    table = report_serving.hostile_sessions([attacked(), attacked()])
    assert cells(table) == [["plain", "20", "8", "12"]]
    assert "4 sessions, 2 resumed with their secret; all 6 good trees" in table
