"""Draws, and the best of each row, where the rows of a group may continue with listed tokens alone.

What comes out is what masking the logits would leave (`allowed.keep_listed`, then `filtered_draw`,
`row_candidates` or `perturbed_topk`), bit for bit, with less to read: each row once for the sum of its whole
vocabulary, and then its list. On the CPU alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.allowed import TokenLists
from forkdecode_kernels.cpu.selection import listed_best as best
from forkdecode_kernels.cpu.selection import listed_draw as draws_cpu
from forkdecode_kernels.cpu.selection.draw import Settings
from forkdecode_kernels.cpu.selection.listed import Lists
from forkdecode_kernels.cpu.selection.typical import LISTED
from forkdecode_kernels.draw import DrawRows, Draws, raw_logprobs_of
from forkdecode_kernels.perturbed import Perturbed, PerturbedRows
from forkdecode_kernels.topk import Continuations


def longest_list(vocab: int) -> int:
    """How many tokens a list may have to be shorter work than a mask."""
    return vocab // LISTED


def listed_draw(
    logits: torch.Tensor,
    lists: TokenLists,
    draws: DrawRows,
    uniform: NDArray[np.float64],
    *,
    threads: int = 1,
) -> Draws:
    """`filtered_draw` of all of logits [R, V], one group's; draws.rows are its rows in order."""
    _check(logits, lists)
    settings = Settings(draws.temperature, draws.top_k, draws.top_p, draws.min_p, draws.typical_p)
    out = draws_cpu.listed_draw(
        logits, _given(lists), draws.child_offsets, settings, uniform, threads=threads
    )
    raw = raw_logprobs_of(logits, draws, out.logsumexp, out.tokens)
    return Draws(out.tokens, out.logprobs, raw, out.logsumexp, out.status)


def listed_row_candidates(
    logits: torch.Tensor, lists: TokenLists, base: NDArray[np.float32], k: int, *, threads: int = 1
) -> Continuations:
    """The k best of each row of logits [R, V] by itself; base [R] float32."""
    _check(logits, lists)
    return Continuations(*best.best_of_listed(logits, _given(lists), base, k, threads=threads))


@dataclass(frozen=True, slots=True)
class ListedPerturbed:
    """found: as of perturbed_topk. logsumexp [R] of the rows as they came; valid: none has NaN or +inf."""

    found: Perturbed
    logsumexp: NDArray[np.float64]
    valid: bool


def listed_perturbed(
    logits: torch.Tensor, lists: TokenLists, draws: DrawRows, rows: PerturbedRows, *, threads: int = 1
) -> ListedPerturbed:
    """The best of each row of logits [R, V] by perturbed log-probability under the distribution that `draws`
    would draw from; position and k are those of the first row. A row without legal tokens has none."""
    _check(logits, lists)
    settings = Settings(draws.temperature, draws.top_k, draws.top_p, draws.min_p, draws.typical_p)
    row, token, logprob, value, logsumexp, valid = best.perturbed_of_listed(
        logits,
        _given(lists),
        settings,
        rows.base,
        rows.maximum,
        rows.lineage,
        int(rows.position[0]),
        int(rows.k[0]),
        threads=threads,
    )
    return ListedPerturbed(Perturbed(row, token, logprob, value), logsumexp, valid)


def _given(lists: TokenLists) -> Lists:
    arrays = (lists.tokens, lists.start, lists.stop, lists.ends, lists.also, lists.also_ids)
    return Lists(*arrays, lists.without_ends)


def _check(logits: torch.Tensor, lists: TokenLists) -> None:
    rows = len(logits)
    if logits.dim() != 2 or not len(lists.start) == len(lists.stop) == len(lists.also) == rows:
        raise ValueError(f"lists of {len(lists.start)} rows for logits {tuple(logits.shape)}")
    lists.check(logits.shape[1])
