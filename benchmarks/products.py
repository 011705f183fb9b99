"""Matrix products of a decode step beside torch's oneDNN, by shape and rows.

    python -m benchmarks.products [--dtype float32|bfloat16] [--rows N ...] [--shape NxK ...] [--record FILE]

One thread's CPU time for one product, the kinds in turn, the least of several rounds. Each round goes over
copies of the weight that no cache holds, as a step goes over the layers. float32: a weight of any numbers
(`full`) and one of bfloat16 numbers (`half`), which is stored so; bfloat16: inputs and results as well.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.record import record
from forkdecode_kernels.products import pack_weight, product

SHAPES = {
    "qkv": (960, 576),
    "out": (576, 576),
    "gate+up": (3072, 576),
    "down": (576, 1536),
    "head": (49152, 576),
}
"""SmolLM2-135M's: outputs, inputs."""
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 512, 1000)
_COLD_BYTES = 128 * 2**20
_ROUNDS = 5

Product = Callable[[torch.Tensor], torch.Tensor]


def one_dnn(weight: torch.Tensor) -> Product:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 64)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


def ours(weight: torch.Tensor) -> Product:
    panels = pack_weight(weight)
    return lambda x: product(x, panels)


def kinds(outputs: int, inputs: int, dtype: torch.dtype) -> dict[str, list[Product]]:
    """The kinds of product, each with copies of its weight."""
    weight = torch.randn(outputs, inputs)
    rounded = weight.bfloat16()
    copies = max(1, _COLD_BYTES // (4 * weight.numel()))
    makers: dict[str, Callable[[], Product]] = {
        "oneDNN": lambda: one_dnn(weight.to(dtype)),
        "half": lambda: ours(rounded),
    }
    if dtype == torch.float32:
        makers["full"] = lambda: ours(weight)
    return {name: [make() for _ in range(copies)] for name, make in makers.items()}


def measure(products: dict[str, list[Product]], x: torch.Tensor) -> dict[str, float]:
    """Milliseconds a product. oneDNN's are of at least 16 rows, below which a row's bits depend on others."""
    padded = torch.nn.functional.pad(x, (0, 0, 0, -len(x) % 16))
    best = dict.fromkeys(products, float("inf"))
    for _ in range(_ROUNDS):
        for name, calls in products.items():
            given = padded if name == "oneDNN" else x
            begin = time.thread_time()
            for call in calls:
                call(given)
            best[name] = min(best[name], (time.thread_time() - begin) * 1e3 / len(calls))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rows", nargs="*", type=int, default=ROWS)
    parser.add_argument("--shape", nargs="*", choices=SHAPES, default=tuple(SHAPES))
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dtype = getattr(torch, args.dtype)
    for name in args.shape:
        products = kinds(*SHAPES[name], dtype)
        for rows in args.rows:
            x = torch.randn(rows, SHAPES[name][1]).to(dtype)
            found = measure(products, x)
            times = "  ".join(
                f"{kind} {ms:8.3f} ms ({found['oneDNN'] / ms:4.2f}x)" for kind, ms in found.items()
            )
            print(f"{name:8s} {rows:5d} rows  {times}", flush=True)
            if args.record:
                record(
                    "products", {"shape": name, "rows": rows, "dtype": args.dtype, "ms": found}, args.record
                )


if __name__ == "__main__":
    main()
