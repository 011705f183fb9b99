"""Tables of what an engine on a CPU takes, cell by cell."""

from __future__ import annotations

from benchmarks import report_cpu
from tests.benchmarks.test_report_tables import cells


def test_memory_is_told_apart() -> None:
    r = {"ready_mb": 1743.2, "kv_mb": 250.0, "beyond_mb": 160.6}
    assert [row[1] for row in cells(report_cpu.memory([r]))] == ["1,743", "250", "161"]


def test_a_stall_is_a_chunk_beside_rows() -> None:
    r = {
        "decode_ms": 90.0,
        "chunk_ms": [400.0, 410.0],
        "between_tokens_ms": [520.0, 1540.0],
        "over_both": [1.05, 1.126],
    }
    assert cells(report_cpu.stall([r])) == [["90", "400 to 410", "520 to 1,540", "1.05 to 1.13"]]


def test_waiting_is_a_ratio() -> None:
    r = {"passive": [60.0, 118.0], "active": [59.0, 120.4], "active_over_passive": [0.98, 1.02]}
    assert cells(report_cpu.waiting([r]))[-1] == ["active / passive", "0.98", "1.02"]


def test_prompts_that_we_read_slower_are_bold() -> None:
    def read(dtype: str, prompt: int, **spent: float) -> dict[str, object]:
        times = {name.replace("_", " "): each for name, each in spent.items()}
        speed = {name: 1000 / each for name, each in times.items() if name != "pass by pass"}
        return {"dtype": dtype, "prompt": prompt, **times, "forward": 1000.0, "speed": speed}

    long = read("float32", 1000, one_step=1250, chunks_of_512=1000)
    short = read("float32", 200, one_step=500, pass_by_pass=600)
    rows = cells(report_cpu.prefill([long, short, read("bfloat16", 1000, one_step=500, chunks_of_512=400)]))
    assert rows == [
        ["bfloat16", "1,000", "500", "", "400", "1,000", "2.00x, 2.50x"],
        ["float32", "200", "500", "600", "", "1,000", "2.00x"],
        ["float32", "1,000", "1,250", "", "1,000", "1,000", "**0.80x**, 1.00x"],
    ]


def test_a_step_by_its_tape_is_beside_one_by_python() -> None:
    ms = {"tape": 98.2, "python": 131.0}
    both = [{"workload": "greedyx16", "dtype": dtype, "ms": ms} for dtype in ("bfloat16", "float32")]
    rows = cells(report_cpu.layer_calls(both))
    assert rows == [["greedyx16", dtype, "131", "98", "0.75"] for dtype in ("float32", "bfloat16")]


def test_attention_is_beside_torch() -> None:
    r = {"case": "1 x 32", "dtype": "float32", "ms": {"ours": 57.1, "torch": 133.0}}
    table = report_cpu.attention([r])
    assert table.startswith("| workload | dtype | ours, ms per step | torch, ms per step |")
    assert cells(table) == [["1 x 32", "float32", "57", "133"]]
