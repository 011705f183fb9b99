"""The regression gate: this tree costs what was committed, and the gate would notice if it did not."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import gate
from benchmarks.gate_counters import count_calls, count_lines
from forkdecode.kv.block_table import BlockTable
from forkdecode.types import Beam, Sample


@pytest.mark.parametrize("work", gate.WORKS, ids=lambda work: work.name)
def test_costs_are_as_committed(work: gate.Work) -> None:
    """After a change on purpose: python -m benchmarks.gate --update."""
    expected = json.loads(gate.EXPECTED.read_text())
    assert not gate.differences({work.name: expected[work.name]}, {work.name: gate.measure(work)})


def test_every_committed_workload_is_run() -> None:
    assert json.loads(gate.EXPECTED.read_text()).keys() == {work.name for work in gate.WORKS}


@pytest.mark.parametrize("strategy", [Beam, Sample])
@pytest.mark.parametrize("counter", ["calls_per_group_step", "lines_per_group_step"])
def test_python_a_step_does_not_grow_with_the_rows(strategy: type[Beam] | type[Sample], counter: str) -> None:
    """What 32 more steps cost: the records that a request returns in the end do take a loop over them."""

    def more_steps(rows: int) -> float:
        short, long = (gate.measure(gate.Work("x", [(64, strategy(rows), n)])) for n in (33, 65))
        return long[counter] * long["group_steps"] - short[counter] * short["group_steps"]

    assert more_steps(128) < 1.1 * more_steps(4)


def test_the_gate_notices_tables_that_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    work = gate.Work("beam", [(48, Beam(4), 20)])
    before = gate.measure(work)
    advance = BlockTable.advance

    def copying(table: BlockTable, parents: np.ndarray) -> None:
        advance(table, parents)
        if not len(table.tails):
            return
        fresh = table.pool.allocate(table.tails.size).reshape(table.tails.shape)
        table.pool.release(table.tails)
        table.tails = fresh

    monkeypatch.setattr(BlockTable, "advance", copying)
    changed = gate.differences({"beam": before}, {"beam": gate.measure(work)})
    named = {line.split()[1] for line in changed}
    assert {"unique_block_steps", "copies", "forest_kv_bytes", "saving"} <= named


def test_differences_name_values_that_changed_came_or_went() -> None:
    expected = {"a": {"copies": 10, "lines_per_group_step": 100.0, "gone": 1}}
    found = copy.deepcopy(expected)
    assert gate.differences(expected, found) == []
    found["a"] = {"copies": 11, "lines_per_group_step": 109.0, "new": 2}
    assert gate.differences(expected, found) == [
        "a: copies was 10, is 11 (+10.0%)",
        "a: gone was 1, is None",
        "a: new was None, is 2",
    ]
    found["a"]["lines_per_group_step"] = 111.0
    assert len(gate.differences(expected, found)) == 4


def test_update_writes_what_the_gate_then_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gate, "EXPECTED", tmp_path / "expected.json")
    monkeypatch.setattr(gate, "WORKS", [gate.Work("small", [(20, Beam(2), 8)])])
    monkeypatch.setattr(sys, "argv", ["gate", "--update"])
    gate.main()
    monkeypatch.setattr(sys, "argv", ["gate"])
    gate.main()
    assert "values of 1 workloads are as committed" in capsys.readouterr().out
    monkeypatch.setattr(gate, "WORKS", [gate.Work("small", [(20, Beam(3), 8)])])
    with pytest.raises(SystemExit, match="not as committed"):
        gate.main()


def looped(n: int) -> int:
    total = 0
    for i in range(n):
        total += abs(i)
    return total


def test_counters_count_what_lies_in_the_folder_alone() -> None:
    here = Path(__file__).parent
    assert count_calls(lambda: [looped(3), looped(4)], here) == 2
    assert count_calls(lambda: json.loads("[1]"), here) == 0
    few, many = (count_lines(lambda n=n: looped(n), here) for n in (5, 10))
    assert many - few == 10
