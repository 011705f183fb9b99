"""Filtered draws by full sorts in float64: the specification of `filtered_draw`."""

from __future__ import annotations

import torch


def keep_mask(
    scaled: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    typical_p: torch.Tensor,
) -> torch.Tensor:
    """Which tokens survive top-k, then top-p, min-p and typical sampling, as transformers chains them.

    scaled [m, V] float64 logits after temperature; one value of each filter a row. Sources: top-p
    Holtzman et al. 2020 (section 3.1), min-p Nguyen et al. 2024 (section 3), typical Meister et al.
    2023 (section 3.2). Among equally likely tokens at the edge of top-p the lower ids stay; ties at
    the edge of top-k and typical all stay.
    """
    vocab = scaled.shape[-1]
    by_value = torch.sort(scaled, dim=-1, descending=True, stable=True)
    kth = by_value.values.gather(1, (torch.where(top_k > 0, top_k, vocab).clamp(max=vocab) - 1)[:, None])
    keep = scaled >= kth

    probs = _softmax(scaled, keep).gather(1, by_value.indices)
    before = probs.cumsum(-1) - probs
    inside = (before < top_p[:, None]) | (top_p[:, None] >= 1)
    inside[:, 0] = True
    keep &= torch.zeros_like(keep).scatter(1, by_value.indices, inside)

    best = by_value.values[:, :1]
    keep &= torch.exp(scaled - best) >= min_p[:, None]

    typical = _typical_mask(scaled.masked_fill(~keep, -torch.inf), typical_p)
    return keep & (typical | (typical_p[:, None] >= 1))


def _softmax(scaled: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return torch.softmax(scaled.masked_fill(~keep, -torch.inf), -1)


def _typical_mask(scaled: torch.Tensor, typical_p: torch.Tensor) -> torch.Tensor:
    logprobs = torch.log_softmax(scaled, -1)
    probs = logprobs.exp()
    entropy = -(logprobs * probs).nansum(-1, keepdim=True)
    surprise = (-logprobs - entropy).abs()
    by_surprise = torch.sort(surprise, dim=-1, stable=True)
    cumulative = probs.gather(1, by_surprise.indices).cumsum(-1)
    last = (cumulative < typical_p[:, None]).sum(-1, keepdim=True).clamp(max=scaled.shape[-1] - 1)
    return surprise <= by_surprise.values.gather(1, last)


def filtered_logprobs(
    logits: torch.Tensor,
    *,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    typical_p: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [m, V] -> log-probabilities [m, V] float64 of the distribution drawn from, keep [m, V].

    -inf where filtered out. At temperature 0 only the most likely token is kept (ties: lower id),
    and the log-probabilities are those of the logits as they are.
    """
    wide = logits.double()
    greedy = (temperature == 0)[:, None]
    # The difference to the row's best first: no overflow at tiny temperatures.
    centred = wide - wide.amax(-1, keepdim=True)
    scale = (1 / temperature.clamp(min=1e-30)).clamp(max=1e30)[:, None]
    scaled = torch.where(greedy | centred.isneginf() | (centred == 0), centred, centred * scale)
    keep = keep_mask(scaled, top_k, top_p, min_p, typical_p) & ~scaled.isneginf()
    first = torch.zeros_like(keep).scatter(1, centred.argmax(-1, keepdim=True), True)
    sampled = torch.log_softmax(scaled.masked_fill(~keep, -torch.inf), -1)
    return torch.where(greedy, torch.log_softmax(wide, -1), sampled), torch.where(greedy, first, keep)


def draw(
    logprobs: torch.Tensor, keep: torch.Tensor, source: torch.Tensor, uniform: torch.Tensor
) -> torch.Tensor:
    """Inverse CDF in token-id order: the first kept token whose cumulative probability exceeds u.

    logprobs, keep [m, V]; source [N] row of each draw; uniform [N] float64 in [0, 1).
    """
    cumulative = torch.where(keep, logprobs.exp(), 0.0).cumsum(-1)
    target = uniform * cumulative[source, -1]
    token = torch.searchsorted(cumulative[source], target[:, None], right=True)[:, 0]
    ids = torch.arange(keep.shape[-1], device=keep.device)
    last = torch.where(keep, ids, -1).amax(-1)[source]
    return torch.minimum(token, last)
