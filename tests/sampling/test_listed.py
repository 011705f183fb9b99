"""Short lists of allowed tokens, read as lists: bit for bit what masked logits give, however it is chosen."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode import lineage
from forkdecode.allowed import AllowedBits, AllowedLists, Ready
from forkdecode.sampling import select as module
from forkdecode.sampling.allowed import reads_short_lists, with_short_lists
from forkdecode.sampling.perturbed import perturbed_best
from forkdecode.sampling.row_best import rows_processed
from forkdecode.sampling.sampler import draw_processed
from forkdecode.step import (
    Choice,
    Draw,
    GumbelTopK,
    ProcessorSpec,
    RowTopK,
    SelectionRequest,
    SelectionResult,
)
from forkdecode_kernels.allowed import lists_of_bits
from forkdecode_kernels.listed import longest_list
from tests.sampling.requests import children, request

DENSE: dict[type, Any] = {Draw: draw_processed, RowTopK: rows_processed, GumbelTopK: perturbed_best}

FILTERS: list[dict[str, Any]] = [
    {"temperature": 0.8},
    {},
    {"temperature": 0.0},
    {"top_k": 5},
    {"temperature": 0.7, "top_p": 0.9},
    {"min_p": 0.03, "temperature": 1.7},
    {"typical_p": 0.6},
    {"temperature": 1.3, "top_k": 40, "top_p": 0.97, "min_p": 1e-3, "typical_p": 0.93},
    {"temperature": 1e-4, "top_p": 0.5},
]


def choices(rows: int, seed: int) -> list[Choice]:
    base = np.round(np.linspace(0, -1, rows), 2).astype(np.float32)
    gumbel = np.linspace(0, -1, rows) if rows > 1 else np.full(1, np.inf)
    roots = lineage.child(lineage.root(seed), np.arange(rows))
    found: list[Choice] = [children(2 * rows, rows, seed, **each) for each in FILTERS]
    found += [RowTopK(k, base) for k in (1, 4, 1000)]
    warm = [each for each in FILTERS if each.get("temperature") != 0.0]
    return found + [GumbelTopK(k, base.astype(float), gumbel, roots, 7, **f) for k in (1, 6) for f in warm]


def short_lists(rng: np.random.Generator, rows: int, vocab: int, *, ends: bool, also: bool) -> AllowedLists:
    """Of 0 to as many tokens as are read as lists, some rows with one and the same list."""
    most = longest_list(vocab) - 2
    pools = [np.sort(rng.choice(vocab, rng.integers(0, most + 1), replace=False)) for _ in range(3)]
    edges, which = np.cumsum([0, *map(len, pools)]), rng.integers(0, 3, rows)
    return AllowedLists(
        np.concatenate(pools).astype(np.int32),
        edges[which].astype(np.int64),
        edges[which + 1].astype(np.int64),
        rng.random(edges[-1]) < 0.3 if ends else None,
        rng.random(rows) < 0.5 if also else None,
        rng.choice(vocab, 2, replace=False).astype(np.int64) if also else None,
    )


def some_logits(rng: np.random.Generator, rows: int, vocab: int, dtype: torch.dtype) -> torch.Tensor:
    """Half of the time coarse, for ties; some tokens are impossible."""
    values = rng.standard_normal((rows, vocab)) * 3
    if rng.random() < 0.5:
        values = np.round(values)
    values[rng.random(values.shape) < 0.1] = -np.inf
    return torch.from_numpy(values.astype(np.float32)).to(dtype)


def told(result: SelectionResult) -> dict[str, Any]:
    shown = {f.name: getattr(result, f.name) for f in dataclasses.fields(result)}
    return {k: v.tobytes() if isinstance(v, np.ndarray) else v for k, v in shown.items()}


def alike(logits: torch.Tensor, one: SelectionRequest) -> SelectionResult:
    """What select makes of it, which is what masking makes of it."""
    (fast,) = module.select(logits, [one], threads=2)
    masked = functools.partial(DENSE[type(one.choice)], logits, [(one, one.choice)], threads=1)
    if fast.error is not None and fast.error.startswith("non-finite"):
        with pytest.raises(ValueError, match=fast.error):
            masked()
    else:
        (dense,) = masked()
        assert told(fast) == told(dense)
    return fast


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 9),
    vocab=st.sampled_from([40, 513, 3000]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    ends=st.booleans(),
    also=st.booleans(),
    early=st.booleans(),
    which=st.integers(0, 2 * len(FILTERS)),
)
def test_lists_give_what_masks_give(
    seed: int, rows: int, vocab: int, dtype: torch.dtype, ends: bool, also: bool, early: bool, which: int
) -> None:
    rng = np.random.default_rng(seed)
    every = choices(rows, seed)
    spec = ProcessorSpec(min_tokens=5 if early else 0)
    one = request(every[which % len(every)], rows, start=1, processors=spec)
    lists = short_lists(rng, rows, vocab, ends=ends, also=also)
    one = dataclasses.replace(one, allowed=Ready(lists))
    assert reads_short_lists(one, vocab)
    alike(some_logits(rng, rows + 2, vocab, dtype), one)


@pytest.mark.parametrize("rows", [1, 128])
def test_every_choice_over_a_whole_vocabulary(rows: int) -> None:
    rng = np.random.default_rng(rows)
    logits = torch.from_numpy(rng.standard_normal((rows, 49_152), np.float32) * 3)
    lists = short_lists(rng, rows, 49_152, ends=False, also=True)
    every = choices(rows, 1) if rows == 1 else [choices(rows, 1)[i] for i in (0, 4, 10, 14)]
    for choice in every:
        alike(logits, dataclasses.replace(request(choice, rows), allowed=Ready(lists)))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_rows_at_fault(value: float) -> None:
    """The fault may lie outside the list; a row of nothing but -inf has no legal token, which is none."""
    rng = np.random.default_rng(0)
    logits = some_logits(rng, 3, 600, torch.float32)
    if value == -float("inf"):
        logits[1] = value
    else:
        logits[1, 599] = value
    lists = AllowedLists(np.arange(20, dtype=np.int32), np.zeros(3, np.int64), np.full(3, 20))
    for choice in (children(3, 3), RowTopK(4, np.zeros(3, np.float32))):
        result = alike(logits, dataclasses.replace(request(choice, 3), allowed=Ready(lists)))
        assert (result.error is None) is (value == -float("inf"))
        assert 1 not in result.rows


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 9),
    vocab=st.sampled_from([1, 31, 32, 33, 500]),
    share=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    longest=st.sampled_from([0, 5, 600]),
)
def test_bits_as_lists(seed: int, rows: int, vocab: int, share: float, longest: int) -> None:
    rng = np.random.default_rng(seed)
    may = rng.random((rows, -(-vocab // 32) * 32)) < share  # bits beyond the vocabulary among them
    lists = lists_of_bits(np.packbits(may, axis=1, bitorder="little").view(np.uint32), vocab, longest)
    row, token = np.nonzero(may[:, :vocab])
    if np.bincount(row, minlength=rows).max() > longest:
        assert lists is None
        return
    assert lists is not None
    np.testing.assert_array_equal(lists.tokens, token)
    np.testing.assert_array_equal(lists.stop - lists.start, np.bincount(row, minlength=rows))


def test_few_bits_are_read_as_lists_and_many_are_not() -> None:
    may = np.zeros((2, 640), np.bool_)
    may[:, :9] = True
    for spread, short in ((may, True), (~may, False)):
        words = np.packbits(spread, axis=1, bitorder="little").view(np.uint32)
        one = dataclasses.replace(request(children(2, 2), 2), allowed=Ready(AllowedBits(words)))
        assert reads_short_lists(with_short_lists(one, 640), 640) is short
        alike(some_logits(np.random.default_rng(1), 2, 640, torch.float32), one)
