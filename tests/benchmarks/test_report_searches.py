"""Tables of tree searches and grammars, cell by cell."""

from __future__ import annotations

from typing import Any

from benchmarks import grammars, report_searches, tree
from tests.benchmarks.test_report_tables import cells


def searched(side: str, pairs: int, **changes: Any) -> dict[str, Any]:
    return {
        "side": side, "pairs": pairs, "ratio": 1.4, "ratio_range": [1.15, 1.47], "tree_seconds": 16.6,
        "side_seconds": 20.2, "tree_blocks": [71, 263], "side_blocks": [70, 1168], "tree_computed": 3256,
        "side_computed": 3508, "leaves": 64, "saved": 0.9387, "unshared_blocks": [256, 4288],
    } | changes  # fmt: skip


def test_a_search_is_told_by_side() -> None:
    without = searched("transformers", 1, side_blocks=[], side_computed=None)
    table = report_searches.tree([without, searched("requests-on", 3)])
    first, second = cells(table)
    assert first[1:] == ["1.40x", "1.15 to 1.47", "3", "20", "17", "1,168", "263", "3,508", "3,256"]
    assert (first[0], second[0]) == ("a request a node, cache on", "transformers, paths as prompts")
    assert second[2] == "one pair"
    assert second[6:] == ["", "263", "", "3,256"]
    assert table.endswith("64 leaves; independent samples would hold 4,288 blocks, of which 93.9% are saved.")
    assert set(report_searches.SIDES) == set(tree.SIDES)


def test_grammars_stand_case_by_case() -> None:
    took = {"fork_us": 4.0, "take_us": 1.24, "mask_us": 5.0, "mask_mean_us": 15.3, "mask_worst_us": 1520.0}
    results = [
        {"library": library, "case": case, "compile_ms": 11.2, "16 rows": took}
        for library in ("x 1", "y 2")
        for case in ("date", "schema")
    ]
    rows = cells(report_searches.grammars([*results, {"case": "date", "library": "z", "1 rows": took}]))
    assert [row[1] for row in rows] == ["x 1", "y 2"] * 2
    assert rows[0] == ["an object of four properties", "x 1", "11", "4.0", "1.2", "5.0", "15", "1,520"]
    assert set(report_searches.CASES) == set(grammars.CASES)


def test_what_requests_wait_for_masks_is_a_share() -> None:
    r = {"case": "words", "rows": 16, "ms_a_step": 512.0, "masks_ms_a_step": 0.71, "waited_share": 0.0004}
    found = cells(report_searches.grammars_beside([r]))
    assert found == [["sentences as a regex with counted repetitions", "16", "512", "0.71", "0.0%"]]
