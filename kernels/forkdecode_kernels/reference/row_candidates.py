"""Best continuations of each row by a full sort of it, on any device: the specification of the operation."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.reference.logsumexp import log_softmax, row_logsumexp


def best_of_sorted(
    logits: torch.Tensor, base: torch.Tensor, most: int, *, normalized: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """logits [m, V], base [m] float32 -> tokens, scores, logprobs [m, most], best first, of equals the lower
    token; valid [m]. The scores of a row that is not valid are -inf."""
    lse, valid = row_logsumexp(logits)
    logprobs = logits.float() if normalized else log_softmax(logits, lse)
    scores = torch.where(valid[:, None], base[:, None] + logprobs, -torch.inf)
    # A stable sort leaves equals in the order of tokens, which topk would not.
    best = torch.sort(scores, dim=1, descending=True, stable=True)
    tokens = best.indices[:, :most]
    return tokens, best.values[:, :most], logprobs.gather(1, tokens), valid


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
    index, bases = (torch.from_numpy(a).to(logits.device) for a in (rows, base))
    most = min(int(k.max()), logits.shape[1])
    found = best_of_sorted(logits[index], bases, most, normalized=normalized)
    tokens, scores, logprobs, valid = (t.cpu().numpy() for t in found)
    listed = (np.arange(most) < k[:, None]) & (scores > -np.inf)
    row, _ = np.nonzero(listed)
    return row, tokens[listed], scores[listed], logprobs[listed], valid
