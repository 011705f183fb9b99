"""Draws from what rows' lists hold: the vocabulary is read once, for its sum, and then the lists alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.draw import Outputs, Settings
from forkdecode_kernels.cpu.selection.jit import entry, inlined, kernel
from forkdecode_kernels.cpu.selection.listed import Lists, readable, rows_of
from forkdecode_kernels.cpu.selection.listed_rows import best_listed, list_tokens, remaining, weigh
from forkdecode_kernels.cpu.selection.parallel import for_each_block
from forkdecode_kernels.cpu.selection.rows import CHUNK, as_numpy, is_ready, row_sums, to_float32
from forkdecode_kernels.cpu.selection.scratch import Scratch, make_scratch
from forkdecode_kernels.cpu.selection.weights import chunk_in, place_in, scale_of

ROWS_PER_BLOCK = 8

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


def listed_draw(
    logits: torch.Tensor, lists: Lists, offsets: I64, settings: Settings, uniform: F64, *, threads: int
) -> Outputs:
    """See forkdecode_kernels.listed_draw; logits [R, V] are one group's."""
    source = as_numpy(logits)
    count, vocab = source.shape
    lists = readable(lists)
    out = Outputs(
        np.full(len(uniform), -1, np.int64),
        np.zeros(len(uniform), np.float32),
        np.zeros(count, np.float64),
        np.zeros(count, np.uint8),
        np.empty((0, 0), np.float32),
    )
    ready = is_ready(source)

    def make_work() -> Callable[[int, int], None]:
        scratch = make_scratch(vocab)

        def work(first: int, last: int) -> None:
            own = slice(first, last)
            values = np.asarray(source[own], np.float32) if ready else to_float32(source[own])
            _draw_rows(values, first, rows_of(lists, own), offsets, settings, uniform, out, scratch)

        return work

    for_each_block(count, ROWS_PER_BLOCK, threads, make_work)
    return out


@entry
def _draw_rows(
    values: F32, first: int, lists: Lists, offsets: I64, settings: Settings, uniform: F64, out: Outputs,
    scratch: Scratch,
) -> None:  # fmt: skip
    tiles, sums = np.empty((1, scratch.tiles.shape[0]), np.int32), np.empty(1, np.float64)
    valid, self = np.empty(1, np.bool_), np.zeros(1, np.int64)
    for r in range(values.shape[0]):
        at, row = first + r, values[r]
        row_sums(values[r : r + 1], self, tiles, sums, valid, False)
        out.logsumexp[at] = sums[0]
        if not valid[0]:
            out.status[at] = 1
            continue
        n = list_tokens(lists, r, scratch.ids)
        maximum = best_listed(row, scratch.ids[:n])
        if maximum == -np.inf:
            out.status[at] = 2
        elif settings.temperature[at] == 0.0:
            _greedy(row, at, n, maximum, offsets, out, scratch)
        else:
            _sampled(row, at, n, maximum, offsets, settings, uniform, out, scratch)


@inlined
def _greedy(
    row: F32, at: int, n: int, maximum: np.float32, offsets: I64, out: Outputs, scratch: Scratch
) -> None:
    log_total = math.log(weigh(row, n, maximum, np.float32(1.0), scratch))
    j = 0
    while row[scratch.ids[j]] != maximum:
        j += 1
    for child in range(offsets[at], offsets[at + 1]):
        out.tokens[child] = scratch.ids[j]
        out.logprobs[child] = np.float32(-log_total)


@inlined
def _sampled(
    row: F32, at: int, n: int, maximum: np.float32, offsets: I64, settings: Settings, uniform: F64,
    out: Outputs, scratch: Scratch,
) -> None:  # fmt: skip
    scale = scale_of(settings.temperature[at])
    n, total, filtered = remaining(row, at, n, maximum, scale, settings, scratch)
    log_total = math.log(total)
    for child in range(offsets[at], offsets[at + 1]):
        target = uniform[child] * total
        if filtered:
            token = scratch.ids[place_in(scratch.cumulative[:n], target)]
        else:
            token = _find(scratch.ids[:n], scratch.weights[:n], scratch.sums, target)
        out.tokens[child] = token
        out.logprobs[child] = np.float32(np.float64((row[token] - maximum) * scale) - log_total)


@kernel
def _find(ids: I32, weights: F32, sums: F64, target: np.float64) -> int:
    """The first token whose cumulative weight exceeds target: by chunk, then inside it."""
    last, before, inside = chunk_in(sums, target)
    token = last * CHUNK
    for j in range(np.searchsorted(ids, last * CHUNK), ids.shape[0]):
        if ids[j] >= (last + 1) * CHUNK:
            break
        if weights[j] > np.float32(0.0):
            token = int(ids[j])
            before += np.float64(weights[j])
            if inside and before > target:
                break
    return token
