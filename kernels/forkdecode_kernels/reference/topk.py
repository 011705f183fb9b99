"""Best continuations over the rows of a group by a full sort: the specification of `beam_topk`."""

from __future__ import annotations

import torch


def group_topk(
    logits: torch.Tensor, base: torch.Tensor, logsumexp: torch.Tensor, k: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """logits [R, V], base [R] float32, logsumexp [R] float64 -> rows, tokens, scores, logprobs [<= k].

    logprob = float32(logits - logsumexp), score = float32(base + logprob). Ordered by score, then
    row, then token; -inf is never listed.
    """
    vocab = logits.shape[-1]
    shift = torch.where(logsumexp.isneginf(), 0.0, logsumexp)
    logprobs = (logits.double() - shift[:, None]).float()
    flat = (base[:, None] + logprobs).flatten()
    order = torch.sort(flat, descending=True, stable=True).indices[:k]
    order = order[~flat[order].isneginf()]
    return order // vocab, order % vocab, flat[order], logprobs.flatten()[order]
