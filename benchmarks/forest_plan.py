"""What the attention plan of a step costs: block tables to the node list that GPU kernels run from.

    python -m benchmarks.forest_plan [--repeats 50] [--record FILE]
    python -m benchmarks.forest_plan --block-size 1 4 16 32 [--repeats 50] [--record FILE]

Microseconds of the thread's own CPU time, numpy's plan and the compiled one in turn in one process, which
finds the caches full of other things; and then the compiled one alone, again and again. A fresh plan, as
beams need it at each step in which tables change; one whose contexts grow inside their last blocks; and one
of a step that changed nothing. Least and median of the repeats.

With --block-size, one beam in blocks of those sizes, by the block tables of the engine: parents drawn
uniformly at each of its tokens, the same ones for all sizes. Beside the times, what a layer of Llama 3.1 8B
in bfloat16 reads by the plan, and what its rows would read without sharing.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from benchmarks.record import record
from forkdecode.kv import BlockPool, BlockTable, bytes_moved
from forkdecode.kv.forest_items import ItemShape
from forkdecode.kv.forest_lists import Lister
from forkdecode.kv.forest_plan import ForestPlanner
from forkdecode.model.forest_lister import compiled_lister
from forkdecode.step import I32, DecodeRows

GOAL_US = 200
"""Of a fresh plan of 512 rows of 160 blocks."""
SIZE, SEED = 16, 0
SHAPE = ItemShape(SIZE, (4, 16), 4, 8, 132)
LAYER = {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "element_bytes": 2}
PLANS = ("fresh", "grown", "same")
LISTERS: dict[str, Lister | None] = {"numpy": None, "compiled": compiled_lister}
ALONE = "alone"
"""The compiled one without numpy's in between."""
WIDTH, PROMPT, TOKENS = 512, 2500, 71
"""Of the beam that is planned in blocks of several sizes: the last blocks of all are not full."""


@dataclass(frozen=True)
class Case:
    """The rows of one step, and the size of their blocks."""

    name: str
    make: Callable[[], list[DecodeRows]]
    block_size: int = SIZE
    width: int | None = None
    """Of the one beam that it is, in blocks of several sizes."""


def forked(rng: np.random.Generator, rows: int, columns: int, first: int) -> I32:
    """[rows, columns]: rows that have forked at random at the beginning of each of their blocks."""
    tails = np.empty((rows, 0), np.int32)
    for column in range(columns):
        fresh = rng.permutation(rows).astype(np.int32) + first + column * rows
        tails = np.column_stack([tails[rng.integers(0, rows, rows)], fresh])
    return tails.astype(np.int32)


def beam(columns: int) -> list[DecodeRows]:
    """512 rows of 160 blocks, the last `columns` of which are not all rows'."""
    tails = forked(np.random.default_rng(SEED), 512, columns, 1000)
    return [DecodeRows(0, np.arange(160 - columns, dtype=np.int32), tails, 159 * SIZE + 1)]


def groups(count: int, width: int, shared: int) -> list[DecodeRows]:
    """`count` beams with 20 blocks of prompt, the first `shared` of which eight of them have in common."""
    rng, found = np.random.default_rng(SEED), []
    for group in range(count):
        trunk = 100_000 + group * 20 + np.arange(20, dtype=np.int32)
        trunk[:shared] = 90_000 + group // 8 * shared + np.arange(shared)
        tails = forked(rng, width, 3, 3 * width * group)
        found.append(DecodeRows(width * group, trunk, tails, 22 * SIZE + 1))
    return found


def walked(width: int, prompt: int, tokens: int, block_size: int) -> list[DecodeRows]:
    """A beam after so many tokens, at each of which each row has gone on from any of the rows before."""
    rng = np.random.default_rng(SEED)
    table = BlockTable.open(BlockPool(prompt // block_size + width * 128, block_size))
    table.extend(prompt)
    table.advance(np.zeros(width, np.int32))
    for token in range(tokens):
        table.pool.begin_step()
        table.extend(1)
        if token + 1 < tokens:
            table.advance(rng.integers(0, width, width).astype(np.int32))
    return [DecodeRows(0, table.trunk, table.tails, table.length)]


CASES = (
    Case("512 rows of 160 blocks, 4 diverging", lambda: beam(4)),
    Case("512 rows of 160 blocks, 60 diverging", lambda: beam(60)),
    Case("64 beams of 8, 16 prompt blocks cached", lambda: groups(64, 8, 16)),
    Case("256 beams of 8", lambda: groups(256, 8, 0)),
)


def of_sizes(sizes: list[int]) -> list[Case]:
    """The same beam in blocks of these sizes."""
    name = f"{WIDTH} beams {TOKENS} tokens after {PROMPT:,}, blocks of"
    return [
        Case(f"{name} {size}", partial(walked, WIDTH, PROMPT, TOKENS, size), size, WIDTH) for size in sizes
    ]


def microseconds(work: Callable[[], object]) -> float:
    begin = time.thread_time()
    work()
    return (time.thread_time() - begin) * 1e6


def once(lister: Lister | None, case: Case, decodes: list[DecodeRows], invariant: bool) -> tuple[float, ...]:
    """A fresh plan, one that grew and one that didn't change."""
    rows = sum(d.rows for d in decodes)
    grown = [replace(d, context_len=d.context_len + 1) for d in decodes]
    planner = ForestPlanner(replace(SHAPE, block_size=case.block_size), invariant=invariant, lister=lister)
    # In blocks of one token nothing grows inside a block.
    following = decodes if case.block_size == 1 else grown
    return (
        microseconds(lambda: planner.plan((), decodes, rows)),
        microseconds(lambda: planner.plan((), following, rows)),
        microseconds(lambda: planner.plan((), following, rows)),
    )


def measured(case: Case, repeats: int) -> Iterator[dict[str, Any]]:
    """A result for each way to plan the case."""
    decodes = case.make()
    for invariant in (True, False):
        times: dict[str, list[tuple[float, ...]]] = {way: [] for way in LISTERS}
        for _ in range(repeats + 1):
            for way, lister in LISTERS.items():
                times[way].append(once(lister, case, decodes, invariant))
        times[ALONE] = [once(LISTERS["compiled"], case, decodes, invariant) for _ in range(repeats + 1)]
        for way, found in times.items():
            columns = list(zip(*found[1:], strict=True))
            yield {
                "step": case.name,
                "block_size": case.block_size,
                "width": case.width,
                "splits": "fixed" if invariant else "even",
                "by": way,
                "least_us": dict(zip(PLANS, map(min, columns), strict=True)),
                "median_us": {plan: float(np.median(c)) for plan, c in zip(PLANS, columns, strict=True)},
                **moved(case, decodes, invariant),
            }


def moved(case: Case, decodes: list[DecodeRows], invariant: bool) -> dict[str, Any]:
    """Bytes of a layer, and how many items and parts a plan has."""
    planner = ForestPlanner(replace(SHAPE, block_size=case.block_size), invariant=invariant)
    plan = planner.plan((), decodes, sum(d.rows for d in decodes))
    found = bytes_moved(plan, **LAYER)
    items = len(plan.small_items) + len(plan.large_items)
    return {"plan_bytes": found.forest, "paged_bytes": found.paged, "items": items, "parts": plan.num_parts}


def shown(result: dict[str, Any]) -> str:
    least, median = result["least_us"], result["median_us"]
    fresh, grown, same = (f"{least[plan]:.0f} / {median[plan]:.0f}" for plan in PLANS)
    where = f"{result['step']:46}{result['splits']:>8}{result['by']:>10}"
    return f"{where}{fresh:>14}{grown:>12}{same:>12}{result['paged_bytes'] / result['plan_bytes']:>8.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=50, help="of each, in turn (default 50)")
    parser.add_argument("--block-size", type=int, nargs="+", help="plan one beam in blocks of these sizes")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    print(f"goal: a fresh plan of 512 rows of 160 blocks in {GOAL_US} us. Least / median us\n")
    print(f"{'':46}{'splits':>8}{'by':>10}{'fresh':>14}{'grown':>12}{'same':>12}{'gain':>8}")
    settings = {"repeats": options.repeats, "seed": SEED, "goal_us": GOAL_US}
    for case in of_sizes(options.block_size) if options.block_size else CASES:
        for result in measured(case, options.repeats):
            print(shown(result))
            if options.record:
                record("forest_plan", {**settings, **result}, options.record)


if __name__ == "__main__":
    main()
