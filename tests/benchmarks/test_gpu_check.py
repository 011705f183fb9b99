"""gpu_check's command, led through parts that fail, hang and die, by processes that stand in for its own."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu_check
from benchmarks.gpu import packages
from benchmarks.gpu import parts as part_process
from benchmarks.gpu.bench import allowed_error, within
from benchmarks.gpu.cases import CEILINGS, FULL, Part, parts
from benchmarks.gpu.goals import goal_table, goals, part_row
from benchmarks.gpu.run import Worker, Workers, results
from forkdecode_kernels.reference.paged_decode import paged_decode

WORKER = """
import json, os, sys, time
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    name = asked["part"]
    if name == "hangs":
        time.sleep(600)
    if name == "dies":
        os._exit(9)
    found = {"ok": name != "fails", "pid": os.getpid(), "limits": asked["limits"], "seconds": 0.5}
    if name == "ceilings":
        found |= {"bandwidth": 2.0, "flops": 3.0}
    if name == "fails":
        found["error"] = "Traceback\\nRuntimeError: CUDA error: an illegal memory access"
    print(json.dumps(found), flush=True)
"""
COMMAND = [sys.executable, "-S", "-c", WORKER]


def named(*names: str, seconds: float = 20.0) -> list[Part]:
    return [Part(name, "", "", (), seconds) for name in names]


def found_of(steps: list[Part], *, alone: bool = True, seconds: float = 60.0) -> dict[str, Any]:
    return {part.name: what for part, what in results(steps, Workers(COMMAND, {}, alone), seconds)}


class TestParts:
    def test_each_has_a_process_of_its_own(self) -> None:
        found = found_of(named("a", "b", "c"))
        assert len({what["pid"] for what in found.values()}) == 3

    def test_in_a_rehearsal_one_serves_all(self) -> None:
        found = found_of(named("a", "b", "c"), alone=False)
        assert len({what["pid"] for what in found.values()}) == 1

    def test_while_one_is_quiet_the_next_does_not_import(self, monkeypatch: pytest.MonkeyPatch) -> None:
        told: list[str] = []
        start, ask = Workers._start, Worker.ask

        def started(workers: Workers) -> Worker:
            told.append("start")
            return start(workers)

        def asked(worker: Worker, question: Mapping[str, Any], seconds: float) -> dict[str, Any]:
            told.append(question["part"])
            return ask(worker, question, seconds)

        monkeypatch.setattr(Workers, "_start", started)
        monkeypatch.setattr(Worker, "ask", asked)
        found_of([*named("a"), Part("quiet", "", "", quiet=True), *named("b")])
        assert told == ["start", "start", "a", "quiet", "start", "b"]

    @pytest.mark.parametrize("alone", [True, False])
    def test_what_fails_costs_itself_alone(self, alone: bool) -> None:
        hangs = Part("hangs", "", "", (), 0.3)
        found = found_of([*named("a", "fails"), hangs, *named("b", "dies", "c")], alone=alone)
        assert [found[name]["ok"] for name in ("a", "b", "c")] == [True] * 3
        assert "illegal memory access" in found["fails"]["error"]
        assert found["hangs"]["error"] == "no answer after 0.3 s"
        assert found["dies"]["error"] == "its process ended with status 9"

    def test_later_ones_know_the_ceilings(self) -> None:
        found = found_of(named("a", CEILINGS, "b", "fails"))
        assert found["a"]["limits"] == {}
        assert found["b"]["limits"] == found["fails"]["limits"] == {"bandwidth": 2.0, "flops": 3.0}

    def test_a_process_that_does_not_start_is_told_of(self) -> None:
        found = dict(results(named("a"), Workers([sys.executable, "-S", "-c", "0"], {}, True), 60.0))
        assert [what["error"] for what in found.values()] == ["its process ended with status 0"]

    def test_what_has_no_time_left_is_left_out(self) -> None:
        began = time.monotonic()
        found = found_of(named("a", "hangs", "b"), seconds=1.0)
        assert time.monotonic() - began < 20
        assert "no answer" in found["hangs"]["error"]
        assert found["b"]["error"] == "left out: the time was up"


class TestCommand:
    def run(self, out: Path, *words: str) -> tuple[int, dict[str, Any]]:
        status = gpu_check.main(["--json", str(out), *words], COMMAND)
        return status, json.loads(out.read_text())

    def test_tells_and_writes_whatever_there_is(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(gpu_check, "parts", lambda rehearse: named("a", "dies", "b"))
        status, report = self.run(tmp_path / "check.json")
        assert status == 1
        assert [what["ok"] for what in report["parts"].values()] == [True, False, True]
        told = capsys.readouterr().out
        assert (
            told.count("| dies | its process ended with status 9 | NO |") == 2
        )  # when it died, and at the end
        assert told.count("not measured") == len(report["goals"])

    def test_goals_that_are_missed_are_no_fault(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(gpu_check, "parts", lambda rehearse: named("a"))
        assert self.run(tmp_path / "check.json")[0] == 2
        assert self.run(tmp_path / "check.json", "--rehearse")[0] == 0

    def test_parts_can_be_chosen(self) -> None:
        chosen = [part.name for part in gpu_check.selected(parts(False), ["select", "engine,"])]
        assert chosen == ["environment", CEILINGS, "selection", "engine, exact", "engine, compile=layers"]

    def test_each_part_can_be_found(self) -> None:
        """By its name in the source: to import them all takes seconds, and the rehearsal does."""
        for rehearse in (False, True):
            every = parts(rehearse)
            assert len({part.name for part in every}) == len(every)
            for part in every:
                spec = find_spec(part.module)
                assert spec is not None
                assert spec.origin is not None
                assert f"\ndef {part.function}(" in Path(spec.origin).read_text()


class TestPackages:
    @pytest.fixture
    def without(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """platformdirs and llguidance."""
        monkeypatch.setattr(
            "importlib.util.find_spec",
            lambda name: None if name in ("platformdirs", "llguidance") else find_spec("json"),
        )

    @pytest.mark.usefixtures("without")
    def test_what_is_missing_is_said_with_the_parts_that_need_it(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert gpu_check.main(["--packages", "--only", "block", "selection", "engine,"]) == 1
        told = capsys.readouterr().out
        assert "| platformdirs | MISSING | selection; engine, exact; engine, compile=layers |" in told
        assert "| llguidance | MISSING | engine, exact; engine, compile=layers |" in told
        assert told.count("MISSING") == 2

    @pytest.mark.usefixtures("without")
    def test_what_needs_it_is_left_out_and_nothing_else(self) -> None:
        steps = [Part(name, f"benchmarks.gpu.{name}", "") for name in ("moves", "attention", "engine")]
        found = found_of(steps)
        assert found["moves"]["ok"]
        assert found["attention"]["error"] == "left out: platformdirs not installed"
        assert found["engine"]["error"] == "left out: platformdirs, llguidance not installed"

    def test_each_part_says_what_it_needs(self) -> None:
        assert {part.module for rehearse in (False, True) for part in parts(rehearse)} == set(packages.NEEDED)


class TestGoals:
    def all_met(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {
            f"attention, {work.name}": {"share_of_ceiling": 0.75, "times_paged": 1.04} for work in FULL
        }
        return found | {"selection": {"times_one_read": 1.9}, "engine": {"idle_share_of_8b_step": 0.01}}

    def judged(self, found: dict[str, dict[str, Any]]) -> list[bool]:
        return [goal.passed for goal in goals(found, {work.name: work.judged for work in FULL})]

    def test_are_those_of_the_kernels(self) -> None:
        passed = self.judged(self.all_met())
        assert passed == [True] * len(passed)
        assert len(passed) == sum(work.judged for work in FULL) + 3

    @pytest.mark.parametrize(
        ("part", "field", "value"),
        [
            ("attention, beam 512 on 2,048", "share_of_ceiling", 0.69),
            ("attention, 64 rows of 2,048, nothing shared", "times_paged", 1.06),
            ("selection", "times_one_read", 2.1),
            ("engine", "idle_share_of_8b_step", 0.06),
        ],
    )
    def test_are_missed_by_what_is_worse_not_known_or_missing(
        self, part: str, field: str, value: float
    ) -> None:
        for worse in (value, math.nan):
            found = self.all_met()
            found[part] = found[part] | {field: worse}
            assert self.judged(found).count(False) == 1
        del found[part]
        assert False in self.judged(found)

    def test_tables_take_what_is_missing(self) -> None:
        names = [part.name for part in parts(False)]
        for found in ({}, {"ok": True}, {"error": "Traceback\nRuntimeError: a | b"}, {"seconds": 1.0}):
            for name in names:
                assert part_row(name, found).count("|") == 5
        assert "not measured" in goal_table(goals({}, {"x": True}))


class TestErrors:
    def test_nan_is_seen_wherever_it_is(self) -> None:
        assert within({"a": 0.1, "b": 0.2}, 0.2)
        assert not within({"a": 0.1, "b": math.nan}, 0.2)
        assert not within({"a": 0.1, "b": 0.3}, 0.2)

    def test_a_lost_block_of_many_is_seen(self) -> None:
        torch.manual_seed(0)
        rows, blocks, size = 4, 136, 16
        query = torch.randn(8, rows, 128).to(torch.bfloat16)
        kv = torch.randn(2, 2, rows * blocks, size, 128).to(torch.bfloat16)
        tables = torch.randperm(rows * blocks).view(rows, blocks).int()
        lengths = torch.full((rows,), blocks * size, dtype=torch.int32)
        options: dict[str, Any] = {"scale": 128**-0.5, "window": None, "softcap": None, "sinks": None}
        exact = paged_decode(query, kv, tables, lengths, **options).float()
        lost = paged_decode(query, kv, tables, lengths - size, **options).float()
        assert not within({"lost": float((lost - exact).abs().max())}, allowed_error(exact, torch.bfloat16))


class TestProcess:
    def test_what_a_part_raises_is_its_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(*_: object) -> dict[str, Any]:
            raise RuntimeError("Triton Error [CUDA]: out of resources")

        monkeypatch.setattr(part_process, "run", fails)
        told = part_process.answer(Part("a", "", ""), True, {})
        assert not told["ok"]
        assert "fails" in told["error"]
        assert "out of resources" in told["error"]

    def test_a_device_that_answers_no_more_ends_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert part_process.alive(rehearse=True)

        def lost(*_: object, **__: object) -> None:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        monkeypatch.setattr(torch, "zeros", lost)
        assert not part_process.alive(rehearse=False)
