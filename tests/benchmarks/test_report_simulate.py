"""Tables of the simulator: what is carried, and what steady loads serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.report_simulate import calibration, carried, served, simulate, told
from benchmarks.report_summary import summary
from tests.benchmarks.test_report_tables import cells

Result = dict[str, Any]


def simulated(system: str, rate: float, done: float, **changes: Any) -> Result:
    return {
        "model": "8b", "accelerator": "h200", "devices": 1, "trace": "alpaca", "kind": "beam", "width": 8,
        "count": 0, "system": system, "rate": rate, "requests_per_second": done, "goodput": 1.0, "met": 1.0,
        "window_seconds": 12.0, "load_seconds": 16.0,
        "step_ms": 5.0, "rows_a_step": 80.0, "pool_use": 0.1, "saving": 0.6,
        "preemptions": 0, "host_ms_a_step": 2.0, "first_target": 2.0, "token_target": 0.05,
    } | changes  # fmt: skip


def test_the_most_that_a_steady_load_was_served_counts() -> None:
    results = [
        simulated("forest", 99, 95.2),
        simulated("forest", 113, 102.7),
        simulated("forest", 280, 300.0, window_seconds=7.9),
        simulated("paged", 113, 98.2),
        simulated("unshared", 76, 73.8),
        simulated("forest", 20, 20.0, devices=2),
        simulated("paged", 20, 20.0, count=500, devices=4),
    ]
    ((load, *found),) = cells(served(results))
    assert load == "8b on 1 x h200, Alpaca, beam 8, steady"
    assert found == ["103", "98.2", "73.8", "", "", "1.33x", "1.05x", ""]


def test_the_summary_says_what_sharing_buys() -> None:
    own = [
        simulated("forest", 99, 90.0),
        simulated("unshared", 99, 60.0),
        simulated("paged", 9, 1.0, width=4),
    ]
    ((_, number, _),) = cells(summary({"simulate": own}))
    assert number == "8b on 1 x h200, beam 8: 1.50x"


def test_a_rate_is_carried_where_nine_of_ten_are_in_time() -> None:
    results = [
        simulated("forest", 99, 95.0),
        simulated("forest", 113, 95.0, met=0.9),
        simulated("forest", 118, 95.0, met=0.89),
        simulated("paged", 99, 95.0, met=0.5),
        simulated("paged", 0, 95.0, count=4000),
    ]
    ((_, rates, forest, paged, *others),) = cells(carried(results))
    assert (rates, forest, paged, others) == ("99, 113, 118", "113", "below 99", ["", "", ""])


def test_many_rates_are_told_by_their_span() -> None:
    assert told([1.0, 2.5]) == "1, 2.5"
    assert told([*map(float, range(1, 8))]) == "7 from 1 to 7"


def test_requests_that_come_all_at_once_have_no_rate() -> None:
    rows = cells(simulate([simulated("forest", 0, 95.0, count=4000)]))
    assert rows[-1][:2] == ["at once", "forest"]


def test_all_runs_say_how_many_groups_were_there_at_once() -> None:
    rows = cells(simulate([simulated("forest", 9, 8.5, most_groups=3338), simulated("paged", 9, 8.5)]))
    found = [[cell for cell in row if cell] for row in rows if row[0] == "9"]
    assert found[0][1:4] == ["forest", "8.50/s", "1.00/s"]
    assert found[0][-2:] == ["3,338", "2.0"]
    assert found[1][-2:] == ["0", "2.0"]


def test_only_loads_of_several_rates_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.report_plots import plots

    results = [simulated("forest", rate, 8.5) for rate in (9, 10)]
    results += [simulated("forest", 0, 8.5, count=4000)]
    (drawn,) = plots({"simulate": results}, tmp_path)
    assert drawn.name == "goodput-8b-1xh200-alpaca-beam8-steady.svg"


def test_calibration_states_its_error() -> None:
    loads = [
        {"workload": name, "rows": 8, "measured_ms": measured, "predicted_ms": 50.0, "ratio": measured / 50}
        for name, measured in (("a", 100.0), ("b", 225.0))
    ]
    table = calibration([{"workloads": loads, "mean_ratio": 3.0, "bandwidth": 12e9, "flops": 120e9}])
    assert [row[4:] for row in cells(table)[:2]] == [["2.00", "150", "+50%"], ["4.50", "150", "-33%"]]
    assert "3.00 times what the roofline says (geometric mean)" in table
    assert table.endswith("off by 42% on average, 50% at most.")
