"""Perturbed top-k against its reference, and against what Gumbel noise must do."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from forkdecode_kernels.perturbed import Perturbed, PerturbedRows, perturbed_topk
from forkdecode_kernels.random import gumbels
from forkdecode_kernels.reference.perturbed import conditioned, log1mexp, perturbed_row


def best_of(logprobs: NDArray[np.floating[Any]], rows: PerturbedRows, threads: int = 1) -> Perturbed:
    return perturbed_topk(torch.from_numpy(logprobs), rows, threads=threads)


def table(
    seed: int, rows: int, vocab: int, *, spread: float = 3.0, masked: float = 0.0
) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, spread, (rows, vocab))
    logits[rng.random((rows, vocab)) < masked] = -np.inf
    logits[:, 0] = 0.0
    logits -= logits.max(-1, keepdims=True)
    logprobs: NDArray[np.float32] = (logits - np.log(np.exp(logits).sum(-1, keepdims=True))).astype(
        np.float32
    )
    return logprobs


def asked(seed: int, rows: int, k: Any, maximum: Any = np.inf) -> PerturbedRows:
    rng = np.random.default_rng(seed)
    return PerturbedRows(
        base=rng.normal(-5, 2, rows),
        maximum=np.broadcast_to(np.asarray(maximum, np.float64), rows).copy(),
        lineage=rng.integers(0, 2**64, rows, dtype=np.uint64),
        position=rng.integers(0, 9999, rows),
        k=np.broadcast_to(np.asarray(k, np.int64), rows).copy(),
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 7),
    vocab=st.sampled_from([1, 2, 63, 257, 1000]),
    k=st.sampled_from([1, 2, 5, 300, 5000]),
    maximum=st.sampled_from([np.inf, 3.0, -4.0, -9.0]),
    spread=st.sampled_from([0.0, 3.0, 30.0, 1e3, 1e6]),
    masked=st.sampled_from([0.0, 0.5, 0.999]),
    threads=st.sampled_from([1, 2]),
)
def test_rows_equal_the_reference(
    seed: int, rows: int, vocab: int, k: int, maximum: float, spread: float, masked: float, threads: int
) -> None:
    logprobs, wanted = table(seed, rows, vocab, spread=spread, masked=masked), asked(seed, rows, k, maximum)
    found = best_of(logprobs, wanted, threads=threads)
    assert (np.diff(found.rows) >= 0).all()
    for row in range(rows):
        tokens, values = perturbed_row(
            logprobs[row],
            float(wanted.base[row]),
            maximum,
            int(wanted.lineage[row]),
            int(wanted.position[row]),
            k,
        )
        own = found.rows == row
        np.testing.assert_array_equal(found.tokens[own], tokens)
        np.testing.assert_allclose(found.perturbed[own], values, rtol=1e-12)
        np.testing.assert_array_equal(found.logprobs[own], logprobs[row, tokens])


def test_a_row_depends_on_itself_alone() -> None:
    logprobs, wanted = table(1, 9, 700), asked(2, 9, [1, 2, 3, 4, 5, 6, 700, 8, 9], -3.0)
    together = best_of(logprobs, wanted, threads=2)
    for row in range(9):
        one = slice(row, row + 1)
        alone = PerturbedRows(
            wanted.base[one], wanted.maximum[one], wanted.lineage[one], wanted.position[one], wanted.k[one]
        )
        found, own = best_of(logprobs[one], alone), together.rows == row
        np.testing.assert_array_equal(found.tokens, together.tokens[own])
        np.testing.assert_array_equal(found.perturbed, together.perturbed[own])


def test_a_tokens_noise_does_not_depend_on_which_others_there_are() -> None:
    logprobs, wanted = table(3, 1, 600), asked(4, 1, 600)
    everything = best_of(logprobs, wanted)
    few = np.full_like(logprobs, -np.inf)
    few[0, 100:140] = logprobs[0, 100:140]
    found = best_of(few, wanted)
    assert len(found.tokens) == 40
    all_of_them = dict(zip(everything.tokens.tolist(), everything.perturbed.tolist(), strict=True))
    assert [all_of_them[t] for t in found.tokens.tolist()] == found.perturbed.tolist()


def test_the_noise_is_that_of_gumbels() -> None:
    logprobs, wanted = table(5, 1, 300), asked(6, 1, 300)
    found = best_of(logprobs, wanted)
    noise = gumbels(
        torch.from_numpy(wanted.lineage.view(np.int64)),
        torch.from_numpy(wanted.position),
        torch.from_numpy(found.tokens)[None],
    ).numpy()[0]
    np.testing.assert_allclose(
        found.perturbed, wanted.base[0] + found.logprobs.astype(float) + noise, rtol=1e-12
    )


def test_the_best_of_a_row_is_what_it_was_to_be_and_order_stays() -> None:
    logprobs, wanted = table(7, 5, 400), asked(8, 5, 400, [-1.0, -3.5, -7.0, -12.0, 0.25])
    found = best_of(logprobs, wanted)
    free = best_of(logprobs, replace(wanted, maximum=np.full(5, np.inf)))
    for row in range(5):
        own = found.rows == row
        assert found.perturbed[own][0] == wanted.maximum[row]
        assert (np.diff(found.perturbed[own]) <= 0).all()
        assert found.tokens[own][0] == free.tokens[free.rows == row][0]


def test_what_is_hardly_possible_is_listed_and_what_is_not_possible_is_not() -> None:
    logprobs = np.full((2, 5), -np.inf, np.float32)
    logprobs[0] = [0.0, -86.0, -88.0, -np.inf, -1e9]
    found = best_of(logprobs, asked(9, 2, 4))
    assert found.tokens.tolist() == [0, 1, 2, 4]
    assert found.rows.tolist() == [0, 0, 0, 0]


def test_conditioned_maxima_have_the_distribution_of_gumbels_given_their_maximum() -> None:
    """Kool et al. 2019, section 2.3: given the largest, G of the others is a Gumbel cut off at it. Inverse
    of the cut-off distribution on the conditioned values must then give uniforms."""
    phi = np.log(np.array([0.5, 0.3, 0.15, 0.05]))
    rng, limit = np.random.default_rng(10), -0.3
    g = phi - np.log(-np.log(rng.random((40_000, 4))))
    out = np.array([conditioned(row, float(row.max()), limit) for row in g[:4000]])
    assert (out.max(-1) == limit).all()
    for token in range(4):
        others = out[out.argmax(-1) != token, token]
        # P(G <= x | G <= limit) = exp(exp(phi - limit) - exp(phi - x))
        uniform = np.sort(np.exp(np.exp(phi[token] - limit) - np.exp(phi[token] - others)))
        distance = np.abs(uniform - (np.arange(len(uniform)) + 0.5) / len(uniform)).max()
        assert distance * np.sqrt(len(uniform)) < 1.95  # Kolmogorov-Smirnov, 0.1 %; the seed is fixed


def test_log1mexp_is_right_on_both_sides() -> None:
    with localcontext(prec=60):
        for x in (-1e-12, -0.1, -0.7, -5.0, -50.0):
            expected = float((1 - Decimal(x).exp()).ln())
            np.testing.assert_allclose(log1mexp(np.array(x)), expected, rtol=1e-13)
    assert log1mexp(np.array(0.0)) == -np.inf


@pytest.mark.parametrize("name", ["base", "maximum", "lineage", "position", "k"])
def test_shapes_that_do_not_fit_are_refused_by_name(name: str) -> None:
    wanted = asked(1, 3, 2)
    with pytest.raises(ValueError, match=name):
        best_of(table(1, 3, 10), replace(wanted, **{name: getattr(wanted, name)[:2]}))


def test_bad_tables_and_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="float32"):
        best_of(table(1, 3, 10).astype(np.float64), asked(1, 3, 2))
    with pytest.raises(ValueError, match="k must be"):
        best_of(table(1, 3, 10), asked(1, 3, 0))
