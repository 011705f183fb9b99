"""The table of claims: what is reproduced, what is contradicted, and why."""

from __future__ import annotations

from benchmarks.report_claims import BEAMS, H200, ONE, claims
from benchmarks.report_simulate import LOAD_KEYS
from tests.benchmarks.test_report_simulate import simulated
from tests.benchmarks.test_report_tables import cells


def of(
    load: tuple[object, ...], system: str, rate: float, done: float = 1.0, **more: object
) -> dict[str, object]:
    return simulated(system, rate, done, **dict(zip(LOAD_KEYS, load, strict=True)), **more)


def test_claims_are_judged_by_their_lowest_figure() -> None:
    results = [
        of(BEAMS, "forest", 22.0), of(BEAMS, "paged", 20.0, saving=0.6), of(BEAMS, "paged", 30.0, met=0.5),
        of(BEAMS, "exact", 10.0), of(BEAMS, "unshared", 20.0), of(BEAMS, "copied", 20.0),
        of(H200, "forest", 200.0, 103.0), of(H200, "unshared", 100.0, 73.8), of(H200, "copied", 100.0, 95.0),
    ]  # fmt: skip
    memory = {"trace": "alpaca", "kind": "beam", "width": 6, "saving": 0.59}
    rows = cells(claims({"simulate": results, "memory": [memory]}))
    saved, sharing, once, other, blocks, forest, h200, copied = rows
    assert saved[1:5] == ["simulated: 60%", "SmolLM2, decoded: 59%", "", "reproduced"]
    assert sharing[1:5] == ["paged: 20/s carried", "unshared: 20/s carried", "1.00x", "contradicted"]
    assert once[1:5] == ["forest: 22/s carried", "unshared: 20/s carried", "1.10x", "contradicted"]
    assert other[1:5] == ["forest: 22/s carried", "copied: 20/s carried", "1.10x", "contradicted"]
    assert blocks[1:5] == ["paged: 20/s carried", "exact: 10/s carried", "2.00x", "contradicted"]
    assert forest[3:5] == ["2.20x", "reproduced"]
    assert h200[1:5] == ["forest: 103/s served", "unshared: 73.8/s served", "1.40x", "contradicted"]
    assert copied[3:5] == ["1.08x", "contradicted"]
    assert all(row[5] for row in (sharing, once, other, blocks, h200, copied))


def test_a_ratio_says_how_far_the_simulated_rates_are_apart() -> None:
    results = [
        of(BEAMS, "forest", 22.0), of(BEAMS, "forest", 23.0, met=0.7),
        of(BEAMS, "exact", 10.0), of(BEAMS, "exact", 10.5, met=0.8), of(BEAMS, "exact", 11.0, met=0.8),
    ]  # fmt: skip
    (found,) = cells(claims({"simulate": results}))
    assert found[3:5] == ["2.20x (2.10 to 2.30)", "reproduced"]


def test_more_than_is_claimed_is_not_called_reproduced() -> None:
    results = [
        of(BEAMS, "paged", 17.5), of(BEAMS, "contiguous", 0.35),
        of(ONE, "paged", 2.9), of(ONE, "contiguous", 0.75), of(ONE, "exact", 2.8),
    ]  # fmt: skip
    known, unknown, beams = cells(claims({"simulate": results}))
    assert known[3:5] == ["1.04x", "contradicted"]
    assert unknown[3:5] == ["3.87x", "reproduced"]
    assert beams[3:5] == ["50.00x", "more than claimed"]
    assert all(row[5] for row in (known, unknown, beams))


def test_what_has_no_records_is_not_claimed() -> None:
    assert claims({}) == "No record yet."
    assert len(claims({"simulate": [of(BEAMS, "paged", 20.0)]}).splitlines()) == 2
