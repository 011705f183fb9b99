"""Beams over a large catalogue: the walk through it, a wide beam against transformers, many at once.

    python -m benchmarks.catalogue trie [--items 1000000] [--rows 512] [--seed N]
    python -m benchmarks.catalogue wide [--model M | --random] [--width 512] [--prompt 2000] [--items 1000000]
        [--peer-widths 4 16] [--kv-memory 4GiB] [--block-size 4] [--threads N] [--record FILE]
    python -m benchmarks.catalogue wide --block-size 1 --peer-widths     # and so for other sizes
    python -m benchmarks.catalogue concurrent [--at 1 4 16] [--max-step-tokens N] [the same]

Items are random (--seed, of the prompts as well): --depth levels of --codes codes each, which are token ids
of the model's vocabulary.

trie: microseconds to say what --rows rows may continue with, and to move them on, at each depth; medians.

wide: one beam search of --width over --prompt tokens and the catalogue, items ended by EOS. Of the steps
that decode all rows, the milliseconds of each part, and the share of what is not the model's own work:
control (schedule, commit, the walk), block copies, selection. Against transformers' generate with
prefix_allowed_tokens_fn over the same catalogue, in a process of its own, at --peer-widths that its memory
allows, where ours must find the same items. It reads the prompt once a beam and keeps it once a beam, so that
its time is a straight line in the width: drawn through the widths measured, it says what --width would take.
Memory: bytes of the blocks that the request held at its peak, the most resident bytes above those before
it (the block pool is there already), and what a copy of the keys and values for each beam would take. Blocks
hold --block-size tokens: 4 unless told, for a catalogue's beams generate few tokens each (with 16, the
engine's own, most slots of the beams' own blocks would stay empty). How many blocks were copied, and the
share of empty slots, too.

concurrent: so many requests with prompts of their own sent at once: requests a second. --max-step-tokens:
of a step, prompts included; with the engine's own 2,048 a request is done before the next one's prompt is,
and its rows meet no others.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np

from benchmarks.catalogue_work import SEED, Driver, Items, load_model, medians, prompt_of
from benchmarks.memory_transformers import reset_peak, resident
from benchmarks.record import record
from forkdecode.constraints.catalogue_build import build_catalogue
from forkdecode.constraints.catalogue_file import open_catalogue
from forkdecode.constraints.catalogue_rows import CatalogueConstraint

BLOCK_SIZE = 4
GOAL_US, GOAL_SHARE = 300.0, 0.15
"""Of a step of the trie for 512 rows, and of a step's time that is not the model's."""


def trie(args: argparse.Namespace) -> dict[str, Any]:
    from forkdecode_kernels.trie import warm_up

    rows = Items(args.items, args.depth, args.codes, args.seed).rows()
    begin = time.perf_counter()
    catalogue = build_catalogue(rows)
    built = time.perf_counter() - begin
    warm_up()
    constraint = CatalogueConstraint(catalogue, "eos", np.array([2]))
    rng = np.random.default_rng(args.seed + 1)
    taken: list[list[float]] = [[] for _ in range(args.depth)]
    for _ in range(args.repeats):
        paths = rows[rng.integers(0, len(rows), args.rows)].astype(np.int64)
        state = constraint.rows()
        parents = np.zeros(args.rows, np.int32)
        for depth in range(args.depth):
            begin = time.perf_counter()
            state.allowed().get()
            state = state.next(parents, paths[:, depth])
            taken[depth].append(1e6 * (time.perf_counter() - begin))
            parents = np.arange(args.rows, dtype=np.int32)
    by_depth = [statistics.median(times) for times in taken]
    return {"build_seconds": built, "us_by_depth": by_depth, "us": max(by_depth), "goal_us": GOAL_US}


def wide(args: argparse.Namespace, path: Path) -> dict[str, Any]:
    loaded = load_model(args.model, args.dtype)
    info, prompt = loaded.info, prompt_of(loaded, args.prompt, args.seed)
    driver = Driver(loaded, path, args.threads, kv_memory=args.kv_memory, block_size=args.block_size)
    driver.run([prompt[:64]], min(args.width, 32), args.depth + 1)
    done = driver.run([prompt], args.width, args.depth + 1)
    steps = [step for step in done.steps if step.rows == args.width]
    token_bytes = info.kv_token_elements * {"float32": 4}.get(info.dtype, 2)
    naive = args.width * (args.prompt + args.depth) * token_bytes
    found = {
        "seconds": done.seconds,
        "first_token_seconds": done.first_token,
        "candidates": len(done.results[0].candidates),
        "complete": sum(c.item is not None for c in done.results[0].candidates),
        "full_steps": len(steps),
        "step_ms": medians(steps) if steps else None,
        "goal_share": GOAL_SHARE,
        "block_bytes": done.peak_blocks * driver.capacity.bytes_per_block,
        "copies": done.copies,
        "waste": done.waste,
        "peak_bytes": done.peak_bytes,
        "naive_bytes": naive,
    }
    ours = {width: driver.run([prompt], width, args.depth + 1) for width in args.peer_widths}
    del driver, loaded
    peers = {width: _peer(args, path, width) for width in args.peer_widths}
    return found | _against(args.width, done.seconds, ours, peers)


def _against(
    width: int, seconds: float, ours: dict[int, Any], peers: dict[int, dict[str, Any]]
) -> dict[str, Any]:
    """transformers' time by its width, and at `width` by the straight line through them."""
    if not peers:
        return {}
    measured = []
    for peer_width, peer in peers.items():
        mine = [list(c.token_ids) for c in ours[peer_width].results[0].candidates]
        same = sum(path in peer["paths"] for path in mine) / len(mine)
        ratio = peer["seconds"] / ours[peer_width].seconds
        facts = {"seconds": peer["seconds"], "peak_bytes": peer["peak_bytes"], "ratio": ratio}
        measured.append({"width": peer_width, "same_items": same, **facts})
    widths, times = list(peers), [peer["seconds"] for peer in peers.values()]
    slope, start = np.polyfit(widths, times, 1) if len(peers) > 1 else (times[0] / widths[0], 0.0)
    expected = float(start + slope * width)
    return {"transformers": measured, "at_width_seconds": expected, "at_width_ratio": expected / seconds}


def _peer(args: argparse.Namespace, path: Path, width: int) -> dict[str, Any]:
    """transformers in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.catalogue", "peer", "--catalogue", str(path)]
    for name in ("prompt", "depth", "dtype", "threads", "seed"):
        command += [f"--{name}", str(getattr(args, name))]
    command += ["--width", str(width), *(("--model", args.model) if args.model else ("--random",))]
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def peer(args: argparse.Namespace) -> dict[str, Any]:
    """generate with prefix_allowed_tokens_fn, which walks the mapped catalogue."""
    import torch

    torch.set_num_threads(args.threads)
    loaded, catalogue = load_model(args.model, args.dtype), open_catalogue(args.catalogue)
    (eos, *_), prompt = loaded.info.eos_ids, prompt_of(loaded, args.prompt, args.seed)

    def allowed(_: int, ids: torch.Tensor) -> list[int]:
        node = catalogue.node(ids[begin:].tolist())
        if node is None:
            return [eos]
        children = catalogue.tokens[catalogue.offsets[node] : catalogue.offsets[node + 1]].tolist()
        return [*children, eos] if catalogue.complete[node] else list(children)

    def generate(ids: Sequence[int], width: int) -> Any:
        with torch.inference_mode():
            return loaded.model.generate(
                torch.tensor([list(ids)]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                num_beams=width,
                num_return_sequences=width,
                do_sample=False,
                max_new_tokens=args.depth + 1,
                pad_token_id=0,
                prefix_allowed_tokens_fn=allowed,
            )

    begin = 16
    generate(prompt[:begin], 2)
    begin = len(prompt)
    before = resident("VmRSS")
    reset_peak()
    started = time.perf_counter()
    sequences = generate(prompt, args.width)
    seconds = time.perf_counter() - started
    paths = [row[begin:] for row in sequences.tolist()]
    return {
        "seconds": seconds,
        "peak_bytes": resident("VmHWM") - before,
        "paths": [row[: row.index(eos) + 1] if eos in row else row for row in paths],
    }


def concurrent(args: argparse.Namespace, path: Path) -> dict[str, Any]:
    loaded = load_model(args.model, args.dtype)
    budget = {"max_step_tokens": args.max_step_tokens, "max_prefill_tokens": args.max_step_tokens}
    memory = {"kv_memory": args.kv_memory, "block_size": args.block_size}
    driver = Driver(loaded, path, args.threads, **memory, **budget)
    prompts = [prompt_of(loaded, args.prompt, args.seed + number) for number in range(max(args.at))]
    driver.run([prompts[0][:64]], min(args.width, 32), args.depth + 1)
    found = {}
    for count in args.at:
        done = driver.run(prompts[:count], args.width, args.depth + 1)
        most = max(step.rows for step in done.steps)
        found[str(count)] = {"seconds": done.seconds, "per_second": count / done.seconds, "most_rows": most}
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    for name in ("trie", "wide", "concurrent", "peer"):
        part = parts.add_parser(name)
        part.add_argument("--items", type=int, default=1_000_000)
        part.add_argument("--depth", type=int, default=4)
        part.add_argument("--codes", type=int, default=256)
        part.add_argument("--seed", type=int, default=SEED, help="of the items and the prompts")
        part.add_argument("--record", type=Path)
        if name == "trie":
            part.add_argument("--rows", type=int, default=512)
            part.add_argument("--repeats", type=int, default=200)
            continue
        model = part.add_mutually_exclusive_group()
        model.add_argument("--model", default="smollm2-135m-instruct")
        model.add_argument("--random", dest="model", action="store_const", const=None)
        part.add_argument("--dtype", default="float32")
        part.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
        part.add_argument("--width", type=int, default=512)
        part.add_argument("--prompt", type=int, default=2000)
        part.add_argument("--kv-memory", default="4GiB")
        part.add_argument("--block-size", type=int, default=BLOCK_SIZE, help="tokens a block (default 4)")
        part.add_argument("--peer-widths", type=int, nargs="*", default=[4, 16])
        part.add_argument("--at", type=int, nargs="*", default=[1, 4, 16])
        part.add_argument("--max-step-tokens", type=int, default=10_000)
        part.add_argument("--catalogue", type=Path)
    return parser


def main() -> None:
    args = _parser().parse_args()
    if args.part == "trie":
        found = trie(args)
    elif args.part == "peer":
        print(json.dumps(peer(args)))
        return
    else:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "catalogue"
            Items(args.items, args.depth, args.codes, args.seed).save(path)
            found = wide(args, path) if args.part == "wide" else concurrent(args, path)
    settings = {k: v for k, v in vars(args).items() if k not in ("record", "catalogue")}
    if settings.get("model"):
        settings["model"] = Path(args.model).name
    record("catalogue", {**settings, **found}, args.record)


if __name__ == "__main__":
    main()
