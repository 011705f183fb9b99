"""Logits processors on a device: what `sampling.processors` does, without waiting for the device.

Nothing is looked up there: ids beyond the vocabulary, and what is not to be banned, go to one column more
than the vocabulary has, which nobody reads.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from forkdecode.sampling.processors import RowHistory, discount
from forkdecode.step import I64, ProcessorSpec, SelectionRequest

Arrays: TypeAlias = dict[str, NDArray[Any]]
Sent: TypeAlias = dict[str, torch.Tensor]


def arrays_of(request: SelectionRequest, vocab: int) -> Arrays:
    """What `apply` wants on the device. Raises ValueError for an id beyond the vocabulary."""
    spec, found = request.processors, Arrays()
    if spec.bias_ids is not None and spec.bias_values is not None:
        found["bias ids"] = _known(spec.bias_ids, vocab)
        found["bias"] = spec.bias_values.astype(np.float32)
    if spec.reads_history:
        found |= _history(request)
    if request.num_generated < len(spec.forced_prefix):
        forced = np.array([spec.forced_prefix[request.num_generated]])
        return found | {"kept": _known(forced, vocab)}
    found |= _banned(request, vocab)
    if spec.allowed_token_ids is not None:
        found["kept"] = _known(spec.allowed_token_ids, vocab)
    return found


def apply(wide: torch.Tensor, vocab: int, request: SelectionRequest, sent: Sent) -> None:
    """Changes wide [R, more than V] float32 in place; the first V columns are the group's values."""
    values, spec = wide[:, :vocab], request.processors
    if "bias" in sent:
        values.index_add_(1, sent["bias ids"], sent["bias"].expand(len(values), -1))
    history = None
    if "generated" in sent:
        history = RowHistory(sent["prompt"].long(), sent["generated"].long())
        _penalise(wide, vocab, spec, history)
    if history is not None and "n-grams" in sent:
        _ban_ngrams(wide, vocab, spec.no_repeat_ngram_size, history)
    if "banned" in sent:
        values.index_fill_(1, sent["banned"], -torch.inf)
    for words in (t for name, t in sent.items() if name.startswith("words")):
        assert history is not None, "words of several tokens read it"
        ends = (history.tail(words.shape[1] - 1)[:, None, :] == words[None, :, :-1]).all(-1)
        _ban(wide, vocab, ends, words[:, -1].expand(len(wide), -1))
    if "kept" in sent:
        kept = values[:, sent["kept"]]
        values.fill_(-torch.inf)
        values[:, sent["kept"]] = kept


def _known(ids: I64, vocab: int) -> I64:
    if len(ids) and int(ids.max()) >= vocab:
        raise ValueError(f"token id {ids.max()} is beyond the vocabulary of {vocab}")
    return np.asarray(ids, np.int64)


def _history(request: SelectionRequest) -> Arrays:
    """The tokens before the one that is chosen; of the prompt its end, if that is enough."""
    spec, made = request.processors, request.generated
    if made is None:
        raise ValueError("these processors need the generated tokens")
    if made.shape != (request.rows, request.num_generated):
        expected = (request.rows, request.num_generated)
        raise ValueError(f"generated is {made.shape}, not {expected}")
    prompt = np.asarray(request.prompt)
    if spec.repetition_penalty == 1.0 and not spec.no_repeat_ngram_size:
        longest = max((len(word) for word in spec.bad_words), default=0)
        prompt = prompt[max(0, len(prompt) - longest) :]
    return {"prompt": prompt.astype(np.int32), "generated": made.astype(np.int32)}


def _banned(request: SelectionRequest, vocab: int) -> Arrays:
    """Ids that are banned whatever came before; longer words [n, length] by their length; whether n-grams
    are."""
    spec, found = request.processors, Arrays()
    before = len(request.prompt) + request.num_generated
    if spec.no_repeat_ngram_size and before >= spec.no_repeat_ngram_size:
        found["n-grams"] = np.empty(0, np.int32)
    words = [w for w in spec.bad_words if len(w) > 1 and before >= len(w) - 1]
    for length in sorted({len(w) for w in words}):
        found[f"words {length}"] = np.array([w for w in words if len(w) == length], np.int64)
    ids = [np.array([w[0] for w in spec.bad_words if len(w) == 1], np.int64)]
    if request.num_generated < spec.min_tokens and spec.suppressed_ids is not None:
        ids.append(spec.suppressed_ids)
    banned = np.concatenate(ids)
    if len(banned):
        found["banned"] = _known(banned, vocab)
    return found


def _penalise(wide: torch.Tensor, vocab: int, spec: ProcessorSpec, history: RowHistory) -> None:
    made = history.generated.clamp(max=vocab)
    if spec.repetition_penalty != 1.0:
        # Read every old value first: a token of prompt and generated both is penalised once.
        prompt = history.prompt.clamp(max=vocab)
        in_prompt = discount(wide[:, prompt], spec.repetition_penalty)
        in_generated = discount(wide.gather(1, made), spec.repetition_penalty)
        wide[:, prompt] = in_prompt
        wide.scatter_(1, made, in_generated)
    if spec.presence_penalty or spec.frequency_penalty:
        in_order = made.sort(1).values
        left = torch.searchsorted(in_order, made, right=False)
        count = torch.searchsorted(in_order, made, right=True) - left
        penalty = (count * spec.frequency_penalty + spec.presence_penalty).to(wide.dtype)
        wide.scatter_(1, made, wide.gather(1, made) - penalty)


def _ban_ngrams(wide: torch.Tensor, vocab: int, n: int, history: RowHistory) -> None:
    prefix, made = history.tail(n - 1), int(history.generated.shape[1])
    # Windows inside the prompt are the same for all rows; those that reach a generated token are not.
    for tokens in (history.prompt[None], history.tail(min(len(history), made + n - 1))):
        windows = int(tokens.shape[1]) - n + 1
        if windows < 1:
            continue
        match = torch.ones((len(wide), windows), dtype=torch.bool, device=wide.device)
        for i in range(n - 1):
            match &= tokens[:, i : i + windows] == prefix[:, i : i + 1]
        _ban(wide, vocab, match, tokens[:, n - 1 :].expand(len(wide), -1))


def _ban(wide: torch.Tensor, vocab: int, which: torch.Tensor, tokens: torch.Tensor) -> None:
    """Sets tokens [R, n] to -inf in their rows, where `which` [R, n]."""
    wide.scatter_(1, torch.where(which, tokens, vocab).clamp(max=vocab), -torch.inf)
