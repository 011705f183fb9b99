"""transformers' `generate` as the oracle: one prompt a call, unpadded, its answer as hypotheses."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from tests.oracle.beam_rule import Hypothesis, Rule

PLACEHOLDER = -1e5
"""What `generate` scores far below this never was a continuation: it starts from rows at -1e9."""


@dataclass(frozen=True)
class Generated:
    """hypotheses: best first, placeholders dropped. scores: for each step the processed
    log-probabilities [rows, V] of the beams, best beam first (logits for greedy search)."""

    hypotheses: tuple[Hypothesis, ...]
    scores: tuple[torch.Tensor, ...]


@torch.inference_mode()
def generate(
    model: PreTrainedModel, prompt: Sequence[int], rule: Rule, eos: Collection[int], **options: Any
) -> Generated:
    """What `generate` makes of `prompt`; options are its own. Width 1 is greedy search, whose score is
    the sum of log_softmax(processed logits) of its tokens, by the same length penalty."""
    beams: dict[str, Any] = {}
    if rule.width > 1:
        beams = {
            "num_return_sequences": rule.width,
            "length_penalty": float(rule.length_penalty),
            "early_stopping": rule.early_stopping,
        }
    output = model.generate(
        torch.tensor([list(prompt)]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        num_beams=rule.width,
        max_new_tokens=rule.max_tokens,
        eos_token_id=sorted(eos) or None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        **beams,
        **options,
    )
    paths = [_until(ids[len(prompt) :], eos) for ids in output.sequences.tolist()]
    if rule.width == 1:
        score = rule.score(_greedy_sum(paths[0], output.scores), len(paths[0]))
        return Generated((Hypothesis(paths[0], score),), output.scores)
    found = zip(paths, output.sequences_scores.tolist(), strict=True)
    return Generated(tuple(Hypothesis(p, s) for p, s in found if s > PLACEHOLDER), output.scores)


def _until(tokens: Sequence[int], eos: Collection[int]) -> tuple[int, ...]:
    """The tokens up to the first EOS: what follows is padding."""
    for i, token in enumerate(tokens):
        if token in eos:
            return tuple(tokens[: i + 1])
    return tuple(tokens)


def _greedy_sum(path: Sequence[int], scores: Sequence[torch.Tensor]) -> np.float32:
    total = np.float32(0)
    for token, step in zip(path, scores, strict=True):
        total = np.float32(total + step[0].float().log_softmax(-1)[token].item())
    return total
