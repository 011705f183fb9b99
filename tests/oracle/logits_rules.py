"""The logits options in plain loops, one row at a time: what the engine's processors are to do."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from forkdecode.step import F32
from forkdecode.types import Options

BANNED = np.float32(-np.inf)


def processed(
    row: F32, prompt: Sequence[int], path: Sequence[int], options: Options, ends: Collection[int]
) -> F32:
    """One row [V] after all processors. ends: the EOS and stop ids that min_tokens masks. bad_words
    and forced_prefix are given as token ids."""
    row = row.copy()
    history = [*prompt, *path]
    for token, bias in options.logit_bias.items():
        row[token] += np.float32(bias)
    for token in set(history):
        penalty = np.float32(options.repetition_penalty)
        row[token] = row[token] * penalty if row[token] < 0 else row[token] / penalty
    for token in set(path):
        row[token] -= np.float32(options.presence_penalty + options.frequency_penalty * path.count(token))
    if len(path) < len(options.forced_prefix):
        return _only(row, [int(options.forced_prefix[len(path)])])
    _ban(row, _repeats(history, options.no_repeat_ngram_size))
    _ban(row, (w[-1] for w in options.bad_words if _ends_with(history, w[:-1])))
    if len(path) < options.min_tokens:
        _ban(row, ends)
    return row if options.allowed_token_ids is None else _only(row, options.allowed_token_ids)


def _repeats(history: list[int], n: int) -> list[int]:
    """Tokens that would make an n-gram that `history` has."""
    if not n:
        return []
    grams = [history[i : i + n] for i in range(len(history) - n + 1)]
    return [g[-1] for g in grams if _ends_with(history, g[:-1])]


def _ends_with(history: list[int], tail: Sequence[int] | str) -> bool:
    return len(history) >= len(tail) and history[len(history) - len(tail) :] == list(tail)


def _ban(row: F32, tokens: Collection[int]) -> None:
    for token in tokens:
        row[token] = BANNED


def _only(row: F32, tokens: Collection[int]) -> F32:
    kept = np.full_like(row, BANNED)
    for token in tokens:
        kept[token] = row[token]
    return kept
