"""Logits processors, vectorised over a group's rows, in transformers' order and with its semantics.

Order: logit bias, repetition penalty, presence and frequency penalty, no-repeat n-grams, bad words,
min_tokens, allowed ids, forced prefix. Beams pass log-probabilities, draws pass logits. Where this
differs from transformers on purpose: presence and frequency penalties (OpenAI's definition, over
generated tokens) exist here only; a forced prefix overrules every mask; an EOS id given as a bad word
is banned, where NoBadWordsLogitsProcessor ignores it; when nothing legal is left the row stays at
-inf, where PrefixConstrainedLogitsProcessor would let the allowed ids in again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from forkdecode.step import I64, ProcessorSpec


@dataclass(frozen=True, slots=True)
class RowHistory:
    """The tokens before the one being chosen: prompt [P], shared by the rows, and generated [R, g]."""

    prompt: torch.Tensor
    generated: torch.Tensor

    @staticmethod
    def of(prompt: I64, generated: I64, device: torch.device) -> RowHistory:
        return RowHistory(
            torch.from_numpy(np.asarray(prompt, np.int64)).to(device),
            torch.from_numpy(np.ascontiguousarray(generated, np.int64)).to(device),
        )

    def tail(self, n: int) -> torch.Tensor:
        """The last n tokens of each row, [R, n]; n is at most P + g."""
        rows, made = self.generated.shape
        if n <= made:
            return self.generated[:, made - n :]
        head = self.prompt[len(self.prompt) - (n - made) :]
        return torch.cat([head.expand(rows, -1), self.generated], 1)

    def __len__(self) -> int:
        return len(self.prompt) + int(self.generated.shape[1])


def apply_processors(
    values: torch.Tensor, spec: ProcessorSpec, history: RowHistory | None, num_generated: int
) -> None:
    """Change `values` [R, V] float32 in place. history may be None when spec.reads_history is False.

    Raises ValueError for a token id beyond the vocabulary in bias, allowed or suppressed ids.
    """
    if spec.bias_ids is not None and spec.bias_values is not None:
        bias = torch.from_numpy(spec.bias_values).to(values)
        values.index_add_(1, _ids(spec.bias_ids, values), bias.expand(len(values), -1))
    if spec.reads_history:
        if history is None:
            raise ValueError("these processors need the generated tokens")
        _penalise(values, spec, history)
    if num_generated < len(spec.forced_prefix):
        _keep_only(values, _ids(np.array([spec.forced_prefix[num_generated]]), values))
        return
    if spec.no_repeat_ngram_size and history is not None:
        _ban_ngrams(values, spec.no_repeat_ngram_size, history)
    if spec.bad_words:
        _ban_words(values, spec.bad_words, history)
    if num_generated < spec.min_tokens and spec.suppressed_ids is not None:
        values[:, _ids(spec.suppressed_ids, values)] = -torch.inf
    if spec.allowed_token_ids is not None:
        _keep_only(values, _ids(spec.allowed_token_ids, values))


def _ids(ids: I64, values: torch.Tensor) -> torch.Tensor:
    if len(ids) and int(ids.max()) >= values.shape[1]:
        raise ValueError(f"token id {ids.max()} is beyond the vocabulary of {values.shape[1]}")
    return torch.from_numpy(np.asarray(ids, np.int64)).to(values.device)


def _keep_only(values: torch.Tensor, ids: torch.Tensor) -> None:
    kept = values[:, ids]
    values.fill_(-torch.inf)
    values[:, ids] = kept


def _penalise(values: torch.Tensor, spec: ProcessorSpec, history: RowHistory) -> None:
    if spec.repetition_penalty != 1.0:
        _repetition(values, spec.repetition_penalty, history)
    if spec.presence_penalty or spec.frequency_penalty:
        _presence_frequency(values, spec.presence_penalty, spec.frequency_penalty, history.generated)


def _repetition(values: torch.Tensor, penalty: float, history: RowHistory) -> None:
    """Keskar et al. 2019, "CTRL", section 4.1, with negative values multiplied instead of divided."""
    # Read every old value first: a token of prompt and generated both is penalised once.
    prompt = torch.unique(_in_vocab(history.prompt, values))
    in_prompt = discount(values[:, prompt], penalty)
    generated, legal = _clamped(history.generated, values)
    in_generated = torch.where(legal, discount(values.gather(1, generated), penalty), 0.0)
    values[:, prompt] = in_prompt
    _scatter(values, generated, legal, in_generated)


def discount(scores: torch.Tensor, penalty: float) -> torch.Tensor:
    """Scores under a repetition penalty."""
    return torch.where(scores < 0, scores * penalty, scores / penalty)


def _presence_frequency(
    values: torch.Tensor, presence: float, frequency: float, generated: torch.Tensor
) -> None:
    """OpenAI's definition: minus frequency * count(token) + presence * [count(token) > 0]."""
    in_order = generated.sort(1).values
    left = torch.searchsorted(in_order, generated, right=False)
    count = torch.searchsorted(in_order, generated, right=True) - left
    ids, legal = _clamped(generated, values)
    _scatter(values, ids, legal, values.gather(1, ids) - (count * frequency + presence).to(values.dtype))


def _in_vocab(ids: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return ids[ids < values.shape[1]]


def _clamped(ids: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids safe to gather with, and which of them the vocabulary has (embeddings may have more rows)."""
    return ids.clamp(max=values.shape[1] - 1), ids < values.shape[1]


def _scatter(values: torch.Tensor, ids: torch.Tensor, legal: torch.Tensor, new: torch.Tensor) -> None:
    if bool(legal.all()):
        values.scatter_(1, ids, new)
    else:
        rows, columns = legal.nonzero(as_tuple=True)
        values[rows, ids[rows, columns]] = new[rows, columns]


def _ban_ngrams(values: torch.Tensor, n: int, history: RowHistory) -> None:
    """Ban each token that would repeat an n-gram of prompt + generated, as NoRepeatNGramLogitsProcessor."""
    if len(history) < n:
        return
    prefix = history.tail(n - 1)
    made = int(history.generated.shape[1])
    # Windows inside the prompt are compared once for all rows; only those that reach a generated
    # token need rows of their own.
    for tokens in (history.prompt[None], history.tail(min(len(history), made + n - 1))):
        windows = int(tokens.shape[1]) - n + 1
        if windows < 1:
            continue
        match = torch.ones((len(values), windows), dtype=torch.bool, device=values.device)
        for i in range(n - 1):
            match &= tokens[:, i : i + windows] == prefix[:, i : i + 1]
        rows, at = match.nonzero(as_tuple=True)
        banned = tokens.expand(len(values), -1)[rows, at + n - 1]
        legal = banned < values.shape[1]
        values[rows[legal], banned[legal]] = -torch.inf


def _ban_words(values: torch.Tensor, words: tuple[tuple[int, ...], ...], history: RowHistory | None) -> None:
    """Ban each word's last token where the row ends with the rest of it."""
    by_length: dict[int, list[tuple[int, ...]]] = {}
    for word in words:
        by_length.setdefault(len(word), []).append(word)
    for length, group in by_length.items():
        ids = torch.tensor(group, device=values.device)
        if length == 1:
            values[:, _ids(np.array(group)[:, 0], values)] = -torch.inf
        elif history is not None and len(history) >= length - 1:
            match = (history.tail(length - 1)[:, None, :] == ids[None, :, :-1]).all(-1)
            rows, which = match.nonzero(as_tuple=True)
            values[rows, ids[which, -1]] = -torch.inf
