"""What one fork/prune step costs in block tables and reference counts, without any model.

A step is what the scheduler asks of the KV layer for a beam group: `extend(1)` (slots, copy-on-write,
new blocks) and `advance(parents)`. Parents are drawn uniformly, so that about 37 % of the rows die in each
step; they are drawn outside the timed part. The median shows the usual step; the mean includes those in
which all rows cross a block boundary and take a new block each, and those that promote shared blocks.
Times are the thread's own CPU time: on a busy machine wall time counts other programs' turns.

    python -m benchmarks.control_plane [--width 512] [--prompts 250 2500 25000] [--block-size 16 ...]
        [--record FILE]

Besides, while each step runs: slots of the blocks that the group holds, and the share of them without a
token.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")

import numpy as np  # noqa: E402 - the thread count is read at import

from benchmarks.record import record  # noqa: E402
from forkdecode.kv import BlockPool, BlockTable, PrefixCache  # noqa: E402
from forkdecode.kv.forest import unused_slots  # noqa: E402

GOAL_US = 150.0
SEED = 0
"""Of the parents."""


@dataclass(frozen=True)
class Cost:
    """Microseconds of CPU time a step. columns: the widest tails seen, in blocks. slots_mean: of the blocks
    held. waste: share of these that held no token."""

    prompt: int
    block_size: int
    median: float
    mean: float
    p99: float
    boundary_median: float
    extend_median: float
    advance_median: float
    copies_mean: float
    columns: int
    slots_mean: float
    waste: float


@dataclass
class Group:
    """One beam group over a cached prompt, with what its steps have cost so far."""

    prompt: int
    pool: BlockPool
    table: BlockTable
    rng: np.random.Generator
    samples: list[tuple[float, float, bool, int]]
    held: list[tuple[int, int]]
    columns: int = 0

    @staticmethod
    def start(prompt: int, width: int, block_size: int, seed: int) -> Group:
        pool = BlockPool(prompt // block_size + width * 128, block_size)
        cache = PrefixCache(pool, b"benchmark")
        table = BlockTable.open(pool)
        table.extend(prompt)
        cache.insert(np.arange(prompt), table.row_blocks(0))
        table.advance(np.zeros(width, np.int32))
        return Group(prompt, pool, table, np.random.default_rng(seed), [], [])

    def step(self) -> None:
        table, width = self.table, self.table.rows
        parents = self.rng.integers(0, width, width).astype(np.int32)
        boundary = table.length % self.pool.block_size == 0
        begin = time.thread_time()
        self.pool.begin_step()
        extension = table.extend(1)
        extended = time.thread_time()
        self.columns = max(self.columns, table.tails.shape[1])
        self.held.append((table.num_unique * self.pool.block_size, unused_slots(table)))
        middle = time.thread_time()
        table.advance(parents)
        end = time.thread_time()
        self.samples.append((extended - begin, end - middle, boundary, len(extension.copies)))

    def cost(self, warmup: int) -> Cost:
        columns = zip(*self.samples[warmup:], strict=True)
        extend, advance, boundary, copies = (np.array(column) for column in columns)
        total = (extend + advance) * 1e6
        slots, unused = np.array(self.held[warmup:]).sum(0)
        return Cost(
            prompt=self.prompt,
            block_size=self.pool.block_size,
            median=float(np.median(total)),
            mean=float(total.mean()),
            p99=float(np.percentile(total, 99)),
            boundary_median=float(np.median(total[boundary])) if boundary.any() else float("nan"),
            extend_median=float(np.median(extend) * 1e6),
            advance_median=float(np.median(advance) * 1e6),
            copies_mean=float(copies.mean()),
            columns=self.columns,
            slots_mean=float(slots) / (len(self.held) - warmup),
            waste=float(unused / slots),
        )


def measure(prompts: list[int], width: int, sizes: list[int], steps: int, warmup: int) -> list[Cost]:
    """All step in turn in one process, so that a slow moment of the machine hits all alike. Parents are the
    same ones for all."""
    groups = [Group.start(prompt, width, size, SEED) for size in sizes for prompt in prompts]
    for _ in range(warmup + steps):
        for group in groups:
            group.step()
    return [group.cost(warmup) for group in groups]


def table(costs: list[Cost]) -> str:
    head = f"{'block':>6}{'prompt':>8}{'median':>9}{'mean':>9}{'p99':>9}{'boundary':>10}{'extend':>9}"
    lines = [head + f"{'advance':>9}{'copies':>9}{'columns':>9}{'slots':>10}{'waste':>7}   (us a step)"]
    for c in costs:
        times = f"{c.median:>9.1f}{c.mean:>9.1f}{c.p99:>9.1f}{c.boundary_median:>10.1f}"
        parts = f"{c.extend_median:>9.1f}{c.advance_median:>9.1f}{c.copies_mean:>9.1f}{c.columns:>9}"
        held = f"{c.slots_mean:>10,.0f}{c.waste:>7.1%}"
        lines.append(f"{c.block_size:>6}{c.prompt:>8}{times}{parts}{held}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--width", type=int, default=512, help="rows of the group (default 512)")
    parser.add_argument("--block-size", type=int, nargs="+", default=[16], help="slots a block (default 16)")
    parser.add_argument("--prompts", type=int, nargs="+", default=[250, 2500, 25000], help="prompt lengths")
    parser.add_argument("--steps", type=int, default=256, help="timed steps (default 256, at least 64)")
    parser.add_argument("--warmup", type=int, default=32, help="steps before timing (default 32)")
    parser.add_argument("--record", type=Path, help="append a record of each prompt to this file")
    options = parser.parse_args()
    if options.steps < 64:
        parser.error("--steps: at least 64, so that block boundaries are in the mean")
    costs = measure(options.prompts, options.width, options.block_size, options.steps, options.warmup)
    print(f"width {options.width}, {options.steps} steps, one thread\n")
    print(table(costs))
    for size in options.block_size:
        medians = [c.median for c in costs if c.block_size == size]
        print(f"\nblocks of {size}: slowest / fastest prompt: {max(medians) / min(medians):.2f}", end="")
    print(f"\ngoal {GOAL_US:.0f} us at width 512, prompt 2500, block 16")
    if options.record:
        given = {"width": options.width, "steps": options.steps}
        for cost in costs:
            found = {**given, "seed": SEED, "goal_us": GOAL_US, **asdict(cost)}
            record("control_plane", found, options.record)


if __name__ == "__main__":
    main()
