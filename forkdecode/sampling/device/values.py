"""The logits of groups whose processors or constraints change something, copied and changed on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode.allowed import AllowedBits
from forkdecode.choices import F64, I64
from forkdecode.sampling.allowed import allowed_of, is_masked, lists_of
from forkdecode.sampling.device import processors
from forkdecode.step import SelectionRequest
from forkdecode_kernels.allowed import packed_lists
from forkdecode_kernels.calls import Keeping, Raw, Source, Steps, in_parts, taken

_WIDE = 16
"""Columns that rows are padded to: loads stay wide, and one at least is spare."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Groups that are chosen for together. places [m]: of their rows in the logits; starts [n + 1]: where
    each group's begin among the m."""

    requests: tuple[SelectionRequest, ...]
    places: I64
    starts: I64

    @staticmethod
    def of(requests: Sequence[SelectionRequest]) -> Batch:
        places = [np.arange(r.rows, dtype=np.int64) + r.logits_start for r in requests]
        starts = np.cumsum([0, *(r.rows for r in requests)])
        return Batch(tuple(requests), np.concatenate(places), starts)

    def own(self, index: int) -> slice:
        """The rows of group `index`."""
        return slice(int(self.starts[index]), int(self.starts[index + 1]))


@in_parts
def changed_values(batch: Batch, vocab: int, *, log_softmax: bool) -> Steps[F64]:
    """The rows' logits, or log-probabilities, after processors and masks: keeps them as a Source. What comes
    of it is the logsumexp [m] of the rows as they came, NaN where they hold NaN or +inf."""
    from forkdecode_kernels.triton import float_rows as fast

    asked = [processors.arrays_of(r, vocab) for r in batch.requests]
    masks = _masks(batch, vocab)
    flat = [a for arrays in asked for a in arrays.values()]
    source, (places, *sent) = yield [batch.places, *flat, *masks]
    logits = source.values
    wide = torch.empty(len(places), (vocab // _WIDE + 1) * _WIDE, dtype=torch.float32, device=logits.device)
    values, logsumexp = wide[:, :vocab], fast.row_logsumexp(logits, places)
    fast.float_rows(logits, places, logsumexp, values, log_softmax=log_softmax)
    take = taken(sent)
    for i, (request, arrays) in enumerate(zip(batch.requests, asked, strict=True)):
        there = dict(zip(arrays, take(len(arrays)), strict=True))
        processors.apply(wide[batch.own(i)], vocab, request, there)
    _mask(values, take(len(masks)))
    told = yield Keeping([logsumexp], Source(values, Raw(logits, places, logsumexp)))
    return np.asarray(told[0], np.float64)


def _masks(batch: Batch, vocab: int) -> list[NDArray[Any]]:
    """Rows and words of those masked by bits; rows, tokens, starts and stops of those by lists. Raises
    ValueError for what does not fit the vocabulary."""
    none = np.empty(0, np.int32)
    bits: list[tuple[NDArray[Any], ...]] = [(np.empty(0, np.int64), np.empty((0, -(-vocab // 32)), np.int32))]
    lists: list[tuple[NDArray[Any], ...]] = [(np.empty(0, np.int64), none, none, none)]
    entries = 0
    for i, request in enumerate(batch.requests):
        allowed = allowed_of(request) if is_masked(request) else None
        rows = np.arange(batch.starts[i], batch.starts[i + 1])
        if isinstance(allowed, AllowedBits):
            if allowed.words.shape != (len(rows), -(-vocab // 32)):
                raise ValueError(f"a mask of {len(rows)} rows of {vocab} bits can't be {allowed.words.shape}")
            bits.append((rows, allowed.words.view(np.int32)))
        elif allowed is not None:
            given = lists_of(allowed, request)
            given.check(vocab)
            tokens, start, stop = packed_lists(given)
            lists.append((rows, tokens, start + np.int32(entries), stop + np.int32(entries)))
            entries += len(tokens)
    return [np.concatenate(column) for table in (bits, lists) for column in zip(*table, strict=True)]


def _mask(values: torch.Tensor, sent: Sequence[torch.Tensor]) -> None:
    """sent: what _masks named."""
    from forkdecode_kernels.triton import float_rows as fast

    bit_rows, words, list_rows, tokens, start, stop = sent
    fast.keep_bits(values, bit_rows, words)
    if len(list_rows):
        fast.keep_bits(values, list_rows, fast.bits_of_lists(tokens, start, stop, values.shape[1]))
