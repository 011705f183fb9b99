"""Best continuations of each row by a full sort of it, on any device: the specification of the operation."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode_kernels.reference.logsumexp import log_softmax, row_logsumexp


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
    chosen = logits[torch.from_numpy(rows).to(logits.device)]
    lse, valid = row_logsumexp(chosen)
    logprobs = chosen.float() if normalized else log_softmax(chosen, lse)
    scores = torch.from_numpy(base).to(logits.device)[:, None] + logprobs
    scores[~valid] = -torch.inf
    most = min(int(k.max()), logits.shape[1])
    # A stable sort leaves equals in the order of tokens, which topk would not.
    best = torch.sort(scores, dim=1, descending=True, stable=True)
    tokens = best.indices[:, :most]
    kept_scores = best.values[:, :most].cpu().numpy()
    kept_logprobs = logprobs.gather(1, tokens).cpu().numpy()
    listed = (np.arange(most) < k[:, None]) & (kept_scores > -np.inf)
    row, _ = np.nonzero(listed)
    return row, tokens.cpu().numpy()[listed], kept_scores[listed], kept_logprobs[listed], valid.cpu().numpy()
