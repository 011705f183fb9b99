"""A regression gate without a stopwatch: what decoding costs in operations, against committed values.

    python -m benchmarks.gate            # fails, and says what changed, where a value is not as committed
    python -m benchmarks.gate --update   # writes what it measures to gate_expected.json

The real scheduler, block pool, strategies and forest plan run fixed requests on a model whose answers
are the same bits everywhere (gate_model.py). Counted are steps, blocks, copies, bytes that attention on a
GPU moves by its plan and would move without sharing, and the Python that the control plane runs. All are
exact but for the last, which versions of Python count a little differently (TOLERANCE).

A value that got worse is a regression; one that got better is a reason to run --update and to commit
the new values with what made them better.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import forkdecode
from benchmarks.gate_counters import count_calls, count_lines
from benchmarks.gate_model import ExactModel
from forkdecode.config import EngineConfig
from forkdecode.kv.bytes_moved import plan_bytes
from forkdecode.kv.forest_items import ItemShape
from forkdecode.kv.forest_plan import ForestPlanner
from forkdecode.scheduler.preemption import PreemptionCost
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.scheduler.scheduler import Scheduler
from forkdecode.step import ProcessorSpec, StepPlan
from forkdecode.types import Beam, BestOf, Greedy, Options, Sample, Strategy

EXPECTED = Path(__file__).parent / "gate_expected.json"
PACKAGE = Path(forkdecode.__file__).parent
TOLERANCE = {"calls_per_group_step": 0.002, "lines_per_group_step": 0.1}
"""Relative; what is not here is exact. Python 3.11 to 3.13 differ by one call a run."""

HEADS, KV_HEADS, HEAD_DIM, ELEMENT = 32, 8, 128, 2
"""Of the layer that bytes are counted for: Llama 3.1 8B in bfloat16."""
ITEMS = ItemShape(16, (4, 16), HEADS // KV_HEADS, KV_HEADS, 132)


@dataclass(frozen=True)
class Work:
    """Requests (prompt tokens, strategy, new tokens) that one engine runs together."""

    name: str
    requests: Sequence[tuple[int, Strategy, int]]
    blocks: int = 20_000
    host_slots: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    shared_prompt: bool = False


MIXED: list[tuple[int, Strategy, int]] = [
    (40, Greedy(), 48),
    (75, Beam(4), 32),
    (110, Sample(6, seed=3), 40),
    (160, BestOf(8, n=2, seed=4), 24),
    (300, Beam(8), 40),
    (33, Beam(2, length_penalty=2.0), 60),
]
WORKS = (
    Work("greedy", [(100, Greedy(), 64)]),
    Work("beam 8", [(200, Beam(8), 64)]),
    Work("beam 64", [(1000, Beam(64), 48)]),
    Work("sample 8", [(200, Sample(8, seed=1), 64)]),
    Work("sample 64", [(1000, Sample(64, seed=1), 48)]),
    Work("mixed", MIXED * 3),
    Work("same prompt", [(300, Beam(4), 32), (300, Sample(4, seed=2), 32)] * 4, shared_prompt=True),
    Work("recompute", MIXED * 2, blocks=180, settings={"preemption": "recompute"}),
    Work("swap", MIXED * 2, blocks=180, host_slots=400, settings={"preemption": "swap"}),
)


def request(index: int, prompt_len: int, strategy: Strategy, tokens: int, shared: bool) -> DecodeRequest:
    none = np.empty(0, np.int64)
    first = 0 if shared else 100_000 * (index + 1)
    return DecodeRequest(
        request_id=str(index),
        prompt=np.arange(first, first + prompt_len),
        strategy=strategy,
        options=Options(max_tokens=tokens),
        seed=index,
        processors=ProcessorSpec(),
        eos_ids=none,
        stop_ids=none,
        automaton=None,
    )


class Run:
    """One engine on one piece of work."""

    def __init__(self, work: Work) -> None:
        config = EngineConfig(**{"watermark": 0.0, "overcommit": True, **work.settings})
        cost = PreemptionCost(1.0, 1.0)
        layers = ((None, 2 * KV_HEADS * HEAD_DIM * ELEMENT),)
        self._scheduler = Scheduler(
            config, work.blocks, work.host_slots, cost, b"gate", clock=lambda: 0.0, layers=layers
        )
        self._model = ExactModel()
        self._planner = ForestPlanner(ITEMS)
        self.group_steps = self.forks = self.parts = self.items = 0
        self._histories = []
        for index, (prompt_len, strategy, tokens) in enumerate(work.requests):
            self._scheduler.add(request(index, prompt_len, strategy, tokens, work.shared_prompt))
            self._histories.append(self._scheduler._groups[str(index)].history)

    def steps(self) -> None:
        """All of them, the control plane alone."""
        while self._scheduler.has_work:
            plan = self._scheduler.schedule()
            if plan is not None:
                self.group_steps += len(plan.decodes)
                self._scheduler.commit(self._model.execute(plan))

    def steps_with_attention(self) -> None:
        """All of them, each planned for attention; checks every block count on the way."""
        while self._scheduler.has_work:
            plan = self._scheduler.schedule()
            if plan is not None:
                self.group_steps += len(plan.decodes)
                moved = self._plan_attention(plan)
                self._scheduler.commit(replace(self._model.execute(plan), attention_bytes=moved))
            self._scheduler.check()
        parents = [step.parents for history in self._histories for step in history._steps]
        self.forks = sum(len(p) - len(np.unique(p)) for p in parents)

    def _plan_attention(self, plan: StepPlan) -> int:
        """What a layer moves by it."""
        forest = self._planner.plan(plan.segments, plan.decodes, len(plan.token_ids))
        self.parts += forest.num_parts
        self.items += len(forest.small_items) + len(forest.large_items)
        return plan_bytes(
            forest, num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, element_bytes=ELEMENT
        )

    def counters(self) -> dict[str, float]:
        stats = self._scheduler.stats()
        return {
            "steps": stats.steps,
            "group_steps": self.group_steps,
            "generated_tokens": stats.generated_tokens,
            "unique_block_steps": stats.unique_block_steps,
            "unshared_block_steps": stats.unshared_block_steps,
            "wasted_slot_steps": stats.wasted_slot_steps,
            "forks": self.forks,
            "copies": stats.copies,
            "preemptions": stats.preemptions,
            "swapped_blocks": stats.swapped_blocks,
            "recomputed_tokens": stats.recomputed_tokens,
            "prefill_tokens": stats.prefill_tokens,
            "cached_prompt_tokens": stats.cached_prompt_tokens,
            "naive_kv_bytes": stats.naive_kv_bytes,
            "paged_kv_bytes": stats.paged_kv_bytes,
            "forest_kv_bytes": stats.forest_kv_bytes,
            "attention_items": self.items,
            "attention_parts": self.parts,
        }


def measure(work: Work) -> dict[str, float]:
    """The counters of one piece of work. It runs four times: the first warms caches of the package up."""
    Run(work).steps()
    run = Run(work)
    run.steps_with_attention()
    found = run.counters()
    calls = count_calls(Run(work).steps, PACKAGE)
    lines = count_lines(Run(work).steps, PACKAGE)
    ratios = {
        "saving": 1 - found["unique_block_steps"] / found["unshared_block_steps"],
        "copies_per_fork": found["copies"] / found["forks"] if found["forks"] else 0.0,
        "blocks_per_token": found["unique_block_steps"] / found["generated_tokens"],
        "read_gain": found["paged_kv_bytes"] / found["forest_kv_bytes"],
        "calls_per_group_step": calls / run.group_steps,
        "lines_per_group_step": lines / run.group_steps,
    }
    return found | {name: round(value, 6) for name, value in ratios.items()}


def differences(expected: dict[str, dict[str, float]], found: dict[str, dict[str, float]]) -> list[str]:
    """A line for each value that is not as expected."""
    lines = []
    for work in sorted(expected.keys() | found.keys()):
        before, now = expected.get(work, {}), found.get(work, {})
        for name in sorted(before.keys() | now.keys()):
            a, b = before.get(name), now.get(name)
            if a is None or b is None or abs(a - b) > TOLERANCE.get(name, 0.0) * abs(a):
                change = f" ({b / a - 1:+.1%})" if a and b is not None else ""
                lines.append(f"{work}: {name} was {a}, is {b}{change}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--update", action="store_true", help=f"write {EXPECTED.name}")
    args = parser.parse_args()
    found = {work.name: measure(work) for work in WORKS}
    if args.update:
        EXPECTED.write_text(json.dumps(found, indent=1) + "\n")
        return
    changed = differences(json.loads(EXPECTED.read_text()), found)
    for line in changed:
        print(line)
    if changed:
        raise SystemExit(f"{len(changed)} values are not as committed")
    print(f"{sum(map(len, found.values()))} values of {len(found)} workloads are as committed")


if __name__ == "__main__":
    main()
