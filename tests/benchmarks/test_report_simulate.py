"""Tables of the simulator: what is carried, and what steady loads serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import plot_simulate
from benchmarks.plot_simulate import plot_name
from benchmarks.report_simulate import (
    calibration,
    carried,
    limits,
    load_key,
    overloaded,
    served,
    simulate,
    told,
)
from benchmarks.report_summary import summary
from tests.benchmarks.test_report_tables import cells

Result = dict[str, Any]


def simulated(system: str, rate: float, done: float, **changes: Any) -> Result:
    return {
        "model": "8b", "accelerator": "h200", "devices": 1, "trace": "alpaca", "kind": "beam", "width": 8,
        "count": 0, "system": system, "rate": rate, "requests_per_second": done, "goodput": 1.0, "met": 1.0,
        "window_seconds": 12.0, "load_seconds": 16.0, "waiting": [90, 200],
        "step_ms": 5.0, "rows_a_step": 80.0, "pool_use": 0.1, "saving": 0.6,
        "preemptions": 0, "host_ms_a_step": 2.0, "first_target": 2.0, "token_target": 0.05,
    } | changes  # fmt: skip


def test_the_most_that_a_steady_load_was_served_counts() -> None:
    results = [
        simulated("forest", 99, 95.2, waiting=[43, 73]),
        simulated("forest", 113, 102.7),
        simulated("forest", 280, 300.0, window_seconds=7.9),
        simulated("paged", 113, 98.2),
        simulated("copied", 99, 93.5),
        simulated("unshared", 90, 73.8),
        simulated("forest", 20, 20.0, devices=2),
        simulated("paged", 20, 20.0, count=500, devices=4),
    ]
    ((load, *found),) = cells(served(results))
    assert load == "8b on 1 x h200, Alpaca, beam 8, steady"
    assert found == ["103", "98.2", "93.5", "73.8", "", "", "1.39x", "1.27x", "1.05x", "1.05x", ""]


def test_who_had_too_much_may_have_served_more_of_less() -> None:
    """Of an overload more is begun than ended while it lasts."""
    results = [simulated("forest", 90, 66.8), simulated("forest", 70, 70.0, waiting=[71, 50])]
    results += [simulated("unshared", 75, 55.0)]
    ((_, *found),) = cells(served(results))
    assert (found[0], found[6]) == ("70", "1.27x")


def test_what_was_offered_too_little_is_no_limit() -> None:
    """Of who serves all that arrives it is not known what it can do: so there is no ratio."""
    results = [simulated("forest", 113, 102.7), simulated("contiguous", 0.4, 0.302, waiting=[1, 3])]
    ((_, *found),) = cells(served(results))
    assert found == ["103", "", "", "", "", "0.302 or more", *[""] * 5]


@pytest.mark.parametrize(
    ("rate", "done", "waiting", "more"),
    [
        (113, 102.7, [95, 204], True),
        (99, 95.2, [43, 73], False),
        (2, 0.9, [60, 240], True),
        (2, 1.1, [8, 19], False),
    ],
)
def test_a_load_is_too_much_where_what_waits_keeps_growing(
    rate: float, done: float, waiting: list[int], more: bool
) -> None:
    assert overloaded(simulated("forest", rate, done, waiting=waiting)) is more


def test_the_summary_says_what_sharing_buys_without_the_hosts_time_and_with_it() -> None:
    own = [
        simulated("forest", 90, 70.0, host_us="850/60/500"),
        simulated("unshared", 90, 56.0, host_us="850/60/500"),
        simulated("forest", 99, 90.0),
        simulated("unshared", 99, 60.0),
        simulated("paged", 9, 1.0, width=4),
    ]
    rows = cells(summary({"simulate": own}))
    assert [(what, number) for _, what, number, _ in rows] == [
        ("8b on 1 x h200, beam 8", "90/s, 1.50x"),
        ("8b on 1 x h200, beam 8, with the host's time", "70/s, 1.25x"),
    ]


def test_a_rate_is_carried_where_nine_of_ten_are_in_time() -> None:
    results = [
        simulated("forest", 99, 95.0),
        simulated("forest", 113, 95.0, met=0.9),
        simulated("forest", 118, 95.0, met=0.89),
        simulated("paged", 99, 95.0, met=0.5),
        simulated("paged", 0, 95.0, count=4000),
    ]
    ((_, rates, forest, paged, *others),) = cells(carried(results))
    assert (rates, forest, paged, others) == ("99, 113, 118", "113", "below 99", [""] * 4)
    assert list(limits(results).values()) == [{"forest": (113, 118)}]
    assert list(limits(results[:2]).values()) == [{"forest": (113, None)}]


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


def test_each_load_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.report_plots import plots

    results = [simulated(system, 0, 8.5, count=40) for system in ("forest", "paged")]
    (drawn,) = plots({"simulate": results}, tmp_path)
    assert drawn.name == "simulated-8b-1xh200-alpaca-beam8-40.svg"
    assert drawn.stat().st_size > 1000


def test_plots_of_loads_have_names_of_their_own() -> None:
    host = {"host_us": "850/60/500"}
    loads = [
        [simulated("forest", rate, 8.5, **more) for rate in rates]
        for more in ({}, {"count": 40}, {"count": 50}, host)
        for rates in ([9], [9, 10])
    ]
    names = [plot_name(load_key(own[0]), own) for own in loads]
    assert names == [
        "simulated-8b-1xh200-alpaca-beam8-steady", "goodput-8b-1xh200-alpaca-beam8-steady",
        "simulated-8b-1xh200-alpaca-beam8-40", "goodput-8b-1xh200-alpaca-beam8",
        "simulated-8b-1xh200-alpaca-beam8-50", "goodput-8b-1xh200-alpaca-beam8",
        "simulated-8b-1xh200-alpaca-beam8-host-steady", "goodput-8b-1xh200-alpaca-beam8-host-steady",
    ]  # fmt: skip


def test_a_plot_shows_each_system_in_each_panel() -> None:
    """What was given up soon counts for what was in time, and not for what was served."""
    pytest.importorskip("matplotlib")
    from matplotlib import pyplot

    results = [simulated("forest", rate, 8.5) for rate in (9, 10)]
    results += [simulated("paged", 9, 8.5), simulated("paged", 10, 9.9, window_seconds=2.0)]
    results += [simulated("copied", 9, 8.5, preemptions=3, finished=200)]
    figure = plot_simulate.simulated(results)
    assert [len(axis.lines) for axis in figure.axes] == [3] * len(plot_simulate.PANELS)
    shown = {
        axis.get_title(): {line.get_label(): line.get_ydata().tolist() for line in axis.lines}
        for axis in figure.axes
    }
    assert shown["throughput"] == {"forest": [8.5, 8.5], "paged": [8.5], "copied": [8.5]}
    assert shown["in time"]["paged"] == [100, 100]
    assert shown["preemptions"]["copied"] == [1.5]
    pyplot.close(figure)


def test_calibration_states_its_error() -> None:
    loads = [
        {"workload": name, "rows": 8, "measured_ms": measured, "predicted_ms": 50.0, "ratio": measured / 50}
        for name, measured in (("a", 100.0), ("b", 225.0))
    ]
    table = calibration([{"workloads": loads, "mean_ratio": 3.0, "bandwidth": 12e9, "flops": 120e9}])
    assert [row[4:] for row in cells(table)[:2]] == [["2.00", "150", "+50%"], ["4.50", "150", "-33%"]]
    assert "3.00 times what the roofline says (geometric mean)" in table
    assert table.endswith("off by 42% on average, 50% at most.")
