"""Memory of one beam search by transformers' generate, in this process alone: one JSON line.

cache_bytes: keys and values of the cache that generate returns. peak_bytes: the most resident memory
above what was resident before, so that weights, libraries and a warm-up are left out; it holds the
cache, what a step concatenates and reorders, and the prompt's activations (Linux: VmHWM).
"""

from __future__ import annotations

import argparse
import gc
import json
from pathlib import Path
from typing import Any

from benchmarks.prompts import passage


def resident(field: str) -> int:
    """VmRSS or VmHWM in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024


def reset_peak() -> None:
    """VmHWM becomes VmRSS (proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    for name in ("prompt", "output", "width", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    args = parser.parse_args()
    import torch

    from forkdecode.model.loader import load

    torch.set_num_threads(args.threads)
    loaded = load(args.model, "float32")
    loaded.model.generation_config.eos_token_id = None
    generate(loaded.model, passage(loaded.tokenizer, 16), 4, args.width)
    gc.collect()
    ids = passage(loaded.tokenizer, args.prompt)
    before = resident("VmRSS")
    reset_peak()
    out = generate(loaded.model, ids, args.output, args.width)
    peak = resident("VmHWM") - before
    assert out.sequences.shape[1] == args.prompt + args.output
    print(json.dumps({"cache_bytes": cache_bytes(out.past_key_values), "peak_bytes": peak}))


if __name__ == "__main__":
    main()
