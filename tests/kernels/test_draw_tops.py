"""The likeliest tokens that a draw lists, against row_topk of the logits and of the whole distribution."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode_kernels.draw import OK, draws_with_tops, filtered_draw
from forkdecode_kernels.topk import row_topk
from tests.kernels.test_draw import DTYPES, FILTERS, draw_rows, uniforms

ROWS = 5


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.integers(0, 2**31),
    st.sampled_from([1, 30, 64, 700, 5000]),
    FILTERS,
    st.sampled_from(DTYPES),
    st.sampled_from([None, 1.0]),
    st.sampled_from([1, 2]),
)
def test_tops_are_those_of_the_logits_and_of_the_distribution(
    seed: int, vocab: int, filters: dict[str, float], dtype: torch.dtype, step: float | None, threads: int
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((ROWS, vocab), np.float32) * 3
    values = values if step is None else np.round(values / step) * step
    values[0, rng.random(vocab) < 0.9] = -np.inf
    values[1, 0] = rng.choice([0.0, np.nan, np.inf])
    logits = torch.from_numpy(values).to(dtype)
    setup, uniform = draw_rows([1, 2, 0, 1, 1], **filters), uniforms(5, seed)
    k = rng.choice([0, 1, 5, 20, vocab], ROWS)
    dense = filtered_draw(logits, setup, uniform, distribution=True)
    draws, tops = draws_with_tops(logits, setup, uniform, k, threads=threads)
    for name in ("tokens", "logprobs", "raw", "logsumexp", "status"):
        np.testing.assert_array_equal(getattr(draws, name), getattr(dense, name))
    assert dense.distribution is not None
    for row, wanted in enumerate(k.tolist()):
        own = slice(row, row + 1)
        if draws.status[row] == OK:
            expected = (
                *row_topk(logits[own], wanted),
                *row_topk(dense.distribution[own], wanted, normalized=True),
            )
        else:
            nothing = np.full((1, wanted), -1), np.full((1, wanted), -np.inf, np.float32)
            expected = (*nothing, *nothing)
        found = (tops.raw_ids, tops.raw, tops.shown_ids, tops.shown)
        for column, told in zip(found, expected, strict=True):
            np.testing.assert_array_equal(column[own, :wanted], told)
            assert (column[row, wanted:] == (-1 if column.dtype == np.int64 else -np.inf)).all()
