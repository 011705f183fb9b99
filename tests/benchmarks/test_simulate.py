"""The simulator: its roofline by hand, its systems against each other, and 10^4 requests in little time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import simulate
from benchmarks.memory import requests_of
from benchmarks.memory_replay import replay
from benchmarks.memory_trace import TRACES, Decoded, Trace
from benchmarks.simulate_cost import ACCELERATORS, MODELS, Accelerator, CostModel, ModelShape, StepWork
from benchmarks.simulate_load import SYSTEMS, Load
from benchmarks.simulate_model import FakeModel, best_first, forked_share
from benchmarks.simulate_run import Simulation
from benchmarks.simulate_search import limit
from benchmarks.simulate_served import Target
from forkdecode.step import BlockMoves, SelectionRequest, StepPlan, TopK

RECORDS = Path(simulate.__file__).parent / "records"
TINY = ModelShape("tiny", layers=2, hidden=8, heads=2, kv_heads=1, head_dim=4, intermediate=16, vocabulary=32)
SLOW = Accelerator("slow", bandwidth=1000.0, flops=1e9, memory=40_000.0, link=100.0, latency=0.5)
SMALL = Trace("small", 40.0, 20.0)
TARGET = Target(2.0, 0.05)


def run(system: str, *, cost: CostModel | None = None, **load: Any) -> dict[str, Any]:
    asked = Load(**{"trace": SMALL, "kind": "beam", "width": 4, "count": 40, "rate": 100.0, **load})
    cost = cost or CostModel(ACCELERATORS["h200"], MODELS["8b"])
    done = Simulation(SYSTEMS[system], asked, cost, sharpness=simulate.SHARPNESS, target=TARGET).run()
    done.scheduler.check()
    assert done.scheduler.stats().used_blocks == 0
    assert len(done.served.ended) == asked.count
    return done.report()


def test_roofline_by_hand() -> None:
    layer = 8 * 4 * (2 * 2 + 2 * 1) + 3 * 8 * 16
    assert TINY.layer_weights == 2 * layer
    assert TINY.token_bytes == 2 * 2 * 1 * 4 * 2
    spent = CostModel(SLOW, TINY).seconds(StepWork(3, 2, 50, 60, parts=4, copied_tokens=16))
    assert spent.layers == pytest.approx(2 * 2 * layer / 1000)
    assert spent.attention == pytest.approx((32 * (50 + 3) + 4 * 2 * 2 * 5 * 8) / 1000)
    assert spent.head == pytest.approx(8 * 32 * 2 / 1000)
    assert spent.selection == pytest.approx(2 * 32 * 8 / 1000)
    assert spent.copies == pytest.approx(2 * 16 * 32 / 1000)
    assert spent.links == 0
    two = CostModel(SLOW, TINY, devices=2).seconds(StepWork(3, 2, 50, 60))
    assert two.layers == pytest.approx(spent.layers / 2)
    assert two.links == pytest.approx(2 * 2 * (3 * 8 * 2 * 2 * 0.5 / 100 + 0.5))
    many = CostModel(SLOW, TINY).seconds(StepWork(1e9, 0, 0, 0))
    assert many.layers == pytest.approx(2 * TINY.layer_weights * 1e9 / 1e9)


def test_what_does_not_fit_is_refused() -> None:
    assert CostModel(ACCELERATORS["h200"], MODELS["8b"]).pool_tokens > 500_000
    with pytest.raises(ValueError, match="70b does not fit on 1 x h200"):
        _ = CostModel(ACCELERATORS["h200"], MODELS["70b"]).pool_tokens


def test_weights_of_the_named_models() -> None:
    for name, billions in (("8b", 8.03), ("70b", 70.6), ("opt-13b", 12.9)):
        weights = MODELS[name].weight_bytes / 2 / 1e9
        assert weights == pytest.approx(billions, rel=0.03)


def test_one_row_alone_is_the_same_in_every_system() -> None:
    """What shares nothing is simulated as one row on a W-th of the pool: for W = 1 nothing may differ."""
    found = [run(s, kind="sample", width=1) for s in ("forest", "paged", "unshared")]
    for name in ("seconds", "steps", "goodput", "tokens_per_second", "first_token_p90", "rows_a_step"):
        assert found[0][name] == pytest.approx(found[1][name])
        assert found[1][name] == pytest.approx(found[2][name])


def test_sharing_costs_less_time_and_memory() -> None:
    forest, paged, copied, unshared, contiguous = (
        run(s, rate=0.0) for s in ("forest", "paged", "copied", "unshared", "contiguous")
    )
    assert forest["seconds"] < paged["seconds"] < copied["seconds"] < unshared["seconds"]
    assert unshared["seconds"] < contiguous["seconds"]
    assert forest["pool_use"] < unshared["pool_use"]
    assert forest["saving"] == paged["saving"] > 0.4
    assert unshared["saving"] == 0
    for found in (forest, unshared):
        assert sum(found["time_shares"].values()) == pytest.approx(1, abs=0.001)


def test_short_memory_preempts_but_reservations_never_do() -> None:
    tight = CostModel(Accelerator("tight", 4e12, 8e14, 19.0e9, 4e11, 1e-5), MODELS["8b"])
    assert 5_000 < tight.pool_tokens < 10_000
    load: dict[str, Any] = {"cost": tight, "rate": 0.0, "count": 60, "trace": Trace("long", 100.0, 120.0)}
    assert run("forest", **load)["preemptions"] > 0
    assert run("exact", **load)["preemptions"] == 0


def test_goodput_leaves_out_what_came_late() -> None:
    cost = CostModel(ACCELERATORS["h200"], MODELS["8b"])
    done = Simulation(
        SYSTEMS["forest"],
        Load(SMALL, "beam", 4, 40, 100.0),
        cost,
        sharpness=simulate.SHARPNESS,
        target=TARGET,
    ).run()

    def report(first: float, token: float) -> dict[str, Any]:
        return done.served.report(Target(first, token), done.arrivals, done.now)

    assert report(0.0, 1.0)["goodput"] == 0 == report(1e9, 0.0)["met"]
    generous = report(1e9, 1e9)
    assert generous["met"] == 1
    half = report(float(np.median(done.served.first)), 1e9)
    assert 0 < half["goodput"] < generous["goodput"]


def test_what_waits_tells_a_load_that_is_carried() -> None:
    """One that is not leaves ever more behind."""
    easy, hard = (run("forest", rate=rate, count=400) for rate in (50.0, 20_000.0))
    assert easy["waiting"][1] < 100 < hard["waiting"][1]
    assert easy["window_requests"] == hard["window_requests"] == 300
    assert easy["requests_per_second"] == pytest.approx(50, rel=0.2)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.integers(1, 5), st.integers(1, 40), st.integers(1, 40), st.integers(0, 99))
def test_the_best_are_those_of_a_stable_sort(groups: int, n: int, k: int, seed: int) -> None:
    scores = -np.random.default_rng(seed).integers(0, 9, (groups, n)).astype(np.float32) / np.float32(4)
    assert best_first(scores, k).tolist() == np.argsort(-scores, axis=1, kind="stable")[:, :k].tolist()


@pytest.mark.parametrize("start", [1.0, 30.0, 700.0])
def test_the_limit_is_found_from_anywhere(start: float) -> None:
    low, high = limit(lambda rate: rate <= 100, start, 0.03)
    assert low <= 100 < high <= low * 1.03
    with pytest.raises(ValueError, match="is carried"):
        limit(lambda rate: True, start, 0.03)


def test_beams_get_the_best_candidates() -> None:
    model = FakeModel(4, 3.0, seed=2)
    rng = np.random.default_rng(0)
    base = -rng.random((2, 4)).astype(np.float32)
    requests = tuple(
        SelectionRequest(
            group_id=g,
            logits_start=4 * g,
            rows=4,
            choice=TopK(8, base[g], 4),
            processors=None,  # type: ignore[arg-type]
            prompt=np.zeros(1, np.int64),
            generated=None,
            num_generated=1,
        )
        for g in range(2)
    )
    none = np.empty(0, np.int64)
    plan = StepPlan(1, none, none, none, (), (), none, requests, BlockMoves.none())
    drawn = FakeModel(4, 3.0, seed=2)
    table = drawn._ladders[drawn._rng.integers(0, len(drawn._ladders), (2, 4)), :8]
    for g, result in enumerate(model.execute(plan).results):
        candidates = sorted((-float(base[g, r] + table[g, r, j]), r, j) for r in range(4) for j in range(8))[
            :8
        ]
        assert [(r, t) for _, r, t in candidates] == list(
            zip(result.rows.tolist(), result.tokens.tolist(), strict=True)
        )
        assert result.scores.tolist() == pytest.approx([-s for s, _, _ in candidates])


def fake_decoded(prompt: int, output: int, width: int, model: FakeModel) -> Decoded:
    base, parents = np.zeros((1, 1), np.float32), []
    for _ in range(output - 1):
        parent, base = model.beam_step(base, width)
        parents.append(parent[0])
    parents.append(np.empty(0, np.int32))
    return Decoded(prompt, tuple(parents), tuple(parents))  # type: ignore[arg-type]


def test_fake_beams_share_as_much_as_real_ones() -> None:
    """Against what SmolLM2 did on requests of the same lengths (records/memory.jsonl)."""
    lines = (RECORDS / "memory.jsonl").read_text().splitlines()
    real = [r["result"] for r in map(json.loads, lines) if r["benchmark"] == "memory"]
    beams = {r["width"]: r for r in real if r["kind"] == "beam" and r["trace"] == "alpaca"}
    assert set(beams) == {2, 4, 6, 8, 16, 32}
    for width, found in beams.items():
        model = FakeModel(width, simulate.SHARPNESS, seed=1)
        lengths = requests_of(TRACES["alpaca"], found["requests"], 0)
        assert len(lengths) == found["requests"]
        counts = [replay(fake_decoded(p, o, width, model), 16) for p, o in lengths]
        total = sum(counts[1:], counts[0])
        assert 1 - total.unique_blocks / total.unshared_blocks == pytest.approx(found["saving"], abs=0.06)


def test_forked_share_grows_with_the_beam() -> None:
    assert forked_share(1, 8.0) == 0
    assert 0 < forked_share(2, 8.0) < forked_share(8, 8.0) < 0.7


def test_command_line_records_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "simulate.jsonl"
    command = ["simulate", "--trace", "short", "--count", "30", "--rate", "50", "100", "--width", "2"]
    monkeypatch.setattr("sys.argv", [*command, "--system", "forest", "contiguous", "--record", str(file)])
    simulate.main()
    found = [json.loads(line)["result"] for line in file.read_text().splitlines()]
    assert [(r["system"], r["rate"]) for r in found] == [
        ("forest", 50.0), ("forest", 100.0), ("contiguous", 50.0), ("contiguous", 100.0)
    ]  # fmt: skip
    assert capsys.readouterr().out.count("served") == 4


@pytest.mark.parametrize(("count", "missed"), [(120, 12), (119, 11), (10, 1), (9, 0), (1_000_000, 100_000)])
def test_a_tenth_may_miss_the_target(count: int, missed: int) -> None:
    """Whoever is given up has missed too often to be carried."""
    assert simulate.missable(count) == missed
    assert 1 - missed / count >= simulate.ATTAINED > 1 - (missed + 1) / count


def test_bisection_and_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rate that is not carried is given up, and what is known of it recorded."""
    file, told = tmp_path / "simulate.jsonl", tmp_path / "so-far.jsonl"
    command = ["simulate", "--trace", "short", "--width", "4", "--seconds", "0.3", "--find", "--rate", "900"]
    command += ["--precision", "0.5", "--system", "unshared", "--token-target", "0.012"]
    monkeypatch.setattr("sys.argv", [*command, "--record", str(file), "--checkpoint", str(told)])
    monkeypatch.setattr(simulate, "CHECKPOINT_SECONDS", 0.0)
    simulate.main()
    found = [json.loads(line)["result"] for line in file.read_text().splitlines()]
    carried = {r["rate"] for r in found if r["met"] >= simulate.ATTAINED}
    given_up = {r["rate"] for r in found if r["left"]}
    assert max(carried) < min(given_up) <= 1.5 * max(carried)
    assert "carries" in capsys.readouterr().out
    so_far = [json.loads(line) for line in told.read_text().splitlines()]
    assert 0 < so_far[0]["finished"] < so_far[0]["requests"]


@pytest.mark.timeout(900)
def test_ten_thousand_requests() -> None:
    found = run("forest", trace=simulate.SHORT, count=10_000, rate=300.0)
    assert found["groups_a_step"] > 10
    assert found["goodput"] > 250
