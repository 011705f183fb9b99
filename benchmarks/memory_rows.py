"""What was counted as rows of the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.memory_decoder import ENGINE_BLOCK, Answer
from benchmarks.memory_replay import Counts, contiguous_tokens, ideal_tokens, replay
from benchmarks.memory_samples import Samples
from benchmarks.memory_trace import PAPER, Trace, pairing

BLOCK_SIZES = (1, 8, 16, 32, 128)


@dataclass(frozen=True)
class Held:
    """Sums over the steps of a row's requests together. pairing: of their lengths. unique, unshared: blocks
    of ENGINE_BLOCK. generated: tokens. ideal: tokens that a trie holds. exact, reserved: tokens of contiguous
    caches which are as long as their row, or as it will get."""

    requests: int
    pairing: float
    unique: int
    unshared: int
    copies: int
    generated: int
    ideal: int
    exact: int
    reserved: int


def measured(trace: Trace, kind: str, width: int, answers: list[Answer], block_bytes: int) -> dict[str, Any]:
    """One row: the engine's numbers, and the replays' by block size."""
    decoded = [a.decoded for a in answers]
    exact, reserved = (
        sum(int(contiguous_tokens(d, reserved=r).sum()) for d in decoded) for r in (False, True)
    )
    held = Held(
        requests=len(answers),
        pairing=pairing(*np.array([(a.ask.prompt, a.ask.output) for a in answers]).T),
        unique=sum(a.usage.unique_block_steps for a in answers),
        unshared=sum(a.usage.unshared_block_steps for a in answers),
        copies=sum(a.usage.copies for a in answers),
        generated=sum(a.usage.generated_tokens for a in answers),
        ideal=sum(int(ideal_tokens(d).sum()) for d in decoded),
        exact=exact,
        reserved=reserved,
    )
    sizes = {}
    for size in BLOCK_SIZES:
        counts = [replay(d, size) for d in decoded]
        sizes[size] = sum(counts[1:], counts[0])
    return _row(trace, kind, width, held, sizes, block_bytes)


def counted(trace: Trace, samples: Samples, block_bytes: int) -> dict[str, Any]:
    """The same row of samples that no model decoded."""
    sizes = {size: samples.counts(size) for size in BLOCK_SIZES}
    own = sizes[ENGINE_BLOCK]
    held = Held(
        requests=len(samples.prompts),
        pairing=pairing(samples.prompts, samples.outputs),
        unique=own.unique_blocks,
        unshared=own.unshared_blocks,
        copies=own.copies,
        generated=samples.width * int(samples.outputs.sum()),
        ideal=samples.ideal_tokens(),
        exact=samples.contiguous_tokens(reserved=False),
        reserved=samples.contiguous_tokens(reserved=True),
    )
    return _row(trace, "sample", samples.width, held, sizes, block_bytes)


def _row(
    trace: Trace, kind: str, width: int, held: Held, sizes: Mapping[int, Counts], block_bytes: int
) -> dict[str, Any]:
    slots = held.unique * ENGINE_BLOCK
    by_size = {size: _by_block_size(counts, size, held) for size, counts in sizes.items()}
    return {
        "trace": trace.name,
        "kind": kind,
        "width": width,
        "requests": held.requests,
        "pairing": held.pairing,
        "generated_tokens": held.generated,
        "saving": 1 - held.unique / held.unshared,
        "paper": PAPER.get((trace.name, kind)) if width in (2, 4, 6) else None,
        "blocks_over_ideal": slots / held.ideal,
        "waste": by_size[ENGINE_BLOCK]["waste"],
        "copies_per_token": held.copies / held.generated,
        "copied_bytes_per_token": held.copies * block_bytes / held.generated,
        "contiguous_over_ours": held.exact / slots,
        "reserved_over_ours": held.reserved / slots,
        "block_sizes": by_size,
    }


def _by_block_size(counts: Counts, size: int, held: Held) -> dict[str, float]:
    slots = counts.unique_blocks * size
    return {
        "saving": 1 - counts.unique_blocks / counts.unshared_blocks,
        "blocks_over_ideal": slots / held.ideal,
        "waste": counts.wasted_slots / slots,
        "copies_per_token": counts.copies / held.generated,
        "copied_tokens_per_token": counts.copies * size / held.generated,
        "contiguous_over_ours": held.exact / slots,
    }
