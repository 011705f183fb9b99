"""What gpu_check measures of selections: beams over a group's rows, each row's best, draws, noise, and the
copies between host and device that each of them needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.bench import Bench
from forkdecode.allowed import AllowedBits, Ready
from forkdecode.sampling.device.select import select_on_device
from forkdecode.step import Draw, ProcessorSpec, SelectionRequest, SelectionResult, TopK
from forkdecode_kernels.calls import Call, Source
from forkdecode_kernels.draw import DrawRows, gpu_draws, reference_draws
from forkdecode_kernels.perturbed import PerturbedRows, gpu_topk
from forkdecode_kernels.reference.perturbed import perturbed_row
from forkdecode_kernels.row_candidates import gpu_rows, rows_call, sorted_rows
from forkdecode_kernels.topk import RowGroups, gpu_groups, groups_call, reference_group
from forkdecode_kernels.transfer import to_device, to_host


def selection(bench: Bench) -> dict[str, Any]:
    """Beam top-k against logsumexp and topk of torch, and against one read of the logits."""
    rows, vocab, k = (4, 9000, 8) if bench.rehearse else (512, 151_936, 1024)
    logits = _logits(bench, rows, vocab)
    base = np.zeros(rows, np.float32)
    groups = RowGroups(np.array([0]), np.array([rows]), np.array([k]))
    ours = gpu_groups(logits, groups, base, False)[0]
    few = slice(0, min(rows, 8))
    part = RowGroups(np.array([0]), np.array([few.stop]), np.array([8]))
    a, b = (
        gpu_groups(logits[few], part, base[few], False)[0],
        reference_group(logits[few], base[few], 8, False),
    )

    def plain() -> torch.Tensor:
        scores = logits - torch.logsumexp(logits.float(), -1, keepdim=True)
        return scores.flatten().topk(k).values

    return {
        "shape": [rows, vocab, k],
        "us": 1e6 * bench.timed(lambda: gpu_groups(logits, groups, base, False)),
        "torch_us": 1e6 * bench.timed(plain, 5),
        **_against_one_read(bench, logits, lambda: groups_call(groups, base, vocab, normalized=False)),
        "ok": bool(
            len(ours.tokens) == k
            and np.array_equal(a.tokens, b.tokens)
            and np.abs(a.scores - b.scores).max() < 1e-5
        ),
    }


def _against_one_read(bench: Bench, logits: torch.Tensor, made: Callable[[], Call[Any]]) -> dict[str, float]:
    """Seconds of the device alone, without the copies each way and what launches cost the host, and as a
    multiple of the time that it takes to read the logits once."""
    sent = to_device(made().arrays, bench.device)
    seconds = bench.timed(bench.replayed(lambda: made().launch(Source(logits), sent)))
    one_read = logits.numel() * logits.element_size() / bench.bandwidth
    return {"device_us": 1e6 * seconds, "times_one_read": seconds / one_read}


def _logits(bench: Bench, rows: int, vocab: int) -> torch.Tensor:
    return bench.normal(rows, vocab) * 3


def draws(bench: Bench) -> dict[str, Any]:
    """Draws with every filter against full sorts in float64. A draw may differ where u falls within
    float32 rounding of two tokens' edge."""
    rows, vocab = (2, 300) if bench.rehearse else (512, 151_936)
    logits = _logits(bench, rows, vocab)
    uniform = np.random.default_rng(0).random(rows)
    few = min(rows, 32)
    ours = gpu_draws(logits, draw_settings(few), uniform[:few]).tokens
    spec = reference_draws(logits, draw_settings(few), uniform[:few]).tokens
    different = int((ours != spec).sum())
    return {
        "shape": [rows, vocab],
        "us": 1e6 * bench.timed(lambda: gpu_draws(logits, draw_settings(rows), uniform)),
        "different": different,
        "ok": different <= 1,
    }


def draw_settings(rows: int) -> DrawRows:
    """One child a row, all filters on."""
    ones = np.ones(rows)
    top_k = np.full(rows, 50, np.int64)
    offsets = np.arange(rows + 1)
    return DrawRows(np.arange(rows), offsets, 0.8 * ones, top_k, 0.95 * ones, 0.01 * ones, ones)


def row_selection(bench: Bench) -> dict[str, Any]:
    """The 16 best of each row, against a sort of the first rows."""
    rows, vocab, k = (3, 5000, 2) if bench.rehearse else (512, 151_936, 16)
    logits = _logits(bench, rows, vocab)
    every, ks, base = np.arange(rows), np.full(rows, k), np.zeros(rows, np.float32)
    few = slice(0, min(rows, 8))
    ours = gpu_rows(logits, every[few], ks[few], base[few], normalized=False)
    spec = sorted_rows(logits, every[few], ks[few], base[few], normalized=False)
    return {
        "shape": [rows, vocab, k],
        "us": 1e6 * bench.timed(lambda: gpu_rows(logits, every, ks, base, normalized=False)),
        "sort_us": 1e6 * bench.timed(lambda: sorted_rows(logits, every, ks, base, normalized=False), 5),
        **_against_one_read(bench, logits, lambda: rows_call(every, ks, base, vocab, normalized=False)),
        "ok": bool(len(ours.row) == len(spec.row) and np.abs(ours.score - spec.score).max() < 1e-5),
    }


def noise(bench: Bench) -> dict[str, Any]:
    """The 8 best of each row with Gumbel noise, against the specification for the first rows."""
    rows, vocab, k = (2, 300, 3) if bench.rehearse else (64, 151_936, 8)
    logprobs = torch.log_softmax(_logits(bench, rows, vocab).float(), -1)
    lineage = np.arange(rows, dtype=np.uint64)
    wanted = PerturbedRows(np.zeros(rows), np.full(rows, np.inf), lineage, np.full(rows, 7), np.full(rows, k))
    ours = gpu_topk(logprobs, wanted)
    alike = [
        _as_specified(ours.tokens[ours.rows == r], ours.perturbed[ours.rows == r], logprobs[r].cpu(), r, k)
        for r in range(min(rows, 8))
    ]
    return {
        "shape": [rows, vocab, k],
        "us": 1e6 * bench.timed(lambda: gpu_topk(logprobs, wanted)),
        "ok": all(alike),
    }


def _as_specified(
    tokens: np.ndarray, perturbed: np.ndarray, logprobs: torch.Tensor, row: int, k: int
) -> bool:
    wanted, scores = perturbed_row(logprobs.numpy(), 0.0, np.inf, row, 7, k)
    return np.array_equal(tokens, wanted) and np.allclose(perturbed, scores)


def transfers(bench: Bench) -> dict[str, Any]:
    """One copy each way of what draws of 512 rows send and get, which is a part of what a step waits for; the
    engine's part measures all of it. As a share of the shortest step of a model of 8B: all its weights read
    once, 2 bytes each. By the host's clock, which stands still for it."""
    arrays = [np.arange(512), np.arange(512), *(np.linspace(0, 1, 512) for _ in range(5))]
    back = to_host(to_device(arrays, bench.device))
    seconds = bench.waited(lambda: to_host(to_device(arrays, bench.device)[:5]))
    return {
        "us": 1e6 * seconds,
        "share_of_8b_step": seconds / (2 * 8e9 / bench.bandwidth),
        "ok": all(np.array_equal(a, b) for a, b in zip(arrays, back, strict=True)),
    }


def mixed_step(bench: Bench) -> dict[str, Any]:
    """A step's selections with masks, penalties, top lists, draws and beams together, which is one copy each
    way. Each group must get what it gets alone, bit for bit."""
    logits, requests = _mixed(bench)
    rows = requests[0].rows
    together = select_on_device(logits, requests)
    few = requests[: 2 if bench.rehearse else 8]
    alone = [
        select_on_device(logits[r.logits_start :][:rows], [dataclasses.replace(r, logits_start=0)])[0]
        for r in few
    ]
    return {
        "shape": [len(requests), *logits.shape],
        "us": 1e6 * bench.timed(lambda: select_on_device(logits, requests)),
        "different": _different(together[: len(few)], alone, to_the_bit=True),
        "ok": all(r.error is None for r in together)
        and not _different(together[: len(few)], alone, to_the_bit=True),
    }


def mixed_step_on_cpu(bench: Bench) -> dict[str, Any]:
    """The same step against the CPU's own selections, which must be compiled first. A draw may differ where u
    is within float32 rounding of two tokens' edge."""
    from forkdecode.sampling.select import select

    logits, requests = _mixed(bench)
    few = requests[:8]
    ours = select_on_device(logits, few)
    spec = select(logits[: few[0].rows * len(few)].cpu(), few)
    different = _different(ours, spec)
    return {"different": different, "ok": different <= 1 and all(r.error is None for r in ours)}


def _different(
    ours: Sequence[SelectionResult], theirs: Sequence[SelectionResult], *, to_the_bit: bool = False
) -> int:
    """Groups that chose other tokens; to_the_bit: or have other log-probabilities."""
    names = ("tokens", "rows", "logprobs", "scores") if to_the_bit else ("tokens",)
    return sum(
        any(not np.array_equal(getattr(a, name), getattr(b, name)) for name in names)
        for a, b in zip(ours, theirs, strict=True)
    )


def _mixed(bench: Bench) -> tuple[torch.Tensor, list[SelectionRequest]]:
    """Logits, and groups of four rows each that ask for all kinds of things."""
    groups, rows, vocab = (4, 2, 300) if bench.rehearse else (32, 4, 151_936)
    return _logits(bench, groups * rows, vocab), [_group(i, rows, vocab) for i in range(groups)]


def _group(i: int, rows: int, vocab: int) -> SelectionRequest:
    """By turns a beam, a masked beam, a draw with penalties and a draw with a top list."""
    base, children = np.zeros(rows, np.float32), np.arange(rows)
    rng = np.random.default_rng(i)
    words = rng.integers(0, 2**32, (rows, -(-vocab // 32)), dtype=np.uint64).astype(np.uint32)
    draw = Draw(children.astype(np.int32), children.astype(np.uint64), i, temperature=0.8, top_p=0.9)
    kinds: list[dict[str, Any]] = [
        {"choice": TopK(2 * rows, base, rows)},
        {"choice": TopK(2 * rows, base, rows), "allowed": Ready(AllowedBits(words))},
        {"choice": draw, "processors": ProcessorSpec(repetition_penalty=1.2)},
        {"choice": draw, "num_logprobs": 3},
    ]
    made = rng.integers(0, vocab, (rows, 16))
    common = {"processors": ProcessorSpec(), "prompt": made[0], "generated": made, "num_generated": 16}
    return SelectionRequest(group_id=i, logits_start=rows * i, rows=rows, **(common | kinds[i % 4]))
