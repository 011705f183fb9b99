"""Replay: a fault of the engine, now or when it was recorded, is found at the step where it happened."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forkdecode import Beam, Greedy, Sample
from forkdecode.engine.core import Engine
from forkdecode.kv import block_table, table_batch
from forkdecode.kv.copy_on_write import NO_COPIES, copy_on_write
from forkdecode.sampling.select import select
from forkdecode.scheduler.preemption import Preemptor
from forkdecode.step import StepOutput, StepPlan
from tests.engine.journals import journaled
from tests.engine.replays import broken, plans
from tests.scheduler.engines import VOCAB, request


def no_copies(monkeypatch: pytest.MonkeyPatch, after: int = 0) -> None:
    """Rows write to blocks that others hold too: the fault that copy-on-write is there to prevent."""
    real, calls = copy_on_write, itertools.count()

    def forgetful(*args: Any) -> Any:
        return real(*args) if next(calls) < after else NO_COPIES

    for module in (block_table, table_batch):
        monkeypatch.setattr(module, "copy_on_write", forgetful)


def test_a_fault_of_this_version_is_located_in_a_good_journal(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a fix is tested with: the record is right, the scheduler is not."""
    step = next(s for s, p in plans(journal) if len(p["copies"]["source"]))
    no_copies(monkeypatch)
    found = broken(journal)
    assert (found.step, found.where) == (step, "plan")
    assert found.field.startswith("copies")
    assert found.requests


def blind(engine: Engine) -> None:
    """The toy model would notice that something is wrong; a real one doesn't."""

    def execute(plan: StepPlan) -> StepOutput:
        logits = torch.randn(
            len(plan.logits_index), VOCAB, generator=torch.Generator().manual_seed(plan.step)
        )
        return StepOutput(plan.step, tuple(select(logits, plan.selections)))

    runner: Any = engine._runner
    runner.execute = execute


def recorded_with_fault(path: Path) -> None:
    engine = journaled(path)
    engine.submit(request("a", range(3, 9), Sample(n=3, seed=1), max_tokens=8))
    engine.submit(request("b", range(3, 10), Greedy(), max_tokens=8))
    blind(engine)
    while engine.has_work:
        engine.step()
    engine.close()


def test_a_fault_that_was_recorded_breaks_a_rule_where_it_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a bug report is: record and replay have the same fault, and agree."""
    no_copies(monkeypatch)
    recorded_with_fault(tmp_path / "j")
    found = broken(tmp_path / "j")
    assert found.where == "rules"
    assert "a" in found.requests
    step = next(s for s, p in plans(tmp_path / "j") if any(len(d["tails"]) == 3 for d in p["decodes"]))
    assert found.step == step


def test_a_swap_that_mixes_up_blocks_is_found_by_what_rows_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All counts are right, the contents are not."""
    real = Preemptor.resume

    def mixing(self: Preemptor, group: Any, cached: Any, moves: Any) -> int:
        before = len(moves.swap_in)
        tokens = real(self, group, cached, moves)
        for i in range(before, len(moves.swap_in)):
            move = moves.swap_in[i]
            moves.swap_in[i] = dataclasses.replace(move, target=np.roll(move.target, 1))
        return tokens

    monkeypatch.setattr(Preemptor, "resume", mixing)
    engine = journaled(tmp_path / "j", num_blocks=40, host_slots=40, preemption="swap")
    blind(engine)
    for i in range(4):
        engine.submit(request(f"r{i}", range(3, 14 + i), Sample(n=4, seed=i), max_tokens=20))
    while engine.has_work:
        engine.step()
    assert engine.stats().swapped_blocks
    engine.close()
    step = next(s for s, p in plans(tmp_path / "j") if len(p["swap_in"]["target"]))
    found = broken(tmp_path / "j")
    assert (found.step, found.where) == (step, "rules")
    assert "reads" in found.got
    assert "should be" in found.got
    assert len(found.requests) == 1


def test_an_engine_that_died_is_a_break_at_the_step_that_killed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = journaled(tmp_path / "j")
    engine.submit(request("a", [3, 4], Beam(width=2), max_tokens=5))
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(engine.scheduler, "commit", lambda output: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.step()
    engine.close()
    found = broken(tmp_path / "j")
    assert (found.step, found.where, found.field) == (2, "died", "commit")
    assert "ZeroDivisionError" in found.got
    assert "the replay goes on" in found.got
    with monkeypatch.context() as patch:
        patch.setattr("forkdecode.scheduler.scheduler.commit_selection", lambda *a: 1 / 0)
        assert broken(tmp_path / "j").where == "events"  # here it fails a group only, and a step earlier
