"""Memory of one beam search by transformers' generate or by our engine, in this process alone: a JSON line.

peak_bytes: the most resident memory above what was resident before, so that weights, libraries and a
warm-up are left out; it holds the cache or the blocks, what a step copies, and the prompt's activations
(Linux: VmHWM). A block that the warm-up has written stays resident, and may be used again: our peak counts
all of the warm-up's blocks as well.

transformers: cache_bytes, keys and values of the cache that generate returns. ours: block_bytes and
unshared_bytes, the most blocks held, and what the rows would hold if they shared none.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.memory_decoder import Ask, Decoder
from benchmarks.prompts import passage

WARM_UP = 16, 4
"""Tokens of its prompt and of its output."""


def resident(field: str) -> int:
    """VmRSS or VmHWM in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024


def reset_peak() -> None:
    """VmHWM becomes VmRSS (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_of(run: Callable[[], Any]) -> tuple[Any, int]:
    """What `run` returns, and the most bytes that were resident meanwhile above those before."""
    gc.collect()
    before = resident("VmRSS")
    reset_peak()
    found = run()
    return found, resident("VmHWM") - before


def generate(model: Any, ids: list[int], output: int, width: int) -> Any:
    import torch

    with torch.inference_mode():
        return model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            num_beams=width,
            do_sample=False,
            max_new_tokens=output,
            pad_token_id=0,
            return_dict_in_generate=True,
        )


def cache_bytes(cache: Any) -> int:
    return sum(t.untyped_storage().nbytes() for layer in cache.layers for t in (layer.keys, layer.values))


def transformers(args: argparse.Namespace) -> dict[str, int]:
    import torch

    from forkdecode.model.loader import load

    torch.set_num_threads(args.threads)
    loaded = load(args.model, "float32")
    loaded.model.generation_config.eos_token_id = None
    prompt, output = WARM_UP
    generate(loaded.model, passage(loaded.tokenizer, prompt), output, args.width)
    ids = passage(loaded.tokenizer, args.prompt)
    out, peak = peak_of(lambda: generate(loaded.model, ids, args.output, args.width))
    assert out.sequences.shape[1] == args.prompt + args.output
    return {"cache_bytes": cache_bytes(out.past_key_values), "peak_bytes": peak}


def ours(args: argparse.Namespace) -> dict[str, int]:
    # Room for the longest that all rows could get: what is not written takes no memory.
    decoder = Decoder(args.model, args.threads, tokens=2 * args.width * (args.prompt + args.output + 16))
    prompt, output = WARM_UP
    warm = decoder.run([Ask("beam", args.width, prompt, output, 0)]).answers[0].usage
    run, peak = peak_of(lambda: decoder.run([Ask("beam", args.width, args.prompt, args.output, 0)]))
    usage = run.answers[0].usage
    return {
        "block_bytes": usage.peak_unique_blocks * decoder.block_bytes,
        "unshared_bytes": usage.peak_unshared_blocks * decoder.block_bytes,
        "peak_bytes": peak + warm.peak_unique_blocks * decoder.block_bytes,
    }


SIDES = {"ours": ours, "transformers": transformers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--side", choices=SIDES, default="transformers")
    parser.add_argument("--model", required=True)
    for name in ("prompt", "output", "width", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    print(json.dumps(SIDES[args.side](args)))


if __name__ == "__main__":
    main()
