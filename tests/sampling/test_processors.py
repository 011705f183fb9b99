"""Every processor against transformers' class for it, on random histories and logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from forkdecode.sampling.processors import RowHistory, apply_processors
from forkdecode.step import ProcessorSpec

VOCAB = 23


def setup(
    seed: int, rows: int, prompt: int, made: int, vocab: int = VOCAB
) -> tuple[torch.Tensor, RowHistory]:
    """Log-probabilities, as beams have them, or logits; and a history with many repeats."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, vocab, generator=generator) * 2
    history = RowHistory(
        torch.randint(0, vocab // 3, (prompt,), generator=generator),
        torch.randint(0, vocab // 3, (rows, made), generator=generator),
    )
    return (torch.log_softmax(values, -1) if seed % 2 else values), history


def full(history: RowHistory) -> torch.Tensor:
    return torch.cat([history.prompt.expand(len(history.generated), -1), history.generated], 1)


def ours(values: torch.Tensor, history: RowHistory | None, made: int, **spec: Any) -> torch.Tensor:
    changed = values.clone()
    apply_processors(changed, ProcessorSpec(**spec), history, made)
    return changed


def run(processors: list[Any], ids: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    for processor in processors:
        values = processor(ids, values.clone())
    return values


LENGTHS = {
    "seed": st.integers(0, 10_000),
    "rows": st.integers(1, 5),
    "prompt": st.integers(1, 30),
    "made": st.integers(0, 12),
}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(penalty=st.sampled_from([0.5, 1.1, 1.3, 5.0]), **LENGTHS)
def test_repetition_penalty(penalty: float, seed: int, rows: int, prompt: int, made: int) -> None:
    values, history = setup(seed, rows, prompt, made)
    expected = hf.RepetitionPenaltyLogitsProcessor(penalty)(full(history), values.clone())
    assert torch.equal(ours(values, history, made, repetition_penalty=penalty), expected)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(n=st.integers(1, 5), **LENGTHS)
def test_no_repeat_ngram(n: int, seed: int, rows: int, prompt: int, made: int) -> None:
    values, history = setup(seed, rows, prompt, made)
    expected = hf.NoRepeatNGramLogitsProcessor(n)(full(history), values.clone())
    assert torch.equal(ours(values, history, made, no_repeat_ngram_size=n), expected)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    words=st.lists(
        st.lists(st.integers(0, 7), min_size=1, max_size=4), min_size=1, max_size=8, unique_by=tuple
    ),
    **LENGTHS,
)
def test_bad_words(words: list[list[int]], seed: int, rows: int, prompt: int, made: int) -> None:
    values, history = setup(seed, rows, prompt, made)
    expected = hf.NoBadWordsLogitsProcessor(words)(full(history), values.clone())
    assert torch.equal(ours(values, history, made, bad_words=tuple(map(tuple, words))), expected)


def test_bad_words_of_one_token_need_no_history() -> None:
    values, _ = setup(0, 3, 4, 0)
    changed = ours(values, None, 5, bad_words=((3,), (9,)))
    assert changed[:, [3, 9]].isneginf().all()
    assert changed.isneginf().sum() == 6


def test_logit_bias() -> None:
    values, history = setup(4, 3, 4, 2)
    bias: list[list[list[int] | float]] = [[[2], 1.5], [[7], -30.0]]
    expected = hf.SequenceBiasLogitsProcessor(bias)(full(history), values.clone())
    ids, by = np.array([2, 7]), np.array([1.5, -30.0], np.float32)
    assert torch.equal(ours(values, None, 2, bias_ids=ids, bias_values=by), expected)


@pytest.mark.parametrize("made", [0, 2, 3, 4])
def test_min_tokens(made: int) -> None:
    values, history = setup(5, 2, 4, made)
    expected = hf.MinNewTokensLengthLogitsProcessor(4, 3, [0, 6])(full(history), values.clone())
    assert torch.equal(ours(values, None, made, min_tokens=3, suppressed_ids=np.array([0, 6])), expected)


def test_allowed_token_ids() -> None:
    values, history = setup(6, 4, 4, 3)
    allowed = [1, 5, 22]
    expected = hf.PrefixConstrainedLogitsProcessor(lambda _batch, _ids: allowed, 4)(full(history), values)
    assert torch.equal(ours(values, None, 3, allowed_token_ids=np.array(allowed)), expected)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(**LENGTHS)
def test_all_together_in_transformers_order(seed: int, rows: int, prompt: int, made: int) -> None:
    values, history = setup(seed, rows, prompt, made)
    expected = run(
        [
            hf.SequenceBiasLogitsProcessor([[[2], 3.0], [[4], -2.0]]),
            hf.RepetitionPenaltyLogitsProcessor(1.3),
            hf.NoRepeatNGramLogitsProcessor(2),
            hf.NoBadWordsLogitsProcessor([[3], [1, 2]]),
            hf.MinNewTokensLengthLogitsProcessor(prompt, 5, [0]),
        ],
        full(history),
        values,
    )
    changed = ours(
        values,
        history,
        made,
        bias_ids=np.array([2, 4]),
        bias_values=np.array([3.0, -2.0], np.float32),
        repetition_penalty=1.3,
        no_repeat_ngram_size=2,
        bad_words=((3,), (1, 2)),
        min_tokens=5,
        suppressed_ids=np.array([0]),
    )
    assert torch.equal(changed, expected)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(presence=st.sampled_from([0.0, 0.7, -2.0]), frequency=st.sampled_from([0.3, -0.25]), **LENGTHS)
def test_presence_and_frequency(
    presence: float, frequency: float, seed: int, rows: int, prompt: int, made: int
) -> None:
    values, history = setup(seed, rows, prompt, made)
    expected = values.clone()
    for row in range(rows):
        counts = torch.bincount(history.generated[row], minlength=VOCAB)
        expected[row] -= counts * frequency + (counts > 0) * presence
    changed = ours(values, history, made, presence_penalty=presence, frequency_penalty=frequency)
    torch.testing.assert_close(changed, expected, rtol=0, atol=1e-6)


def test_forced_prefix_overrules_masks_and_ends() -> None:
    values, history = setup(8, 2, 4, 1)
    spec: dict[str, Any] = {"forced_prefix": (3, 6), "bad_words": ((6,),), "allowed_token_ids": np.array([1])}
    forced = ours(values, history, 1, **spec)
    assert torch.equal(forced[:, 6], values[:, 6])
    assert forced.isneginf().sum() == 2 * (VOCAB - 1)
    assert not ours(values, history, 2, **spec)[:, 1].isneginf().any()


def test_history_tokens_beyond_the_vocabulary_are_left_out() -> None:
    """Embeddings may have more rows than lm_head has outputs."""
    values, _ = setup(2, 2, 1, 0)
    history = RowHistory(torch.tensor([30, 2, 30, 2]), torch.tensor([[31, 4], [4, 40]]))
    changed = ours(values, history, 2, repetition_penalty=2.0, frequency_penalty=0.5, no_repeat_ngram_size=1)
    assert changed[:, [2, 4]].isneginf().all()
    assert changed.isneginf().sum() == 4
    rest = [i for i in range(VOCAB) if i not in (2, 4)]
    assert torch.equal(changed[:, rest], values[:, rest])


def test_an_id_beyond_the_vocabulary_raises() -> None:
    values, _ = setup(2, 2, 1, 0)
    with pytest.raises(ValueError, match="beyond the vocabulary"):
        ours(values, None, 0, bias_ids=np.array([VOCAB]), bias_values=np.ones(1, np.float32))
    with pytest.raises(ValueError, match="beyond the vocabulary"):
        ours(values, None, 0, allowed_token_ids=np.array([VOCAB]))
    with pytest.raises(ValueError, match="beyond the vocabulary"):
        ours(values, None, 0, bad_words=((2,), (VOCAB,)))
