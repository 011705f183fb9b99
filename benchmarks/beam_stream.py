"""What streaming a beam costs a step: the scheduler's part of it, and text made of it, without a model.

The same beam decodes several times side by side, heard by nobody and then streamed in several ways, from
made-up selections: each row's likeliest tokens have log-probabilities drawn at random, so that rows die
out and prefixes become common as in a real search. A step's time is that of the table's extension and of
the commit; what streaming adds is told as a ratio to the step that nobody hears. "text" is what the
listener's thread then spends on making text, over the same. Medians and means, by the thread's own CPU time.

    python -m benchmarks.beam_stream [--widths 4 512] [--steps 256] [--spread 2.0] [--record results.jsonl]
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

for _threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")

import numpy as np  # noqa: E402 - the thread count is read at import

from benchmarks.record import record  # noqa: E402
from forkdecode.kv import BlockPool, BlockTable, HostPool  # noqa: E402
from forkdecode.requests.assembly import Assembler  # noqa: E402
from forkdecode.scheduler.commit import commit_selection  # noqa: E402
from forkdecode.scheduler.events import GroupEvent  # noqa: E402
from forkdecode.scheduler.group import SequenceGroup  # noqa: E402
from forkdecode.scheduler.held_rows import HeldRows  # noqa: E402
from forkdecode.scheduler.moving import Moving  # noqa: E402
from forkdecode.scheduler.request import DecodeRequest  # noqa: E402
from forkdecode.scheduler.stats import Counters  # noqa: E402
from forkdecode.step import ProcessorSpec, SelectionResult  # noqa: E402
from forkdecode.strategies.factory import make_policy  # noqa: E402
from forkdecode.text.token_bytes import TokenBytes  # noqa: E402
from forkdecode.types import Beam, Options  # noqa: E402

VOCAB, PROMPT, BLOCK, EOS, SEED = 32_000, 250, 16, 2, 0
TOKENS = TokenBytes.build([f" t{i}".encode() for i in range(VOCAB)])
WAYS: dict[str, dict[str, int] | None] = {
    "nobody hears": None,
    "committed alone": {"update_every": 0},
    "every step, best": {"update_every": 1},
    "every 8 steps, best": {"update_every": 8},
    "every step, all": {"update_every": 1, "update_beams": 0},
}


@dataclass
class Way:
    """One beam and what its steps have cost so far, in seconds."""

    group: SequenceGroup
    pool: BlockPool
    assembler: Assembler
    steps: list[float] = field(default_factory=list)
    texts: list[float] = field(default_factory=list)

    @staticmethod
    def start(width: int, steps: int, updates: dict[str, Any] | None) -> Way:
        strategy = Beam(width, early_stopping="never", length_penalty=2.0)
        options = Options(max_tokens=steps + 1, **(updates or {}))
        nothing = np.empty(0, np.int64)
        request = DecodeRequest(
            request_id="x",
            prompt=np.arange(PROMPT),
            strategy=strategy,
            options=options,
            seed=0,
            processors=ProcessorSpec(),
            eos_ids=np.array([EOS]),
            stop_ids=nothing,
            automaton=None,
            stream=updates is not None,
        )
        group = SequenceGroup(1, request, make_policy(strategy, options, request.eos_ids), 0.0)
        pool = BlockPool(PROMPT // BLOCK + width * (steps // BLOCK + 4), BLOCK)
        group.table = BlockTable.open(pool)
        group.table.extend(PROMPT)
        return Way(group, pool, Assembler(request, TOKENS))

    def step(self, result: SelectionResult) -> None:
        assert self.group.table is not None
        begin = time.thread_time()
        self.pool.begin_step()
        if self.group.rows.generated:
            self.group.table.extend(1)
        events, done = self._commit(result)
        middle = time.thread_time()
        for event in events:
            self.assembler.events(event)
        self.steps.append(middle - begin)
        self.texts.append(time.thread_time() - middle)
        assert not done, "made-up beams go on"

    def _commit(self, result: SelectionResult) -> tuple[list[GroupEvent], bool]:
        moving = Moving()
        held = HeldRows(self.pool, HostPool(0), False, Counters())
        found = commit_selection(self.group, result, None, held, moving, 0.0)
        assert not moving.finish()
        return found


def select(group: SequenceGroup, rng: np.random.Generator, spread: float, ends: float) -> SelectionResult:
    """The 2 W best continuations, out of each row's 2 W or 8 likeliest tokens."""
    rows, width = group.rows, group.policy.max_rows
    each = 2 * width if rows.num_rows == 1 else 8
    # Rows differ in how sure they are of anything: that is what makes whole lines die out.
    doubt = rng.exponential(spread, (rows.num_rows, 1))
    logprobs = -(doubt + rng.exponential(1.0, (rows.num_rows, each))).astype(np.float32)
    tokens = rng.integers(10, VOCAB - each, (rows.num_rows, 1)) + np.arange(each)
    tokens[rng.random(rows.num_rows) < ends, 0] = EOS
    scores = (rows.selection[:, None] + logprobs).ravel()
    best = np.argsort(-scores, kind="stable")[: 2 * width]
    chosen = logprobs.ravel()[best]
    parents = (best // each).astype(np.int32)
    return SelectionResult(1, parents, tokens.ravel()[best], chosen, chosen, scores[best])


def measure(width: int, steps: int, spread: float, ends: float) -> dict[str, Any]:
    """All ways take each step in turn, so that a slow moment of the machine hits all alike."""
    ways = {name: Way.start(width, steps, updates) for name, updates in WAYS.items()}
    rng = np.random.default_rng(SEED)
    quiet = ways["nobody hears"]
    order = list(ways.values())
    for _ in range(steps):
        result = select(quiet.group, rng, spread, ends)
        rng.shuffle(order)  # the first to take a step finds its data cold
        for way in order:
            way.step(result)
    base = np.array(quiet.steps[steps // 8 :]) * 1e6
    found: dict[str, Any] = {"width": width, "quiet_median_us": float(np.median(base))}
    for name, way in ways.items():
        took, text = (np.array(times[steps // 8 :]) * 1e6 for times in (way.steps, way.texts))
        stream = way.group.beam_stream
        found[name] = {
            "median": float(np.median(took) / np.median(base)),
            "mean": float(took.mean() / base.mean()),
            "text": float(text.mean() / base.mean()),
            "committed": 0 if stream is None else stream.committed,
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[4, 512], help="rows (default 4 512)")
    parser.add_argument(
        "--steps", type=int, default=256, help="steps, the first eighth untimed (default 256)"
    )
    parser.add_argument("--spread", type=float, default=2.0, help="between rows, in nats (default 2)")
    parser.add_argument("--ends", type=float, default=0.0, help="share of rows that may end (default 0)")
    parser.add_argument("--record", type=Path, help="append the record to this file")
    options = parser.parse_args()
    for width in options.widths:
        found = measure(width, options.steps, options.spread, options.ends)
        print(f"width {width}: {found['quiet_median_us']:.0f} us a step that nobody hears")
        print(f"{'':24}{'median':>8}{'mean':>8}{'text':>8}{'committed':>11}")
        for name in WAYS:
            row = found[name]
            ratios = "".join(f"{row[key]:>8.2f}" for key in ("median", "mean", "text"))
            print(f"  {name:<22}{ratios}{row['committed']:>11}")
        if options.record:
            settings = {"steps": options.steps, "spread": options.spread, "ends": options.ends, "seed": SEED}
            record("beam_stream", settings | found, options.record)


if __name__ == "__main__":
    main()
