"""The table of claims: what is reproduced, what is contradicted, and why."""

from __future__ import annotations

from benchmarks.report_claims import BEAMS, H200, claims
from tests.benchmarks.test_report_simulate import simulated
from tests.benchmarks.test_report_tables import cells

NAMES = ("model", "accelerator", "devices", "trace", "kind", "width", "count")


def of(
    load: tuple[object, ...], system: str, rate: float, done: float = 1.0, **more: object
) -> dict[str, object]:
    return simulated(system, rate, done, **dict(zip(NAMES, load, strict=True)), **more)


def test_claims_are_judged_by_their_lowest_figure() -> None:
    results = [
        of(BEAMS, "forest", 22.0), of(BEAMS, "paged", 20.0, saving=0.6), of(BEAMS, "paged", 30.0, met=0.5),
        of(BEAMS, "exact", 10.0), of(BEAMS, "unshared", 20.0),
        of(H200, "forest", 200.0, 103.0), of(H200, "unshared", 100.0, 73.8),
    ]  # fmt: skip
    memory = {"trace": "alpaca", "kind": "beam", "width": 6, "saving": 0.59}
    rows = cells(claims({"simulate": results, "memory": [memory]}))
    saved, blocks, forest, alone, h200 = rows
    assert saved[1:5] == ["simulated: 60%", "SmolLM2, decoded: 59%", "", "reproduced"]
    assert blocks[1:5] == ["paged: 20/s carried", "exact: 10/s carried", "2.00x", "contradicted"]
    assert (forest[3:5], alone[3:5]) == (["2.20x", "reproduced"], ["1.10x", ""])
    assert h200[1:5] == ["forest: 103/s served", "unshared: 73.8/s served", "1.40x", "contradicted"]
    assert h200[5]


def test_what_has_no_records_is_not_claimed() -> None:
    assert claims({}) == "No record yet."
    assert len(claims({"simulate": [of(BEAMS, "paged", 20.0)]}).splitlines()) == 2
