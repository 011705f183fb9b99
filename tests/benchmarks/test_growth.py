"""The growth benchmark: its fit, its sizes, and what must not grow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import growth
from benchmarks.growth_fit import exponent


@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0, 2.0])
def test_exponent_of_a_power_is_its_exponent(slope: float) -> None:
    sizes = [1.0, 4.0, 16.0, 64.0, 256.0]
    assert exponent(sizes, [3 * s**slope for s in sizes]) == pytest.approx(slope)


def test_one_size_has_no_exponent() -> None:
    with pytest.raises(ValueError, match="two sizes"):
        exponent([4.0], [1.0])


def test_small_sizes_do_not_count() -> None:
    """A constant that large sizes outgrow."""
    sizes = [1.0, 10.0, 100.0, 1e4, 1e5, 1e6]
    assert exponent(sizes, [1000 + s for s in sizes]) == pytest.approx(1, abs=0.05)


def test_blocks_grow_as_tables_say() -> None:
    """Counted, not timed: trunks are held once, tails by row."""
    prompts = growth.grow("prompt", "sample", steps=16, largest=1000)
    for p in prompts:
        shared = int(p["size"]) // 16
        assert p["unshared_blocks"] - p["unique_blocks"] == pytest.approx(7 * shared, abs=8)
    widths = growth.grow("width", "beam", steps=16, largest=64)
    assert [p["size"] for p in widths] == [1, 4, 16, 64]
    assert widths[0]["unique_blocks"] == widths[0]["unshared_blocks"]
    assert growth.fitted(widths)["unshared_blocks"] == pytest.approx(1, abs=0.1)
    assert growth.fitted(widths)["unique_blocks"] < 0.9


def test_an_output_is_measured_in_stretches_of_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "growth.jsonl"
    command = ["growth", "--axis", "output", "groups", "--kind", "beam", "--largest", "64"]
    monkeypatch.setattr("sys.argv", [*command, "--steps", "8", "--record", str(file)])
    growth.main()
    output, groups = (json.loads(line)["result"] for line in file.read_text().splitlines())
    assert [p["size"] for p in output["points"]] == [32, 64]
    assert output["points"][0]["unique_blocks"] < output["points"][1]["unique_blocks"]
    assert [p["unshared_blocks"] for p in groups["points"]] == [
        p["size"] * groups["points"][0]["unshared_blocks"] for p in groups["points"]
    ]
    assert "exponents" in capsys.readouterr().out
