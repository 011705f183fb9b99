"""Correctness, then speed, of every GPU kernel: to be run where there is a GPU, in five minutes.

    python -m benchmarks.gpu_check --packages
    python -m benchmarks.gpu_check [--json gpu_check.json] [--only PART ...] [--rehearse]

The first says within a second which packages are missing, and which parts would be left out for that.

Compares each kernel with its reference, then times it against ceilings measured on the same GPU (a copy for
bandwidth, a matrix product for compute); then the whole engine against transformers. Each part runs in a
process of its own, within a time of its own: what fails, hangs or breaks the device costs that part alone.
What a part found is printed, and in the report, as soon as it ends; what says most comes first. --rehearse
runs the whole script with small shapes in Triton's interpreter: it shows that the script works, its times
say nothing. Needs no network.

Exits with 0 where all is correct and all goals are met, 2 where goals are missed, 1 where a part is wrong or
missing. In the rehearsal goals count for nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

from benchmarks.gpu.cases import Part, parts, workloads  # noqa: E402
from benchmarks.gpu.goals import HEAD, goal_table, goals, part_row  # noqa: E402
from benchmarks.gpu.packages import missing_for, packages_table  # noqa: E402
from benchmarks.gpu.run import Workers, results  # noqa: E402

WORKER = [sys.executable, "-m", "benchmarks.gpu.parts"]


def main(words: Sequence[str] | None = None, worker: Sequence[str] = WORKER) -> int:
    """The command. worker: what is executed to run parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--rehearse", action="store_true", help="small shapes in the interpreter")
    parser.add_argument(
        "--only", nargs="+", metavar="PART", help="parts whose names begin so; the ceilings too"
    )
    parser.add_argument("--seconds", type=float, help="what has not begun by then is left out; 300 on a GPU")
    parser.add_argument("--packages", action="store_true", help="say what is missing, and run nothing")
    args = parser.parse_args(words)
    chosen = selected(parts(args.rehearse), args.only)
    if args.packages:
        print(packages_table(chosen))
        return 1 if missing_for(chosen) else 0
    options = ["--rehearse"] if args.rehearse else []
    workers = Workers([*worker, *options], environment(), alone=not args.rehearse)
    found: dict[str, dict[str, Any]] = {}
    for name, lacking in missing_for(chosen).items():
        print(f"{name} is not installed; left out: {'; '.join(lacking)}", file=sys.stderr, flush=True)
    print(HEAD, flush=True)
    seconds = args.seconds or (3600.0 if args.rehearse else 300.0)
    for part, what in results(chosen, workers, seconds):
        found[part.name] = what
        args.json.write_text(json.dumps(report(args.rehearse, found), indent=1) + "\n")
        print(part_row(part.name, what), flush=True)
        if "error" in what:
            print(what["error"], file=sys.stderr, flush=True)
    print("", summary(args.rehearse, found), sep="\n")
    if not all(found.get(part.name, {}).get("ok") for part in chosen):
        return 1
    whole = args.only is None and not args.rehearse
    return 2 if whole and not all(goal.passed for goal in judged(args.rehearse, found)) else 0


def selected(every: Sequence[Part], beginnings: Sequence[str] | None) -> list[Part]:
    """Those whose names begin so, and the first two, which the others need; all if None."""
    if beginnings is None:
        return list(every)
    return [part for i, part in enumerate(every) if i < 2 or part.name.startswith(tuple(beginnings))]


def environment() -> dict[str, str]:
    """Of the processes that run parts: they import what lies here."""
    paths = [str(ROOT), str(ROOT / "kernels"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def report(rehearse: bool, found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What is written."""
    return {
        "rehearsal": rehearse,
        "parts": found,
        "goals": [goal.as_dict() for goal in judged(rehearse, found)],
    }


def summary(rehearse: bool, found: Mapping[str, Mapping[str, Any]]) -> str:
    """All tables."""
    rows = [part_row(name, what) for name, what in found.items()]
    return "\n".join([HEAD, *rows, "", goal_table(judged(rehearse, found))])


def judged(rehearse: bool, found: Mapping[str, Mapping[str, Any]]) -> Any:
    """The goals."""
    return goals(found, {work.name: work.judged for work in workloads(rehearse)})


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # with the processes that run parts
    sys.exit(main())
