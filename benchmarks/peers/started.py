"""Ours and the chosen peers, each in a process of its own, the options that say which and how, and what all
comparisons do with them."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers.make import FOLDER, python_of
from benchmarks.peers.names import OURS, PEERS, parsed
from benchmarks.peers.side import Side
from benchmarks.peers.workloads import SEED, TOKENS, Workload
from benchmarks.record import record
from forkdecode.config import DEFAULT_MODEL
from forkdecode.model.default_model import SMOLLM2, ensure
from forkdecode.model.loader import resolve_dtype

Result = dict[str, Any]


def peer(text: str) -> str:
    """The value of an option that names a peer."""
    try:
        parsed(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def add_options(parser: argparse.ArgumentParser, workloads: tuple[Workload, ...]) -> None:
    """What all comparisons can be told."""
    known = f"{', '.join(PEERS)}; NAME:OPTION=NUMBER with another option of its class"
    parser.add_argument("--peer", nargs="*", type=peer, default=["transformers"], help=known)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a folder, or the default model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--workload", nargs="*", choices=[w.name for w in workloads])
    parser.add_argument("--limit", type=float, default=600.0, help="seconds that a peer may take for one run")
    parser.add_argument("--peers", type=Path, default=FOLDER, help="where the peers' environments are")
    parser.add_argument("--record", type=Path)


@contextmanager
def started(args: argparse.Namespace, dtype: str) -> Iterator[tuple[Side, list[Side]]]:
    """Ours and the others, their models loaded; closed at the end. Raises SystemExit where ours does not
    start or the environment of another has not been made."""
    model = str(ensure(SMOLLM2)) if args.model == DEFAULT_MODEL else args.model
    with ExitStack() as stack:

        def start(name: str) -> Side:
            command = [python_of(parsed(name)[0], args.peers), "-m", "benchmarks.peers.serve"]
            side = Side(name, [*command, name, model, dtype, str(args.threads)], args.limit)
            stack.callback(side.close)
            return side

        ours = start(OURS)
        if ours.ended:
            raise SystemExit(f"{OURS}: {ours.ended}")
        yield ours, [start(name) for name in args.peer]


def compare_all(
    benchmark: str,
    workloads: tuple[Workload, ...],
    args: argparse.Namespace,
    compare: Callable[[Workload, int, Side, list[Side], int, Callable[[Result], None]], None],
    said: Callable[[Result], str],
) -> None:
    """Has `compare` take the chosen workloads; records each result and prints what is `said` of it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    dtype = resolve_dtype(args.dtype)
    settings = {"dtype": dtype, "threads": args.threads, "tokens": args.tokens, "seed": SEED}

    def done(result: Result) -> None:
        record(benchmark, {**settings, **result}, args.record)
        print(said(result), flush=True)

    with started(args, dtype) as (ours, others):
        for work in workloads:
            if not args.workload or work.name in args.workload:
                compare(work, args.tokens, ours, others, args.runs, done)
