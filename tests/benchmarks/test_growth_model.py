"""Growth with a model: what is counted, and what is left out for which reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import growth, growth_model
from benchmarks.growth_model import Axis, ModelEngine, Size, Step, grow
from tests.tiny_model import save_tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_llama(tmp_path_factory.mktemp("model"), max_position_embeddings=256))


@pytest.fixture(scope="module")
def engine(model: str) -> ModelEngine:
    return ModelEngine(model, "float32", threads=1, seed=0)


def blocks(engine: ModelEngine, grown: Axis, name: str) -> list[float]:
    return [p[name] / engine.block_bytes for p in grown.points]


def test_memory_by_width_is_trunk_and_tails(engine: ModelEngine) -> None:
    """Counted by hand: a prompt of 58 fills 3 blocks and 10 slots; the tails, of which samples have one a
    row, begin a second block 7 steps on, after which half of the 14 timed steps hold it."""
    grown = grow(engine, "width", "sample", limit=1e9, largest=16)
    assert [p["size"] for p in grown.points] == [1, 4, 16]
    for p in grown.points:
        tails = (p["kv_bytes"] / engine.block_bytes - 3) / p["size"]
        assert 1 <= tails <= 2
        assert p["unshared_bytes"] / engine.block_bytes == (3 + tails) * p["size"]
        assert 0 <= p["control_ms"] <= p["step_ms"]


def test_memory_by_groups_is_in_proportion(engine: ModelEngine) -> None:
    grown = grow(engine, "groups", "sample", limit=1e9, largest=16)
    first, *rest = blocks(engine, grown, "kv_bytes")
    assert rest == [4 * first, 16 * first]
    assert growth_model.fitted(grown.points)["kv_bytes"] == pytest.approx(1)


def test_an_output_is_measured_in_stretches_of_one_run(engine: ModelEngine) -> None:
    grown = grow(engine, "output", "beam", limit=1e9)
    # 58 and 128 + 1 tokens fit into 256 positions; 257 don't.
    assert [p["size"] for p in grown.points] == [32, 64, 128]
    assert grown.left_out == dict.fromkeys((256, 512, 1024, 2048), "the model has 256 positions")
    held = blocks(engine, grown, "unshared_bytes")
    assert held == sorted(held)


def test_what_does_not_fit_is_left_out_and_named(engine: ModelEngine) -> None:
    assert grow(engine, "prompt", "beam", limit=1e9).left_out == dict.fromkeys(
        (250, 1000, 2500, 8000), "the model has 256 positions"
    )
    grown = grow(engine, "width", "sample", limit=0.0)
    assert [p["size"] for p in grown.points] == []
    assert all(reason.startswith("would take") for reason in grown.left_out.values())
    assert engine.misfit(Size(groups=1 << 40)) is not None
    assert engine.misfit(Size()) is None


def test_a_size_that_was_broken_off_leaves_nothing_behind(engine: ModelEngine) -> None:
    steps = engine.steps(Size(groups=3), "beam")
    assert next(steps).unique > 0
    steps.close()
    stats = engine._engine.stats()
    assert stats.used_blocks == stats.running_groups == 0


def test_a_point_is_the_median_of_its_steps() -> None:
    steps = [Step(5.0, 1.0, 10, 40), Step(1.0, 3.0, 12, 44), Step(3.0, 2.0, 11, 42)]
    assert growth_model.point(7, steps, block_bytes=100) == {
        "size": 7, "steps": 3, "step_ms": 3.0, "control_ms": 2.0, "kv_bytes": 1100, "unshared_bytes": 4200,
    }  # fmt: skip


def test_records_say_what_was_left_out(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "growth.jsonl"
    command = ["growth", "--model", model, "--axis", "prompt", "--kind", "beam", "--threads", "1"]
    monkeypatch.setattr("sys.argv", [*command, "--record", str(file)])
    growth.main()
    (full,) = map(json.loads, file.read_text().splitlines())
    assert full["seed"] == 0
    found = full["result"]
    assert [p["size"] for p in found["points"]] == [16, 64]
    assert found["left_out"].keys() == {"250", "1000", "2500", "8000"}
    assert "beam prompt 250 is left out: the model has 256 positions" in capsys.readouterr().out


def test_an_output_of_which_no_size_fits_is_left_out(
    engine: ModelEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth_model, "SIZES", {"output": (1 << 30,)})
    grown = grow(engine, "output", "beam", limit=1.0)
    assert (grown.points, list(grown.left_out)) == ([], [1 << 30])


def test_growth_needs_two_sizes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["growth", "--axis", "width", "output", "--largest", "4"])
    with pytest.raises(SystemExit):
        growth.main()
    assert "--largest 4: growth needs two sizes, output has them at 64" in capsys.readouterr().err
