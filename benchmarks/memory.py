"""KV memory of real decoding: what sharing saves against beams that hold a cache each, and how far that
is from the least that any scheme can store.

    python -m benchmarks.memory [--model M] [--trace NAME ...] [--kind NAME ...] [--width N ...]
        [--requests N] [--threads N] [--record FILE]

The model decodes requests of the traces' lengths (prompts cut from English text, EOS ignored so that
the lengths are the trace's) in one engine with blocks of 16. Its own counters give saving, waste and
copies; the same decoded trees, run again through the engine's block table, give them for other block
sizes, and must give the engine's own numbers for 16. saving = blocks saved by sharing / blocks without
sharing, over all steps (PagedAttention paper, section 6.3). Counters don't depend on the machine.

    --part curve         blocks over time while requests arrive one after another
    --part transformers  generate's cache and peak memory beside ours, each in a process of its own
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory_decoder import ENGINE_BLOCK, Answer, Ask, Decoder, Run
from benchmarks.memory_replay import Counts, contiguous_tokens, ideal_tokens, replay
from benchmarks.memory_trace import PAPER, TRACES, Trace
from benchmarks.record import record

WIDTHS = (2, 4, 6, 8, 16, 32)
BLOCK_SIZES = (1, 8, 16, 32, 128)
KINDS = ("sample", "beam")


def requests_of(trace: Trace, count: int, seed: int) -> list[tuple[int, int]]:
    """Prompt and output lengths of `count` requests."""
    prompts, outputs = trace.lengths(count, seed)
    return list(zip(prompts.tolist(), outputs.tolist(), strict=True))


def asks_of(kind: str, width: int, lengths: list[tuple[int, int]]) -> list[Ask]:
    return [Ask(kind, width, prompt, output, i) for i, (prompt, output) in enumerate(lengths)]


def measured(trace: Trace, kind: str, width: int, answers: list[Answer], block_bytes: int) -> dict[str, Any]:
    """One row of the tables: the engine's numbers, and the replays' by block size."""
    decoded = [a.decoded for a in answers]
    unique = sum(a.usage.unique_block_steps for a in answers)
    unshared = sum(a.usage.unshared_block_steps for a in answers)
    copies, generated = sum(a.usage.copies for a in answers), sum(a.usage.generated_tokens for a in answers)
    ideal = sum(int(ideal_tokens(d).sum()) for d in decoded)
    reserved, exact = (
        sum(int(contiguous_tokens(d, reserved=r).sum()) for d in decoded) for r in (True, False)
    )
    sizes = {}
    for size in BLOCK_SIZES:
        counts = [replay(d, size) for d in decoded]
        sizes[size] = by_block_size(sum(counts[1:], counts[0]), size, ideal, generated, exact)
    return {
        "trace": trace.name,
        "kind": kind,
        "width": width,
        "requests": len(answers),
        "generated_tokens": generated,
        "saving": 1 - unique / unshared,
        "paper": PAPER.get((trace.name, kind)) if width in (2, 4, 6) else None,
        "blocks_over_ideal": unique * ENGINE_BLOCK / ideal,
        "waste": sizes[ENGINE_BLOCK]["waste"],
        "copies_per_token": copies / generated,
        "copied_bytes_per_token": copies * block_bytes / generated,
        "contiguous_over_ours": exact / (unique * ENGINE_BLOCK),
        "reserved_over_ours": reserved / (unique * ENGINE_BLOCK),
        "block_sizes": sizes,
    }


def by_block_size(c: Counts, size: int, ideal: int, generated: int, exact: int) -> dict[str, float]:
    slots = c.unique_blocks * size
    return {
        "saving": 1 - c.unique_blocks / c.unshared_blocks,
        "blocks_over_ideal": slots / ideal,
        "waste": c.wasted_slots / slots,
        "copies_per_token": c.copies / generated,
        "copied_tokens_per_token": c.copies * size / generated,
        "contiguous_over_ours": exact / slots,
    }


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


def against_transformers(args: argparse.Namespace, width: int, decoder: Decoder) -> dict[str, Any]:
    """One beam search of ShareGPT's mean lengths, on both sides."""
    prompt, output = (round(m) for m in (TRACES["sharegpt"].prompt_mean, TRACES["sharegpt"].output_mean))
    usage = decoder.run([Ask("beam", width, prompt, output, 0)]).answers[0].usage
    command = [sys.executable, "-m", "benchmarks.memory_transformers", "--model", args.model]
    command += ["--prompt", str(prompt), "--output", str(output), "--width", str(width)]
    command += ["--threads", str(args.threads)]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    theirs = json.loads(answer.splitlines()[-1])
    token_bytes = decoder.block_bytes // ENGINE_BLOCK
    return {
        "prompt": prompt,
        "output": output,
        "width": width,
        "ours_peak_bytes": usage.peak_unique_blocks * decoder.block_bytes,
        "unshared_peak_bytes": usage.peak_unshared_blocks * decoder.block_bytes,
        "contiguous_bytes": width * (prompt + output - 1) * token_bytes,
        **{f"transformers_{name}": value for name, value in theirs.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--part", choices=("saving", "curve", "transformers"), default="saving")
    parser.add_argument("--trace", nargs="*", choices=TRACES, default=list(TRACES))
    parser.add_argument("--kind", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--width", nargs="*", type=int, default=list(WIDTHS))
    parser.add_argument("--requests", type=int, default=8, help="of each kind and width, or of a curve")
    parser.add_argument("--gap", type=int, default=40, help="steps between two arrivals of a curve")
    parser.add_argument("--tokens", type=int, default=40_000, help="of the pool")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    decoder = Decoder(args.model, args.threads, args.tokens)
    settings = {"model": Path(args.model).name, "seed": args.seed, "dtype": decoder.loaded.info.dtype}
    if args.part == "transformers":
        for width in args.width:
            record("memory_transformers", settings | against_transformers(args, width, decoder), args.record)
        return
    for trace in (TRACES[name] for name in args.trace):
        if args.part == "curve":
            for kind, width in [(kind, width) for kind in args.kind for width in args.width]:
                found = curve(trace, kind, width, decoder, args.requests, args.gap, args.seed)
                record("memory_curve", settings | found, args.record)
            continue
        lengths = requests_of(trace, args.requests, args.seed)
        for width in args.width:
            for found in savings(trace, args.kind, width, lengths, decoder):
                record("memory", settings | found, args.record)
                print(line(found), flush=True)


def line(found: dict[str, Any]) -> str:
    return (
        f"{found['trace']:9s} {found['kind']:7s} {found['width']:3d}  saving {found['saving']:6.1%}  "
        f"over ideal {found['blocks_over_ideal']:.3f}  waste {found['waste']:.2%}  "
        f"copies a token {found['copies_per_token']:.4f}"
    )


if __name__ == "__main__":
    main()
