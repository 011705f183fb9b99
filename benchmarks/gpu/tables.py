"""The block tables of gpu_check's workloads, as node lists and as dense tables."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.cases import Model, Workload, workloads
from forkdecode.kv.forest_plan import ForestPlan
from forkdecode.model.node_plans import Planners
from forkdecode.model.step_shape import StepShape
from forkdecode.step import I32, DecodeRows


def decode_rows(work: Workload, block_size: int, rng: np.random.Generator) -> tuple[list[DecodeRows], int]:
    """Tables with block ids in random order, and how many blocks there are."""
    columns = max(1, work.own // block_size)
    trunk = work.trunk // block_size
    names = rng.permutation(work.groups * (trunk + work.rows * columns)).astype(np.int32)
    taken = 0

    def take(n: int) -> I32:
        nonlocal taken
        taken += n
        return names[taken - n : taken]

    found, token = [], 0
    for _ in range(work.groups):
        own_trunk = take(trunk)
        tails = np.empty((work.rows, 0), np.int32)
        for column in range(columns):
            if column and column * block_size % work.fork_every == 0:
                tails = tails[np.sort(rng.integers(0, work.rows, work.rows))]
            tails = np.column_stack([tails, take(work.rows)])
        context = (trunk + columns) * block_size - int(rng.integers(0, block_size))
        found.append(DecodeRows(token, own_trunk, tails, context))
        token += work.rows
    return found, len(names)


def dense_tables(decodes: list[DecodeRows], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Block tables [R, n] and lengths [R], as per-row paged attention reads them."""
    rows = [np.concatenate([d.trunk, tail]) for d in decodes for tail in d.tails]
    dense = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for i, row in enumerate(rows):
        dense[i, : len(row)] = row
    lengths = np.concatenate([np.full(d.rows, d.context_len, np.int32) for d in decodes])
    return torch.from_numpy(dense).to(device), torch.from_numpy(lengths).to(device)


def compulsory_bytes(
    tables: NDArray[np.int32], lengths: NDArray[np.int32], model: Model, element_bytes: int
) -> int:
    """What attention of these rows (tables [R, n], lengths [R]) has to move, however it is done: keys and
    values that any row reads once, and a query and a result for each row. No partial results."""
    held = np.zeros(int(tables.max()) + 1, np.int64)
    begin = np.arange(tables.shape[1]) * model.block_size
    np.maximum.at(held, tables, np.clip(lengths[:, None] - begin, 0, model.block_size))
    read = int(held.sum()) * 2 * model.kv_heads
    return (read + 2 * len(tables) * model.heads) * model.dim * element_bytes


def plans(bench: Bench) -> dict[str, Any]:
    """Microseconds of the host for a fresh plan of each workload. The first of all compiles what makes plans,
    so that no other part waits for it."""
    seconds = {}
    begin = time.perf_counter()
    for work in (workloads(True)[0], *workloads(bench.rehearse)):
        decodes, _ = decode_rows(work, Model().block_size, np.random.default_rng(0))
        plan, seconds[work.name] = planned(decodes, Model(), bench.dtype, bench.device)
        if len(seconds) == 1:
            compiled = time.perf_counter() - begin
    return {
        "compiled_us": 1e6 * compiled,
        "plan_us": {work.name: 1e6 * seconds[work.name] for work in workloads(bench.rehearse)},
        "ok": len(plan.large_items) + len(plan.small_items) > 0,
    }


def planned(
    decodes: list[DecodeRows], model: Model, dtype: torch.dtype, device: torch.device
) -> tuple[ForestPlan, float]:
    """The runner's plan unless it is to be batch_invariant, and the seconds that a fresh one takes."""
    key = (model.heads, model.kv_heads, model.dim, None)
    step = StepShape((), decodes, sum(d.rows for d in decodes))
    times = []
    for _ in range(8):
        planners = Planners(model.block_size, device, batch_invariant=False)
        begin = time.perf_counter()
        plan = planners.plan(key, dtype.itemsize, step)
        times.append(time.perf_counter() - begin)
    return plan, float(np.median(times[1:]))  # the first may compile
