"""Correctness, then speed, of every GPU kernel: to be run where there is a GPU, in under five minutes.

    python benchmarks/gpu_check.py [--json gpu_check.json] [--rehearse]

Compares each kernel with its reference, then times it against ceilings measured on the same GPU (a copy
for bandwidth, a matrix product for compute). --rehearse runs the whole script with small shapes in
Triton's interpreter: it shows that the script works, its times say nothing. Needs no network.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

REHEARSE = "--rehearse" in sys.argv
if REHEARSE:
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "kernels")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
import triton  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

from benchmarks.gpu_cases import FULL, REHEARSAL, Model, Workload  # noqa: E402
from benchmarks.gpu_engine import end_to_end  # noqa: E402
from benchmarks.gpu_selection import Bench, draws, mixed_step, noise, row_selection, selection, transfers  # noqa: E402
from forkdecode.kv.bytes_moved import bytes_moved  # noqa: E402
from forkdecode.kv.forest_plan import ForestPlan  # noqa: E402
from forkdecode.model.node_plans import Planners, StepShape  # noqa: E402
from forkdecode.step import DecodeRows  # noqa: E402
from forkdecode_kernels.node_list import NodeList, check_nodes, node_list  # noqa: E402
from forkdecode_kernels.reference import node_attention as node_reference  # noqa: E402
from forkdecode_kernels.reference import paged_decode as paged_reference  # noqa: E402
from forkdecode_kernels.triton.copy_blocks import copy_blocks  # noqa: E402
from forkdecode_kernels.triton.node_attention import node_attention  # noqa: E402
from forkdecode_kernels.triton.paged_decode import paged_decode  # noqa: E402
from forkdecode_kernels.triton.write_kv import write_kv  # noqa: E402

DEVICE = torch.device("cpu" if REHEARSE else "cuda")
DTYPE = torch.bfloat16
MODEL = Model(4, 2, 64) if REHEARSE else Model()


def timed(work: Callable[[], object], repeats: int = 20) -> float:
    """Median seconds, after warm-up. On a GPU by events, with the L2 cache swept in between."""
    if REHEARSE:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin
    sweep = torch.empty(256 << 20, dtype=torch.int8, device=DEVICE)
    times = []
    for i in range(repeats + 3):
        sweep.zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        if i >= 3:
            times.append(begin.elapsed_time(end) / 1000)
    return sorted(times)[len(times) // 2]


def ceilings() -> dict[str, float]:
    """Bytes a second of a copy (read and write counted) and bf16 FLOP a second of a matrix product."""
    size = 1 << (16 if REHEARSE else 30)
    source = torch.zeros(size, dtype=torch.int8, device=DEVICE)
    target = torch.empty_like(source)
    n = 64 if REHEARSE else 8192
    a = torch.randn(n, n, device=DEVICE, dtype=DTYPE)
    return {
        "bandwidth": 2 * size / timed(lambda: target.copy_(source)),
        "flops": 2 * n**3 / timed(lambda: a @ a),
    }


def table(decodes: list[DecodeRows]) -> tuple[torch.Tensor, torch.Tensor]:
    """Dense block tables [R, n] and lengths [R], as per-row paged attention reads them."""
    rows = [np.concatenate([d.trunk, tail]) for d in decodes for tail in d.tails]
    dense = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for i, row in enumerate(rows):
        dense[i, : len(row)] = row
    lengths = np.concatenate([np.full(d.rows, d.context_len, np.int32) for d in decodes])
    return torch.from_numpy(dense).to(DEVICE), torch.from_numpy(lengths).to(DEVICE)


def planned(decodes: list[DecodeRows]) -> tuple[ForestPlan, NodeList, float]:
    """The runner's plan, its node list on the device, and the seconds that a fresh plan takes."""
    key = (MODEL.heads, MODEL.kv_heads, MODEL.dim, None)
    step = StepShape((), decodes, sum(d.rows for d in decodes))
    times = []
    for _ in range(8):
        planners = Planners(MODEL.block_size, DEVICE)
        begin = time.perf_counter()
        plan = planners.plan(key, DTYPE.itemsize, step)
        times.append(time.perf_counter() - begin)
    return plan, node_list(plan, DEVICE), float(np.median(times[1:]))  # the first may compile


def attention(work: Workload, limits: dict[str, float]) -> dict[str, Any]:
    """One workload as forest, per-row paged, and torch SDPA on gathered keys and values."""
    rng = np.random.default_rng(0)
    decodes, num_blocks = work.decodes(MODEL.block_size, rng)
    rows = work.groups * work.rows
    query = torch.randn(MODEL.heads, rows, MODEL.dim, device=DEVICE).to(DTYPE)
    kv = torch.randn(2, MODEL.kv_heads, num_blocks, MODEL.block_size, MODEL.dim, device=DEVICE, dtype=DTYPE)
    plan, nodes, plan_seconds = planned(decodes)
    check_nodes(plan, num_blocks, rows, MODEL.block_size)
    tables, lengths = table(decodes)
    options: dict[str, Any] = {"scale": MODEL.dim**-0.5, "window": None, "softcap": None, "sinks": None}
    splits = 1 if rows * MODEL.kv_heads >= 256 else 8

    def forest() -> torch.Tensor:
        return node_attention(query, kv, nodes, **options)

    def paged() -> torch.Tensor:
        return paged_decode(query, kv, tables, lengths, splits=splits, **options)

    some = torch.arange(0, rows, max(1, rows // 16), device=DEVICE)
    exact = paged_reference.paged_decode(query[:, some], kv, tables[some], lengths[some], **options).float()
    errors = {
        "forest_error": float((forest()[some].float() - exact).abs().max()),
        "paged_error": float((paged()[some].float() - exact).abs().max()),
    }
    if REHEARSE:
        spec = node_reference.node_attention(query, kv, nodes, **options).float()
        errors["reference_error"] = float((forest().float() - spec).abs().max())
    moved = bytes_moved(
        plan,
        num_heads=MODEL.heads,
        num_kv_heads=MODEL.kv_heads,
        head_dim=MODEL.dim,
        element_bytes=DTYPE.itemsize,
    )
    flops = 4 * MODEL.heads * MODEL.dim * plan.row_tokens
    bound = max(moved.forest / limits["bandwidth"], flops / limits["flops"])
    seconds = {"forest": timed(forest), "paged": timed(paged), "sdpa": sdpa(query, kv, tables, lengths)}
    return {
        "workload": work.name,
        "rows": rows,
        **errors,
        **{f"{name}_us": 1e6 * value for name, value in seconds.items()},
        "plan_us": 1e6 * plan_seconds,
        "bytes_gain": moved.gain,
        "speedup_over_paged": seconds["paged"] / seconds["forest"],
        "share_of_ceiling": bound / seconds["forest"],
        "bound_by": "bandwidth" if bound > flops / limits["flops"] else "compute",
        "ok": max(errors.values()) < 0.02,
    }


def sdpa(query: torch.Tensor, kv: torch.Tensor, tables: torch.Tensor, lengths: torch.Tensor) -> float:
    """torch's attention on gathered keys and values; the gather is not timed. In chunks of memory."""
    row_bytes = 2 * tables.shape[1] * MODEL.block_size * MODEL.kv_heads * MODEL.dim * DTYPE.itemsize
    chunk = max(1, (8 << 30) // row_bytes)
    total = 0.0
    for first in range(0, len(tables), chunk):
        own = tables[first : first + chunk].long()
        keys, values = kv[:, :, own].flatten(3, 4).transpose(1, 2)
        at = torch.arange(keys.shape[2], device=DEVICE)
        mask = (at < lengths[first : first + chunk, None])[:, None, None]
        q = query[:, first : first + chunk].transpose(0, 1)[:, :, None]
        total += timed(partial(scaled_dot_product_attention, q, keys, values, mask, enable_gqa=True), 5)
    return total


def block_moves(limits: dict[str, float]) -> dict[str, Any]:
    """A step's copies at the size of an 8B model (32 layers, 188 blocks), and one token a row written."""
    layers, pairs_n, blocks = (2, 3, 10) if REHEARSE else (32, 188, 600)
    shape = (layers, 2, MODEL.kv_heads, blocks, MODEL.block_size, MODEL.dim)
    pool = torch.zeros(shape, dtype=DTYPE, device=DEVICE)
    pool.normal_()
    pairs = torch.from_numpy(np.random.default_rng(0).permutation(blocks)[: 2 * pairs_n].reshape(-1, 2))
    expected = pool.clone()
    expected[:, :, :, pairs[:, 1]] = pool[:, :, :, pairs[:, 0]]
    device_pairs = pairs.to(DEVICE)
    count = torch.full((1,), pairs_n, dtype=torch.int32, device=DEVICE)
    copy_blocks(pool, pool, device_pairs, count)
    ok = torch.equal(pool, expected)
    del expected
    rows = 8 if REHEARSE else 512
    key = torch.randn(MODEL.kv_heads, rows, MODEL.dim, device=DEVICE).to(DTYPE)
    slots = torch.randperm(blocks * MODEL.block_size)[:rows].to(DEVICE)
    write_kv(pool[0], key, key, slots)
    ok &= torch.equal(pool[0, 1].flatten(1, 2)[:, slots], key)
    seconds = timed(lambda: copy_blocks(pool, pool, device_pairs, count))
    moved = 2 * pairs_n * pool[:, :, :, 0].numel() * DTYPE.itemsize
    return {
        "copy_us": 1e6 * seconds,
        "copy_share_of_bandwidth": moved / seconds / limits["bandwidth"],
        "write_us": 1e6 * timed(lambda: write_kv(pool[0], key, key, slots)),
        "ok": bool(ok),
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("gpu_check.json"))
    parser.add_argument("--rehearse", action="store_true", help="small shapes in the interpreter")
    args = parser.parse_args()
    torch.manual_seed(0)
    limits = ceilings()
    bench = Bench(DEVICE, DTYPE, REHEARSE, timed)
    result = {
        "rehearsal": args.rehearse,
        "device": "interpreter" if REHEARSE else torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "ceilings": limits,
        "attention": [attention(w, limits) for w in (REHEARSAL if REHEARSE else FULL)],
        "selection": selection(bench, limits["bandwidth"]),
        "row_selection": row_selection(bench, limits["bandwidth"]),
        "draws": draws(bench),
        "noise": noise(bench),
        "mixed_step": mixed_step(bench),
        "transfers": transfers(bench, limits["bandwidth"]),
        "block_moves": block_moves(limits),
        "end_to_end": end_to_end(DEVICE, torch.float32 if REHEARSE else DTYPE, rehearse=REHEARSE),
    }
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    print(summary(result))
    others = (
        "selection",
        "row_selection",
        "draws",
        "noise",
        "mixed_step",
        "transfers",
        "block_moves",
        "end_to_end",
    )
    checks = [*result["attention"], *(result[name] for name in others)]
    return int(not all(c["ok"] for c in checks))


def summary(result: dict[str, Any]) -> str:
    """The table."""
    versions = result["versions"]
    lines = [f"{result['device']}, torch {versions['torch']}, triton {versions['triton']}"]
    lines.append("| workload | forest us | paged us | SDPA us | of the ceiling | ok |")
    lines.append("|---|---|---|---|---|---|")
    lines += [
        f"| {a['workload']} | {a['forest_us']:.0f} | {a['paged_us']:.0f} | {a['sdpa_us']:.0f} "
        f"| {a['share_of_ceiling']:.0%} ({a['bound_by']}) | {a['ok']} |"
        for a in result["attention"]
    ]
    s, m = result["selection"], result["block_moves"]
    lines.append(f"selection {s['us']:.0f} us = {s['times_one_read']:.1f} reads of the logits, ok {s['ok']}")
    r = result["row_selection"]
    lines.append(
        f"best of rows {r['us']:.0f} us = {r['times_one_read']:.1f} reads of the logits, ok {r['ok']}"
    )
    for name in ("draws", "noise", "mixed_step"):
        lines.append(f"{name} {result[name]['us']:.0f} us, ok {result[name]['ok']}")
    t = result["transfers"]
    lines.append(
        f"a copy each way {t['us']:.0f} us, {t['share_of_8b_step']:.1%} of a step of 8B, ok {t['ok']}"
    )
    lines.append(f"copies {m['copy_us']:.0f} us, {m['copy_share_of_bandwidth']:.0%} of a copy, ok {m['ok']}")
    e = result["end_to_end"]
    lines.append(
        f"engine: {e['prompts']} beams of {e['width']}, {e['tokens_per_second']:.0f} tokens/s, "
        f"{e['ratio']:.2f}x transformers, {e['step_ms']:.1f} ms a step, ok {e['ok']}"
    )
    if e["compiled_tokens_per_second"] is not None:
        lines.append(
            f"with compile=layers {e['compiled_tokens_per_second']:.0f} tokens/s: {e['faster']} is faster"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
