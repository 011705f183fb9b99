"""Best continuations of each row by a full sort of it, on any device: the specification of the operation."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.reference.logsumexp import log_softmax, row_logsumexp
from forkdecode_kernels.transfer import to_device, to_host


def row_candidates(
    logits: torch.Tensor,
    rows: NDArray[np.int64],
    k: NDArray[np.int64],
    base: NDArray[np.float32],
    *,
    normalized: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]:
    """row, token, score, logprob [N] and valid [m] of the k[i] best of each logits[rows[i]], sorted by row,
    score and token."""
    index, bases = to_device([rows, base], logits.device)
    chosen = logits[index]
    lse, valid = row_logsumexp(chosen)
    logprobs = chosen.float() if normalized else log_softmax(chosen, lse)
    scores = torch.where(valid[:, None], bases[:, None] + logprobs, -torch.inf)
    most = min(int(k.max()), logits.shape[1])
    # A stable sort leaves equals in the order of tokens, which topk would not.
    best = torch.sort(scores, dim=1, descending=True, stable=True)
    tokens = best.indices[:, :most]
    told = to_host([tokens, best.values[:, :most], logprobs.gather(1, tokens), valid])
    kept_tokens, kept_scores, kept_logprobs, fine = told
    listed = (np.arange(most) < k[:, None]) & (kept_scores > -np.inf)
    row, _ = np.nonzero(listed)
    return row, kept_tokens[listed], kept_scores[listed], kept_logprobs[listed], fine
