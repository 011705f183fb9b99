"""Search with a checker against sampling, at equal tokens: which share of small sums is solved?

    python -m benchmarks.search_accuracy [--model M] [--tasks 24] [--terms 4] [--budget 240] [--seed 0]
                                         [--temperature 0.8] [--only NAME ...] [--record FILE]

A task is a running sum of random digits, one line an addition, after three worked examples. The checker
reads the lines: 1.0 while every line adds the right next number and is right, else 0.0; it is all that the
searches know. A task is solved if the first-ranked finished branch is right to its end.

Each method may generate `budget` tokens a task, and no more. "greedy" is one greedy answer. Whole samples
are drawn until the budget is spent: "one sample" is the share of right ones among them, the accuracy that
one of them has; "majority" lets them vote; "best of n" shows them to the checker. The others search step by
step. Tasks run all at once, in one batch, each in a tree of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.record import record
from forkdecode import DEFAULT_MODEL, AsyncLLM, Options, Sample
from forkdecode.search import (
    BestOfN,
    Branch,
    Budget,
    Decoding,
    Dvts,
    Mcts,
    Policy,
    Rebase,
    SearchResult,
    SelfConsistency,
    StepBeam,
    each,
    puct,
    run_async,
)

END = "end"


@dataclass(frozen=True)
class Task:
    """Numbers to be added, one after the other."""

    numbers: tuple[int, ...]

    @property
    def question(self) -> str:
        return f"Add {', '.join(map(str, self.numbers))}.\n"

    @property
    def lines(self) -> list[str]:
        """The right answer's."""
        lines, total = [], self.numbers[0]
        for number in self.numbers[1:]:
            lines.append(f"{total} + {number} = {total + number}")
            total += number
        return lines

    def prompt(self, examples: Sequence[Task]) -> str:
        solved = (f"{e.question}{chr(10).join(e.lines)}\n{END}\n\n" for e in examples)
        return "".join(solved) + self.question

    def check(self, branch: Branch) -> float:
        """1.0 if all that is written is right, and, once it is finished, whole."""
        written = branch.completion.splitlines()
        if branch.is_finished:
            return float(written == self.lines)
        return float(written == self.lines[: len(written)] and branch.completion.endswith("\n"))


def last_number(text: str) -> str | None:
    """The answer that a sample votes for: what its last line comes to."""
    lines = text.splitlines()
    return lines[-1].rpartition("= ")[2] if lines and "= " in lines[-1] else None


METHODS: dict[str, Callable[[], Policy]] = {
    "greedy": lambda: SelfConsistency(last_number, n=1),
    "samples": lambda: BestOfN(64),
    "step beam 2x3": lambda: StepBeam(2, 3),
    "DVTS 2x3": lambda: Dvts(2, 3),
    "REBASE 6": lambda: Rebase(6),
    "MCTS (PUCT) 3": lambda: Mcts(256, expand=3, select=puct()),
}


async def search(
    llm: AsyncLLM, tasks: Sequence[Task], prompts: Sequence[str], name: str, args: argparse.Namespace
) -> list[SearchResult]:
    """All tasks at once."""
    decoding = Decoding(
        sample=Sample(temperature=0.0 if name == "greedy" else args.temperature),
        step=("\n",),
        step_tokens=12,
        max_tokens=12 * (args.terms - 1) + 4,
        options=Options(stop=(END,)),
    )

    async def one(task: Task, prompt: str) -> SearchResult:
        async with await llm.tree(prompt, seed=args.seed) as tree:
            budget = Budget(tokens=args.budget)
            return await run_async(tree, METHODS[name](), each(task.check), budget=budget, decoding=decoding)

    return await asyncio.gather(*(one(task, prompt) for task, prompt in zip(tasks, prompts, strict=True)))


def solved(name: str, task: Task, result: SearchResult) -> dict[str, float]:
    """1 or 0, by row of the table; for "one sample" the share of its samples."""
    best = task.check(result.best) if result.best is not None else 0.0
    if name != "samples":
        return {name: best}
    # The last one may be open, because the budget was over: it is none of the samples.
    drawn = len(result.finished) + sum(branch.state == "cut" for branch in result.unfinished)
    votes = Counter(map(last_number, (b.completion for b in sorted(result.finished, key=lambda b: b.id))))
    votes.pop(None, None)
    most = votes.most_common(1)[0][0] if votes else None
    right = task.lines[-1].rpartition("= ")[2]
    return {
        "one sample": sum(map(task.check, result.finished)) / max(1, drawn),
        "majority": float(most == right),
        "best of n": best,
    }


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share of `count` trials (Wilson 1927)."""
    z = 1.96
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)


async def main(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Prints the table as it grows, and returns it."""
    draw = random.Random(args.seed)
    made = [Task(tuple(draw.randint(1, 9) for _ in range(args.terms))) for _ in range(args.tasks + 3)]
    examples, tasks = made[:3], made[3:]
    prompts = [task.prompt(examples) for task in tasks]
    rows: dict[str, dict[str, float]] = {}
    print(f"{args.tasks} sums of {args.terms} digits, at most {args.budget} tokens each")
    async with AsyncLLM(args.model, threads=args.threads) as llm:
        for name in args.only or METHODS:
            began = time.perf_counter()
            results = await search(llm, tasks, prompts, name, args)
            took = time.perf_counter() - began
            assert max(result.spent.tokens for result in results) <= args.budget, "budgets hold"
            each_task = [solved(name, task, result) for task, result in zip(tasks, results, strict=True)]
            tokens = sum(result.spent.tokens for result in results) / len(results)
            for row in each_task[0]:
                share = sum(found[row] for found in each_task) / len(each_task)
                low, high = wilson(share, len(each_task))
                rows[row] = {"solved": share, "low": low, "high": high, "tokens": tokens, "seconds": took}
                print(
                    f"{row:>14}: {share:6.1%} solved ({low:.0%} to {high:.0%}), "
                    f"{tokens:4.0f} tokens a task, {took:.0f} s",
                    flush=True,
                )
    return rows


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--tasks", type=int, default=24)
    parser.add_argument("--terms", type=int, default=4)
    parser.add_argument("--budget", type=int, default=240)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--only", nargs="*", choices=sorted(METHODS))
    parser.add_argument("--record", type=Path)
    return parser


if __name__ == "__main__":
    chosen = arguments().parse_args()
    found = asyncio.run(main(chosen))
    if chosen.record:
        record("search_accuracy", found, chosen.record)
