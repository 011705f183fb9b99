"""Tables of catalogues, cell by cell."""

from __future__ import annotations

from typing import Any

from benchmarks import report_catalogue
from tests.benchmarks.test_report_tables import cells

Result = dict[str, Any]


def wide(width: int, seconds: float, forward: float = 1851.6, **more: Any) -> Result:
    ms = {
        "forward": forward,
        "logits": 170.5,
        "select": 17.4,
        "blocks": 7.4,
        "control": 1.38,
        "share": 0.0141,
    }
    found = {"part": "wide", "width": width, "step_ms": ms, "goal_share": 0.15, "complete": width}
    return found | {"block_size": 4, "seconds": seconds} | more


def test_a_catalogue_is_told_by_width_over_its_seeds() -> None:
    results = [wide(1024, 19.1), wide(512, 13.67), wide(512, 14.2, 1800.0), {"part": "trie", "us": 58.6}]
    results.append(wide(512, 99.0, block_size=16))
    table = report_catalogue.catalogue(results)
    assert "not the model's (goal 15%)" in table
    first, second = cells(table)
    assert first == ["512", "2", "1,826", "170", "17", "7", "1.4", "1.4%", "13.7 to 14.2", "512"]
    assert second[:2] == ["1,024", "1"]


def test_the_trie_is_told_by_depth() -> None:
    one = {"part": "trie", "rows": 512, "build_seconds": 0.58, "us_by_depth": [51.1, 59.2], "goal_us": 300.0}
    table = report_catalogue.trie([one, one | {"us_by_depth": [50.2, 59.4]}, wide(4, 1.0)])
    assert cells(table) == [["512", "2", "0.6", "50 to 51", "59", "300"]]
    assert report_catalogue.trie([wide(4, 1.0)]) == "No record yet."


def test_the_peer_s_line_is_told_where_it_ran() -> None:
    peer = {"width": 4, "seconds": 19.2, "peak_bytes": 842e6, "ratio": 2.71, "same_items": 1.0}
    line = {"at_width_seconds": 2516.0, "at_width_ratio": 184.0, "naive_bytes": 47.3e9, "block_bytes": 187e6}
    table = report_catalogue.against([wide(512, 13.7, transformers=[peer], **line), wide(1024, 19.1)])
    assert table.splitlines()[2] == "| 4 | 19 | 842 | 2.7x | 100% |"
    assert "width 512 would take 42 minutes, 184x ours, and its copies of the cache 47 GB" in table
    assert "the blocks of ours, of 4 tokens each, are 187 MB" in table


def test_requests_at_once_are_beside_one_alone() -> None:
    at = {"1": {"seconds": 14.2, "per_second": 0.0705, "most_rows": 512}}
    at["4"] = {"seconds": 48.1, "per_second": 0.0832, "most_rows": 2048}
    result = {"part": "concurrent", "at": [1, 4], "max_step_tokens": 10_000, **at}
    assert cells(report_catalogue.concurrent([result]))[1] == ["10,000", "4", "48", "0.083", "1.18x", "2,048"]
