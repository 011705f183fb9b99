"""KV memory of real decoding: what sharing saves against beams that hold a cache each, and how far that
is from the least that any scheme can store.

    python -m benchmarks.memory [--model M] [--trace NAME ...] [--kind NAME ...] [--width N ...]
        [--rows N] [--threads N] [--record FILE]

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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory_replay import Counts, contiguous_tokens, ideal_tokens, replay
from benchmarks.memory_trace import PAPER, TRACES, Decoded, Trace
from benchmarks.prompts import passage
from benchmarks.record import record

WIDTHS = (2, 4, 6, 8, 16, 32)
BLOCK_SIZES = (1, 8, 16, 32, 128)
ENGINE_BLOCK = 16
KINDS = ("sample", "beam")
TEMPERATURE, TOP_P = 1.0, 1.0


@dataclass(frozen=True)
class Run:
    """What one engine did with some requests. usage: the engine's, of each. waste: share of the slots
    in use that held no token. curve: [steps, 2] unique and unshared blocks of each step."""

    decoded: list[Decoded]
    usage: list[Any]
    waste: float
    curve: list[tuple[int, int]]
    first_steps: list[int]


class Decoder:
    """The model, and engines made for one run each."""

    def __init__(self, model: str, threads: int, tokens: int) -> None:
        from forkdecode.config import EngineConfig
        from forkdecode.engine.start import build_engine
        from forkdecode.model.kv_cache import bytes_per_block
        from forkdecode.model.loader import load
        from forkdecode.requests.resolve import Resolver

        self.loaded = load(model, "float32")
        self._resolver = Resolver(self.loaded.tokenizer, self.loaded.info)
        config = EngineConfig(
            block_size=ENGINE_BLOCK,
            num_blocks=tokens // ENGINE_BLOCK,
            prefix_cache=False,
            overcommit=True,
            swap_memory=0,
        )
        self._engine, _ = build_engine(self.loaded, config, threads)
        import torch

        self.block_bytes = bytes_per_block(self.loaded.info, ENGINE_BLOCK, torch.float32)

    def run(self, lengths: list[tuple[int, int]], kind: str, width: int, gap: int = 0) -> Run:
        """Decodes a request for each (prompt, output) length. gap: steps between two arrivals."""
        from forkdecode.scheduler.events import GroupFailed, GroupFinished

        scheduler = self._engine.scheduler
        before, histories, usage = scheduler.stats(), [], {}
        waiting = [self._request(i, p, o, kind, width) for i, (p, o) in enumerate(lengths)]
        curve: list[tuple[int, int]] = []
        first_steps = [-1] * len(waiting)
        while waiting or self._engine.has_work:
            while waiting and len(curve) >= gap * len(histories):
                request = waiting.pop(0)
                self._engine.submit(request)
                histories.append(scheduler._groups[request.request_id].history)
            last = scheduler.stats()
            for event in self._engine.step():
                if isinstance(event, GroupFailed):
                    raise event.error
                if isinstance(event, GroupFinished):
                    usage[event.request_id] = event.usage
            now = scheduler.stats()
            for i, history in enumerate(histories):
                if first_steps[i] < 0 and history.steps:
                    first_steps[i] = len(curve)
            curve.append(
                (
                    now.unique_block_steps - last.unique_block_steps,
                    now.unshared_block_steps - last.unshared_block_steps,
                )
            )
        after = scheduler.stats()
        if after.preemptions > before.preemptions:
            raise SystemExit("the pool was too small: groups were preempted, and the counts are not theirs")
        slots = (after.unique_block_steps - before.unique_block_steps) * ENGINE_BLOCK
        waste = (after.wasted_slot_steps - before.wasted_slot_steps) / slots
        decoded = [
            Decoded(p, tuple(s.parents for s in h._steps), tuple(s.tokens for s in h._steps))
            for (p, _), h in zip(lengths, histories, strict=True)
        ]
        return Run(decoded, [usage[str(i)] for i in range(len(lengths))], waste, curve, first_steps)

    def _request(self, index: int, prompt: int, output: int, kind: str, width: int) -> Any:
        from forkdecode import Beam, Options, Sample

        strategy: Any = Beam(width)
        if kind == "sample":
            strategy = Sample(width, temperature=TEMPERATURE, top_p=TOP_P, seed=index)
        return self._resolver.resolve(
            passage(self.loaded.tokenizer, prompt, offset=index),
            strategy,
            Options(max_tokens=output, ignore_eos=True),
            request_id=str(index),
            stream=False,
        )


def requests_of(trace: Trace, width: int, rows: int, seed: int) -> list[tuple[int, int]]:
    """As many requests as have about `rows` rows together, between 2 and 24."""
    prompts, outputs = trace.lengths(max(2, min(24, rows // width)), seed)
    return list(zip(prompts.tolist(), outputs.tolist(), strict=True))


def measured(trace: Trace, kind: str, width: int, run: Run, block_bytes: int) -> dict[str, Any]:
    """One row of the tables: the engine's numbers, and the replays' by block size."""
    unique = sum(u.unique_block_steps for u in run.usage)
    unshared = sum(u.unshared_block_steps for u in run.usage)
    copies, generated = sum(u.copies for u in run.usage), sum(u.generated_tokens for u in run.usage)
    ideal = sum(int(ideal_tokens(d).sum()) for d in run.decoded)
    reserved, exact = (
        sum(int(contiguous_tokens(d, reserved=r).sum()) for d in run.decoded) for r in (True, False)
    )
    sizes = {}
    for size in BLOCK_SIZES:
        counts = [replay(d, size) for d in run.decoded]
        sizes[size] = by_block_size(sum(counts[1:], counts[0]), size, ideal, generated, exact)
    _same_as_engine(run, unique, unshared, copies)
    return {
        "trace": trace.name,
        "kind": kind,
        "width": width,
        "requests": len(run.decoded),
        "generated_tokens": generated,
        "saving": 1 - unique / unshared,
        "paper": PAPER.get((trace.name, kind)) if width in (2, 4, 6) else None,
        "blocks_over_ideal": unique * ENGINE_BLOCK / ideal,
        "waste": run.waste,
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


def _same_as_engine(run: Run, unique: int, unshared: int, copies: int) -> None:
    """A replay with the engine's block size must count what the engine counted while it decoded."""
    counts = [replay(d, ENGINE_BLOCK) for d in run.decoded]
    # The engine also counts steps that only read a prompt; a replay has none.
    extra = [u.steps - len(d.parents) for u, d in zip(run.usage, run.decoded, strict=True)]
    prompts = [-(-(d.prompt_len - 1) // ENGINE_BLOCK) for d in run.decoded]
    read = sum(e * p for e, p in zip(extra, prompts, strict=True))
    found = (
        sum(c.unique_blocks for c in counts) + read,
        sum(c.unshared_blocks for c in counts) + read,
        sum(c.copies for c in counts),
    )
    if found != (unique, unshared, copies):
        raise SystemExit(f"replay and engine differ: {found} and {(unique, unshared, copies)}")


def curve(trace: Trace, kind: str, width: int, decoder: Decoder, count: int, gap: int) -> dict[str, Any]:
    """Blocks while requests come and go: without sharing, held, and the least (in blocks' worth)."""
    prompts, outputs = trace.lengths(count, seed=1)
    run = decoder.run(list(zip(prompts.tolist(), outputs.tolist(), strict=True)), kind, width, gap)
    ideal = np.zeros(len(run.curve))
    for first, decoded in zip(run.first_steps, run.decoded, strict=True):
        found = ideal_tokens(decoded)
        ideal[first : first + len(found)] += found / ENGINE_BLOCK
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
    run = decoder.run([(prompt, output)], "beam", width)
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
        "ours_peak_bytes": run.usage[0].peak_unique_blocks * decoder.block_bytes,
        "unshared_peak_bytes": run.usage[0].peak_unshared_blocks * decoder.block_bytes,
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
    parser.add_argument("--rows", type=int, default=64, help="rows decoded at once, about")
    parser.add_argument("--requests", type=int, default=8, help="of a curve")
    parser.add_argument("--gap", type=int, default=40, help="steps between two arrivals of a curve")
    parser.add_argument("--tokens", type=int, default=40_000, help="of the pool")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    decoder = Decoder(args.model, args.threads, args.tokens)
    settings = asdict(decoder.loaded.info) | {"model": args.model, "seed": args.seed}
    settings = {k: settings[k] for k in ("model", "seed", "dtype")}
    if args.part == "transformers":
        for width in args.width:
            record("memory_transformers", settings | against_transformers(args, width, decoder), args.record)
        return
    for trace in (TRACES[name] for name in args.trace):
        for kind in args.kind:
            for width in args.width:
                if args.part == "curve":
                    found = curve(trace, kind, width, decoder, args.requests, args.gap)
                    record("memory_curve", settings | found, args.record)
                    continue
                run = decoder.run(requests_of(trace, width, args.rows, args.seed), kind, width)
                found = measured(trace, kind, width, run, decoder.block_bytes)
                record("memory", settings | found, args.record)
                print(
                    f"{trace.name:9s} {kind:7s} {width:3d}  saving {found['saving']:6.1%}  "
                    f"over ideal {found['blocks_over_ideal']:.3f}  waste {found['waste']:.2%}  "
                    f"copies a token {found['copies_per_token']:.4f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
