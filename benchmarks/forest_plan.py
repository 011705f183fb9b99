"""What the attention plan of a step costs: block tables to the node list that GPU kernels run from.

    python -m benchmarks.forest_plan [--repeats 50] [--record FILE]

Microseconds of the thread's own CPU time, numpy's plan and the compiled one in turn in one process, which
finds the caches full of other things; and then the compiled one alone, again and again. A fresh plan, as
beams need it at each step in which tables change; one whose contexts grow inside their last blocks; and one
of a step that changed nothing. Least and median of the repeats.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from benchmarks.record import record
from forkdecode.kv.forest_items import ItemShape
from forkdecode.kv.forest_lists import Lister
from forkdecode.kv.forest_plan import ForestPlanner
from forkdecode.model.forest_lister import compiled_lister
from forkdecode.step import I32, DecodeRows

GOAL_US = 200
"""Of a fresh plan of 512 rows of 160 blocks."""
SIZE, SEED = 16, 0
SHAPE = ItemShape(SIZE, (4, 16), 4, 8, 132)
PLANS = ("fresh", "grown", "same")
LISTERS: dict[str, Lister | None] = {"numpy": None, "compiled": compiled_lister}
ALONE = "alone"
"""The compiled one without numpy's in between."""


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


CASES: dict[str, Callable[[], list[DecodeRows]]] = {
    "512 rows of 160 blocks, 4 diverging": lambda: beam(4),
    "512 rows of 160 blocks, 60 diverging": lambda: beam(60),
    "64 beams of 8, 16 prompt blocks cached": lambda: groups(64, 8, 16),
    "256 beams of 8": lambda: groups(256, 8, 0),
}


def microseconds(work: Callable[[], object]) -> float:
    begin = time.thread_time()
    work()
    return (time.thread_time() - begin) * 1e6


def once(lister: Lister | None, decodes: list[DecodeRows], invariant: bool) -> tuple[float, float, float]:
    """A fresh plan, one that grew and one that didn't change."""
    rows = sum(d.rows for d in decodes)
    grown = [replace(d, context_len=d.context_len + 1) for d in decodes]
    planner = ForestPlanner(SHAPE, invariant=invariant, lister=lister)
    return (
        microseconds(lambda: planner.plan((), decodes, rows)),
        microseconds(lambda: planner.plan((), grown, rows)),
        microseconds(lambda: planner.plan((), grown, rows)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=50, help="of each, in turn (default 50)")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    print(f"goal: a fresh plan of 512 rows of 160 blocks in {GOAL_US} us. Least / median us\n")
    print(f"{'':40}{'splits':>8}{'by':>10}{'fresh':>14}{'grown':>12}{'same':>12}")
    for name, make in CASES.items():
        decodes = make()
        for invariant in (True, False):
            times: dict[str, list[tuple[float, float, float]]] = {way: [] for way in LISTERS}
            for _ in range(options.repeats + 1):
                for way, lister in LISTERS.items():
                    times[way].append(once(lister, decodes, invariant))
            times[ALONE] = [once(LISTERS["compiled"], decodes, invariant) for _ in range(options.repeats + 1)]
            for way, found in times.items():
                columns = list(zip(*found[1:], strict=True))
                texts = [f"{min(c):.0f} / {np.median(c):.0f}" for c in columns]
                splits = "fixed" if invariant else "even"
                print(f"{name:40}{splits:>8}{way:>10}{texts[0]:>14}{texts[1]:>12}{texts[2]:>12}")
                if options.record:
                    least = dict(zip(PLANS, map(min, columns), strict=True))
                    usual = {plan: float(np.median(c)) for plan, c in zip(PLANS, columns, strict=True)}
                    settings = {"step": name, "splits": splits, "by": way, "repeats": options.repeats}
                    settings |= {"seed": SEED, "goal_us": GOAL_US}
                    record("forest_plan", settings | {"least_us": least, "median_us": usual}, options.record)


if __name__ == "__main__":
    main()
