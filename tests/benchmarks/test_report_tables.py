"""Tables and plots of records, cell by cell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import report_serving
from benchmarks.report_growth import growth_model
from benchmarks.report_layout import spread
from benchmarks.report_summary import parity, summary
from benchmarks.report_tables import in_order, memory_samples, memory_transformers

Result = dict[str, Any]


def cells(table: str) -> list[list[str]]:
    """The rows below the head."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def waits(first: float) -> dict[str, float]:
    return {"p50": first, "p90": 2 * first, "p99": 3 * first}


def arrivals(side: str, rate: float, kind: str = "sample") -> Result:
    return {
        "side": side, "rate": rate, "kind": kind, "width": 4, "tokens": 24, "requests": 50,
        "first_token": waits(0.1 * rate), "between_tokens": waits(0.05), "tokens_per_second": 96.4,
    }  # fmt: skip


def grown(kind: str, axis: str, left_out: dict[str, str]) -> Result:
    def at(size: int) -> dict[str, float]:
        return {
            "size": size,
            "step_ms": 30.0 * size,
            "control_ms": 0.5,
            "kv_bytes": 1e6,
            "unshared_bytes": 2e6,
        }

    exponents = {"step_ms": 1.0, "control_ms": 0.0, "kv_bytes": 0.0, "unshared_bytes": 0.0}
    points = [at(1), at(4), at(16)]
    return {"axis": axis, "kind": kind, "points": points, "exponents": exponents, "left_out": left_out}


def test_latency_is_told_by_load_rate_and_side() -> None:
    table = report_serving.latency(
        [
            arrivals("service", 2),
            arrivals("service", 1, "beam"),
            arrivals("in process", 2),
            arrivals("service", 1),
        ]
    )
    rows = cells(table)
    assert [row[:3] for row in rows] == [
        ["4 samples of 24 tokens", "1", "service"],
        ["4 samples of 24 tokens", "2", "in process"],
        ["4 samples of 24 tokens", "2", "service"],
        ["beam 4 of 24 tokens", "1", "service"],
    ]
    assert rows[1][3:] == ["50", "200", "400", "600", "50", "100", "150", "96"]
    assert table.endswith("(plots/serving-latency.svg)")


def test_latency_of_several_runs_has_the_spread_of_their_medians() -> None:
    r = arrivals("service", 2) | {"runs": 2}
    for name, most in (("first_token", 0.25), ("between_tokens", 0.05)):
        r[name] |= {"p50_min": r[name]["p50"], "p50_max": most}
    ((*_, first, _, _, between, _, _, _),) = cells(report_serving.latency([r]))
    assert (first, between) == ("200 (200 to 250)", "50 (50)")


def test_overhead_is_a_ratio_with_its_spread() -> None:
    r = {
        "workload": "64 streams",
        "ratio": 0.974,
        "ratio_min": 0.9,
        "ratio_max": 1.01,
        "runs": 3,
        "goal": 0.85,
    }
    assert cells(report_serving.overhead([r])) == [["64 streams", "0.97", "0.90 to 1.01", "3", "0.85"]]


def test_a_soak_tells_what_became_of_whom() -> None:
    r = {
        "seconds": 60.2, "streams": 8, "requests": 1031, "faults": [], "idle": True,
        "by_status": {"ok: ok": 9, "deadline: DeadlineError": 3, "deadline: ok": 2, "killed: ok": 1},
        "memory_growth": {"front": 1.0, "engine": 1.0321},
    }  # fmt: skip
    found = dict(cells(report_serving.soak([r])))
    assert found["requests in 60 s, 8 at once"] == "1,031"
    assert (found["read to the end"], found["missed their deadline"], found["cancelled"]) == ("9", "5", "0")
    assert found["memory of the engine, last quarter / second"] == "1.032"
    assert found["blocks held afterwards"] == "none"


def test_kills_tell_how_requests_ended_and_when_it_served_again() -> None:
    r = {
        "kills": 3, "faults": ["x"], "by_status": {"ok: UnavailableError": 4675, "ok: ok": 2},
        "seconds_until_it_serves": [9.4, 10.0, 27.8],
    }  # fmt: skip
    found = dict(cells(report_serving.kill([r])))
    assert found["requests that ended with UnavailableError"] == "4,675"
    assert found["ended as nobody asked for"] == "1"
    assert found["seconds until it served again: least, median, most"] == "9, 10, 28"


def test_growth_with_a_model_names_what_was_left_out() -> None:
    (row,) = cells(growth_model([grown("beam", "width", {"1024": "would take 200 s", "4096": "no room"})]))
    assert row[:5] == ["beam", "width", "1 to 16", "30 to 480", "1.00"]
    assert row[-2:] == ["2.0 to 2.0", "1,024: would take 200 s; 4,096: no room"]


def test_memory_is_in_the_same_order_whatever_was_measured_last() -> None:
    keys = [("sharegpt", "beam", 2), ("alpaca", "beam", 16), ("alpaca", "beam", 4), ("sharegpt", "sample", 2)]
    results = [{"trace": trace, "kind": kind, "width": width} for trace, kind, width in keys]
    found = [(r["trace"], r["kind"], r["width"]) for r in in_order(results)]
    assert found == [keys[2], keys[1], keys[3], keys[0]]


def test_samples_are_told_by_variation_where_they_were_counted_so() -> None:
    decoded = {"trace": "sharegpt", "kind": "sample", "width": 2, "paper": [16.2, 30.5]}
    row = decoded | {"saving_by_variation": {"0.6": 0.19, "1.2": 0.129}}
    found = memory_samples([decoded, row, row | {"width": 8, "paper": None}])
    assert found.splitlines()[0] == "| trace | samples | variation 0.6 | variation 1.2 | paper, 2 to 6 |"
    assert cells(found) == [["ShareGPT", "2", "19.0%", "12.9%", "16.2 to 30.5 %"]]


def test_both_processes_peaks_are_told_where_both_were_measured() -> None:
    theirs = {"transformers_cache_bytes": 90_000_000, "transformers_peak_bytes": 120_000_000}
    before = {"width": 4, "ours_peak_bytes": 60_000_000, **theirs}
    since = before | {"width": 2, "ours_process_peak_bytes": 80_000_000}
    assert cells(memory_transformers([before, since])) == [
        ["2", "60 MB", "80 MB", "90 MB", "120 MB", "1.50", "1.50"],
        ["4", "60 MB", "", "90 MB", "120 MB", "1.50", ""],
    ]


def test_parity_is_told_by_part() -> None:
    def case(name: str, equal: bool, error: float) -> Result:
        return {"case": name, "equal": equal, "score_error": error, "prompt_tokens": 7}

    widths, stopping = cells(
        parity([case("text-5", True, 1e-5), case("text-9", False, 2e-5), case("short-0", True, 0)])
    )
    assert widths[2:] == ["2", "1", "2.0e-05"]
    assert stopping[2:] == ["1", "1", "0.0e+00"]


def test_the_summary_has_what_there_are_records_for() -> None:
    memory = [
        {"trace": "alpaca", "kind": kind, "width": width, "saving": saving}
        for kind, width, saving in (("beam", 2, 0.36), ("beam", 32, 0.654), ("sample", 4, 0.1))
    ]
    usual: Result = {"dtype": "float32", "tokens": 64, "workload": "beam4x16"}
    throughput: list[Result] = [
        usual | {"peer": "vllm", "ratio": 1.26},
        usual | {"peer": "vllm", "ratio": 0.94, "workload": "greedyx16"},
        usual | {"peer": "vllm", "ratio": 50.0, "tokens": 8},
        usual | {"peer": "vllm_cached", "ratio": 3.0},
        usual | {"peer": "vllm_cached:x=1", "ratio": 4.0},
        usual | {"peer": "vllm", "ratio": 9.0, "dtype": "bfloat16"},
        usual | {"peer": "x", "refused": "why"},
    ]
    beam = usual | {"workload": "beam4x200", "peer": "vllm"}
    greedy = beam | {
        "workload": "greedy1x200",
        "first_token": {"ratio": 0.8},
        "between_tokens": {"ratio": 2.0},
    }
    latency: list[Result] = [
        greedy,
        greedy | {"peer": "x", "first_token": {"ratio": 1.4}},
        greedy | {"tokens": 8, "first_token": {"ratio": 7.0}},
        beam | {"seconds": {"ratio": 3.0}},
        beam | {"refused": "why"},
    ]
    results: dict[str, list[Result]] = {"memory": memory, "throughput": throughput, "parity": []}
    results["latency"] = latency
    rows = cells(summary(results))
    assert [(what, number) for _, what, number, _ in rows] == [
        ("beam 4, 16 prompts of 40 to 200 tokens, float32", "vllm 1.3x, vllm cached 3.0x"),
        ("greedy, 16 prompts of 40 to 200 tokens, float32", "vllm 0.9x"),
        ("beam 4, 16 prompts of 40 to 200 tokens, bfloat16", "vllm 9.0x"),
        ("first token, greedy, a prompt of 200 tokens, float32", "vllm 0.8x, x 1.4x"),
        ("each further token, greedy, a prompt of 200 tokens, float32", "vllm 2.0x, x 2.0x"),
        ("last token, beam 4, a prompt of 200 tokens, float32", "vllm 3.0x"),
        ("Alpaca", "36% to 65% (width 2 to 32)"),
        ("Alpaca", "10% (width 4)"),
    ]
    assert all(row[3].startswith("`python -m benchmarks.") for row in rows)
    assert spread([3, 1], "d") == "1 to 3"
    other = {"step_profile": [{"workload": "greedyx16", "dtype": "float32", "ms": {"qkv": 99.0}}]}
    assert cells(summary(other)) == []


def test_the_summary_says_what_the_engine_s_records_say() -> None:
    step = {"forward": 1850.0, "logits": 171.0, "select": 17.0, "blocks": 7.0, "control": 1.4, "share": 0.014}
    results: dict[str, list[Result]] = {
        "hostile": [
            {
                "requests": 10_000,
                "faults": ["x"],
                "sessions": {"outcomes": {"plain": {"OK": 3, "accepted": 4}}},
            }
        ],
        "score": [{"cpu_ratio": {"forward": 7.6, "cached": 1.84}}],
        "step_profile": [
            {"workload": "beam4x16", "dtype": "float32", "ms": {"qkv": 300.0, "plan": 1.0, "commit": 3.7}},
            {"workload": "greedyx16", "dtype": "float32", "ms": {"qkv": 99.0}},
        ],
        "cpu_prefill": [
            {"dtype": "float32", "prompt": 200, "speed": {"one step": 1.3}},
            {"dtype": "float32", "prompt": 1000, "speed": {"one step": 0.78, "chunks of 512": 0.82}},
        ],
        "int8": [
            {"documentation": [75.4, 78.3, 1], "books": [25.5, 26.6, 1], "ms": {"16": [1, 2, 1.5]}},
        ],
        "catalogue": [{"part": "trie"}, {"part": "wide", "width": 1024, "block_size": 4, "step_ms": step}],
        "tree": [{"side": "requests-on", "ratio": 1.4, "saved": 0.9387}],
    }
    assert [row[2] for row in cells(summary(results))] == [
        "10,000 requests, 7 commands of tree sessions, 1 faults",
        "7.6x; 1.8x where it keeps the prompt's cache",
        "4.7 of 305 ms",
        "0.78 to 0.82x",
        "a step 1.5x as fast, perplexity 4% higher",
        "2.0 s, 1.4% not the model's",
        "93.9% of the blocks saved; requests-on: 1.4x the tree's time",
    ]


def test_the_summary_takes_latency_where_no_queue_stands() -> None:
    results = [arrivals("service", 4), arrivals("service", 2), arrivals("in process", 1)]
    ((*_, number, _),) = cells(summary({"serving_latency": results}))
    assert number == (
        "2 arrivals per second: first token 200 ms (p50) and 600 ms (p99), "
        "between tokens 50 ms (p50) and 150 ms (p99)"
    )


def test_throughput_is_drawn_with_what_was_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.report_plots import plots

    one: Result = {
        "workload": "greedyx16",
        "dtype": "float32",
        "tokens": 64,
        "ratio": 0.9,
        "ratio_min": 0.8,
        "ratio_max": 1.1,
    }
    results = [
        one | {"peer": "x", "goal": 2.0},
        one | {"peer": "y", "goal": None},
        one | {"peer": "y", "goal": None, "tokens": 8},
        one | {"peer": "y:x=1", "goal": None},
        {"peer": "z", "failed": ""},
    ]
    (drawn,) = plots({"throughput": results}, tmp_path)
    assert drawn.name == "throughput.svg"
    assert drawn.read_text().count("<!-- greedyx16, float32, ") == 2


def test_plots_of_latency_and_growth(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.report_plots import plots

    records: dict[str, list[Result]] = {
        "serving_latency": [arrivals(s, r) for r in (1, 2) for s in ("service", "in process")],
        "growth_model": [
            grown(kind, axis, {}) for kind in ("beam", "sample") for axis in ("width", "output")
        ],
    }
    latency, growth = sorted(plots(records, tmp_path), reverse=True)
    assert (latency.name, growth.name) == ("serving-latency.svg", "growth-model.svg")
    # A line for each side and percentile in two plots, with a mark a rate; matplotlib names lines so.
    assert latency.read_text().count('<g id="line2d_') >= 2 * 2 * 3
    assert growth.read_text().count('<g id="line2d_') >= 2 * 2 * 4
