"""KV memory of real decoding: what sharing saves against beams that hold a cache each, and how far that
is from the least that any scheme can store.

    python -m benchmarks.memory [--model M] [--trace NAME ...] [--kind NAME ...] [--width N ...]
        [--requests N] [--threads N] [--record FILE]

The model decodes requests of the traces' lengths (prompts cut from English text, EOS ignored so that
the lengths are the trace's, and paired so that the mean of prompt * output is the product of the means)
in one engine with blocks of 16. Its own counters give saving, waste and copies; the same decoded trees,
run again through the engine's block table, give them for other block sizes, and must give the engine's
own numbers for 16. saving = blocks saved by sharing / blocks without sharing, over all steps
(PagedAttention paper, section 6.3). Counters don't depend on the machine.

    --part samples       of thousands of requests, with --seeds: what samples hold needs no decoding, see
                         memory_samples.py; and the saving if outputs were more alike or less
    --part curve         blocks over time while requests arrive one after another
    --part transformers  generate's cache and peak memory beside ours, each in a process of its own
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory_decoder import ENGINE_BLOCK, Ask, Decoder, Run
from benchmarks.memory_replay import ideal_tokens, replay
from benchmarks.memory_rows import counted, measured
from benchmarks.memory_samples import Samples
from benchmarks.memory_trace import TRACES, VARIATION, Trace
from benchmarks.record import record

WIDTHS = (2, 4, 6, 8, 16, 32)
KINDS = ("sample", "beam")
VARIATIONS = (0.6, VARIATION, 1.2)


def requests_of(trace: Trace, count: int, seed: int) -> list[tuple[int, int]]:
    """Prompt and output lengths of `count` requests."""
    prompts, outputs = trace.pairs(count, seed)
    return list(zip(prompts.tolist(), outputs.tolist(), strict=True))


def asks_of(kind: str, width: int, lengths: list[tuple[int, int]]) -> list[Ask]:
    return [Ask(kind, width, prompt, output, i) for i, (prompt, output) in enumerate(lengths)]


def savings(
    trace: Trace, kinds: list[str], width: int, lengths: list[tuple[int, int]], decoder: Decoder
) -> list[dict[str, Any]]:
    """A row for each kind; all requests are decoded together, which is fastest and changes no count."""
    run = decoder.run([ask for kind in kinds for ask in asks_of(kind, width, lengths)])
    check_replays(run)
    by_kind = {kind: [a for a in run.answers if a.ask.kind == kind] for kind in kinds}
    return [measured(trace, kind, width, own, decoder.block_bytes) for kind, own in by_kind.items()]


def check_replays(run: Run) -> None:
    """A replay with the engine's block size must count what the engine counted while it decoded: of each
    request its blocks and copies, of all together the slots without a token."""
    wasted = 0
    for answer in run.answers:
        usage, counts = answer.usage, replay(answer.decoded, ENGINE_BLOCK)
        # The engine also counts steps that only read a prompt; a replay has none.
        computed = answer.ask.prompt - 1
        extra = usage.steps - counts.steps
        read = extra * -(-computed // ENGINE_BLOCK)
        wasted += counts.wasted_slots + extra * (-computed % ENGINE_BLOCK)
        found = (counts.unique_blocks + read, counts.unshared_blocks + read, counts.copies)
        if found != (usage.unique_block_steps, usage.unshared_block_steps, usage.copies):
            raise SystemExit(f"replay and engine differ for {answer.ask}: {found}, {usage}")
    if wasted != run.wasted:
        raise SystemExit(f"replay and engine differ in wasted slots: {wasted} and {run.wasted}")


def samples_of(trace: Trace, width: int, count: int, seeds: Sequence[int]) -> Samples:
    """The requests of all seeds together."""
    prompts, outputs = zip(*(trace.pairs(count, seed) for seed in seeds), strict=True)
    return Samples(width, np.concatenate(prompts), np.concatenate(outputs))


def samples(trace: Trace, width: int, count: int, seeds: Sequence[int], block_bytes: int) -> dict[str, Any]:
    """A row of samples, counted without a model. saving_by_seed: of each seed's requests alone;
    saving_by_variation: by the outputs' standard deviation over their mean."""

    def saving(trace: Trace, seeds: Sequence[int]) -> float:
        counts = samples_of(trace, width, count, seeds).counts(ENGINE_BLOCK)
        return 1 - counts.unique_blocks / counts.unshared_blocks

    return counted(trace, samples_of(trace, width, count, seeds), block_bytes) | {
        "seeds": list(seeds),
        "saving_by_seed": [saving(trace, [seed]) for seed in seeds],
        "saving_by_variation": {v: saving(replace(trace, variation=v), seeds) for v in VARIATIONS},
    }


def curve(
    trace: Trace, kind: str, width: int, decoder: Decoder, count: int, gap: int, seed: int
) -> dict[str, Any]:
    """Blocks while requests come and go: without sharing, held, and the least (in blocks' worth)."""
    run = decoder.run(asks_of(kind, width, requests_of(trace, count, seed)), gap)
    ideal = np.zeros(len(run.curve))
    for answer in run.answers:
        found = ideal_tokens(answer.decoded)
        ideal[answer.first_step : answer.first_step + len(found)] += found / ENGINE_BLOCK
    unique, unshared = zip(*run.curve, strict=True)
    return {
        "trace": trace.name,
        "kind": kind,
        "width": width,
        "requests": count,
        "gap": gap,
        "unique": unique,
        "unshared": unshared,
        "ideal": [round(x, 2) for x in ideal.tolist()],
        "saving": 1 - sum(unique) / sum(unshared),
    }


def against_transformers(args: argparse.Namespace, width: int) -> dict[str, Any]:
    """One beam search of ShareGPT's mean lengths, on both sides."""
    prompt, output = (round(m) for m in (TRACES["sharegpt"].prompt_mean, TRACES["sharegpt"].output_mean))
    command = [sys.executable, "-m", "benchmarks.memory_transformers", "--model", args.model]
    command += ["--prompt", str(prompt), "--output", str(output), "--width", str(width)]
    command += ["--threads", str(args.threads), "--side"]
    sides = {}
    for side in ("ours", "transformers"):
        answer = subprocess.run([*command, side], stdout=subprocess.PIPE, text=True, check=True).stdout
        sides[side] = json.loads(answer.splitlines()[-1])
    ours = sides["ours"]
    return {
        "prompt": prompt,
        "output": output,
        "width": width,
        "ours_peak_bytes": ours["block_bytes"],
        "ours_process_peak_bytes": ours["peak_bytes"],
        "unshared_peak_bytes": ours["unshared_bytes"],
        **{f"transformers_{name}": value for name, value in sides["transformers"].items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--part", choices=PARTS, default="saving")
    parser.add_argument("--trace", nargs="*", choices=TRACES, default=list(TRACES))
    parser.add_argument("--kind", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--width", nargs="*", type=int, default=list(WIDTHS))
    parser.add_argument("--requests", type=int, default=8, help="of each kind and width, or of a curve")
    parser.add_argument("--gap", type=int, default=40, help="steps between two arrivals of a curve")
    parser.add_argument("--tokens", type=int, default=40_000, help="of the pool")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=5, help="of samples: so many, from --seed on")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    PARTS[args.part](args)


def settings(args: argparse.Namespace, dtype: str) -> dict[str, Any]:
    return {"model": Path(args.model).name, "seed": args.seed, "dtype": dtype}


def saving_part(args: argparse.Namespace) -> None:
    decoder = Decoder(args.model, args.threads, args.tokens)
    for trace in (TRACES[name] for name in args.trace):
        lengths = requests_of(trace, args.requests, args.seed)
        for width in args.width:
            for found in savings(trace, args.kind, width, lengths, decoder):
                record("memory", settings(args, decoder.loaded.info.dtype) | found, args.record)
                print(line(found), flush=True)


def samples_part(args: argparse.Namespace) -> None:
    """The model says how many bytes a token takes, no more."""
    from forkdecode.model.kv_cache import bytes_per_block
    from forkdecode.model.loader import load

    block_bytes = bytes_per_block(load(args.model, "float32").info, ENGINE_BLOCK, "float32")
    seeds = range(args.seed, args.seed + args.seeds)
    for trace, width in itertools.product((TRACES[name] for name in args.trace), args.width):
        found = samples(trace, width, args.requests, seeds, block_bytes)
        record("memory", settings(args, "float32") | found, args.record)
        print(line(found), flush=True)


def curve_part(args: argparse.Namespace) -> None:
    decoder = Decoder(args.model, args.threads, args.tokens)
    for name, kind, width in itertools.product(args.trace, args.kind, args.width):
        found = curve(TRACES[name], kind, width, decoder, args.requests, args.gap, args.seed)
        record("memory_curve", settings(args, decoder.loaded.info.dtype) | found, args.record)


def transformers_part(args: argparse.Namespace) -> None:
    for width in args.width:
        record(
            "memory_transformers", settings(args, "float32") | against_transformers(args, width), args.record
        )


PARTS = {
    "saving": saving_part,
    "samples": samples_part,
    "curve": curve_part,
    "transformers": transformers_part,
}


def line(found: dict[str, Any]) -> str:
    return (
        f"{found['trace']:9s} {found['kind']:7s} {found['width']:3d}  saving {found['saving']:6.1%}  "
        f"over ideal {found['blocks_over_ideal']:.3f}  waste {found['waste']:.2%}  "
        f"copies a token {found['copies_per_token']:.4f}"
    )


if __name__ == "__main__":
    main()
