"""The best continuations of a group whose rows may continue with listed tokens alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.allowed import TokenLists
from forkdecode_kernels.cpu.selection import listed as cpu
from forkdecode_kernels.reference import listed as reference
from forkdecode_kernels.topk import Continuations


@dataclass(frozen=True, slots=True)
class ListedBest:
    """best: as of beam_topk. entries [N]: which entry of the lists' tokens each is; -1: one of also_ids."""

    best: Continuations
    entries: NDArray[np.int64]


def listed_topk(
    logits: torch.Tensor, lists: TokenLists, base: NDArray[np.float32], k: int, *, threads: int = 1
) -> ListedBest:
    """What beam_topk makes of logits masked by `lists`, with less to read.

    logits [R, V], any float type: one group's. base [R] float32. score = float32(base + logprob), logprob =
    float32(logit - logsumexp of the row's whole vocabulary). Ordered by score, then row, then token; -inf
    is never listed. The answer is bitwise the masked one's, whatever `threads` is.
    """
    rows = len(logits)
    if logits.dim() != 2 or not len(lists.start) == len(lists.stop) == len(lists.also) == rows:
        raise ValueError(f"lists of {len(lists.start)} rows for logits {tuple(logits.shape)}")
    if base.shape != (rows,) or base.dtype != np.float32 or k < 1:
        raise ValueError(f"base must be float32 [{rows}], not {base.dtype} {base.shape}; k is {k}")
    lists.check(logits.shape[1])
    arrays = (lists.tokens, lists.start, lists.stop, lists.ends, lists.also, lists.also_ids)
    if logits.device.type == "cpu":
        given = cpu.Lists(*arrays, lists.without_ends)
        row, token, entry, scores, logprobs, valid = cpu.listed_topk(logits, given, base, k, threads)
    else:
        found = reference.listed_topk(logits, *arrays, lists.without_ends, base, k)
        row, token, entry, scores, logprobs, valid = found
    return ListedBest(Continuations(row, token, scores, logprobs, valid), entry)
