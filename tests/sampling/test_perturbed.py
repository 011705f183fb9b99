"""Gumbel top-k through select(): against the plain way over the distribution that a Draw has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from forkdecode import lineage
from forkdecode.sampling import group_logits
from forkdecode.sampling.select import select
from forkdecode.step import GumbelTopK, ProcessorSpec, SelectionRequest, SelectionResult
from forkdecode_kernels.reference.perturbed import perturbed_row
from tests.sampling.requests import children, request

VOCAB = 90
FEW = ProcessorSpec(allowed_token_ids=np.array([3, 5, 8, 13, 21, 34, 55]))


def gumbel(k: int, rows: int, seed: int = 0, *, begun: bool = True, **chosen: Any) -> GumbelTopK:
    rng = np.random.default_rng(seed)
    return GumbelTopK(
        k=k,
        logprob=rng.normal(-6, 1, rows),
        gumbel=np.sort(rng.normal(-3, 1, rows))[::-1].copy() if begun else np.full(rows, np.inf),
        lineage=lineage.child(lineage.root(seed), np.arange(rows)),
        position=11,
        **chosen,
    )


def logits_of(seed: int, rows: int) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def distributions(logits: torch.Tensor, asked: SelectionRequest, **chosen: Any) -> NDArray[np.float32]:
    """[R, V] what a Draw with these settings is drawn from."""
    draw = children(asked.rows, asked.rows, **chosen)
    (result,) = select(logits, [replace(asked, choice=draw, num_logprobs=VOCAB)])
    assert result.top is not None
    table = np.full((asked.rows, VOCAB), -np.inf, np.float32)
    for row, (ids, values) in enumerate(zip(result.top.processed_ids, result.top.processed, strict=True)):
        table[row, ids[ids >= 0]] = values[ids >= 0]
    return table


def expected(choice: GumbelTopK, table: NDArray[np.float32]) -> list[tuple[float, int, int]]:
    """(perturbed, row, token), best first."""
    found: list[tuple[float, int, int]] = []
    for row, logprobs in enumerate(table):
        tokens, values = perturbed_row(
            logprobs,
            float(choice.logprob[row]),
            float(choice.gumbel[row]),
            int(choice.lineage[row]),
            choice.position,
            choice.k,
        )
        found += [(v, row, t) for t, v in zip(tokens.tolist(), values.tolist(), strict=True)]
    return sorted(found, key=lambda one: (-one[0], one[1], one[2]))[: choice.k]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(1, 6),
    k=st.sampled_from([1, 3, 8, 1000]),
    begun=st.booleans(),
    processors=st.sampled_from([ProcessorSpec(), FEW, ProcessorSpec(repetition_penalty=1.7)]),
    temperature=st.sampled_from([0.4, 1.0, 1.8]),
    top_k=st.sampled_from([0, 4]),
    top_p=st.sampled_from([1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.1]),
    typical_p=st.sampled_from([1.0, 0.7]),
    num_logprobs=st.sampled_from([None, 3]),
)
def test_it_is_what_the_distribution_of_a_draw_gives(
    seed: int,
    rows: int,
    k: int,
    begun: bool,
    processors: ProcessorSpec,
    num_logprobs: int | None,
    **chosen: Any,
) -> None:
    logits = logits_of(seed, rows)
    choice = gumbel(k, rows, seed, begun=begun, **chosen)
    asked = request(
        choice,
        rows,
        processors=processors,
        generated=np.full((rows, 1), 4),
        num_logprobs=num_logprobs,
    )
    (result,) = select(logits, [asked])
    assert result.error is None
    table = distributions(logits, asked, **chosen)
    wanted = expected(choice, table)
    assert list(zip(result.rows.tolist(), result.tokens.tolist(), strict=True)) == [w[1:] for w in wanted]
    np.testing.assert_allclose(result.scores, [w[0] for w in wanted], rtol=1e-6)
    np.testing.assert_array_equal(result.selection_logprobs, table[result.rows, result.tokens])
    raw = torch.log_softmax(logits.double(), -1).numpy()[result.rows, result.tokens]
    np.testing.assert_allclose(result.logprobs, raw, rtol=1e-5, atol=1e-6)
    assert (result.top is None) == (num_logprobs is None)


def same(a: SelectionResult, b: SelectionResult) -> None:
    for name in ("rows", "tokens", "logprobs", "selection_logprobs", "scores"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def batch() -> list[SelectionRequest]:
    made, start = [], 0
    for i, (rows, k) in enumerate([(1, 4), (5, 5), (3, 2), (7, 40)]):
        choice = gumbel(k, rows, i, begun=rows > 1, temperature=0.9, top_p=(1.0, 0.9)[i % 2])
        made.append(request(choice, rows, start=start, group=i, processors=(FEW, ProcessorSpec())[i // 2]))
        start += rows
    return made


@pytest.mark.parametrize("rows_a_chunk", [1, 3, 1000])
def test_neither_batch_mates_nor_chunks_nor_threads_change_a_bit(
    rows_a_chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, asked = logits_of(1, 16), batch()
    alone = [select(logits, [one], threads=1)[0] for one in asked]
    monkeypatch.setattr(group_logits, "CHUNK_BYTES", rows_a_chunk * 4 * VOCAB)
    for threads in (1, 2):
        for one, found in zip(alone, select(logits, asked, threads=threads), strict=True):
            same(one, found)
    same(alone[2], select(logits, asked[::-1])[1])


def test_the_best_of_each_row_is_what_the_row_is_worth() -> None:
    choice = gumbel(500, 4, 3)
    (result,) = select(logits_of(3, 4), [request(choice, 4)])
    for row in range(4):
        assert result.scores[result.rows == row].max() == np.float32(choice.gumbel[row])


def test_rows_without_anything_legal_have_no_continuations() -> None:
    logits = logits_of(4, 3)
    logits[1] = -torch.inf
    logits[1, 7] = 0.0
    (result,) = select(logits, [request(gumbel(8, 3, 4), 3, processors=FEW)])
    assert result.error is None
    assert set(result.rows.tolist()) == {0, 2}
    (nothing,) = select(logits[1:2], [request(gumbel(8, 1, 4), 1, processors=FEW)])
    assert nothing.error is None
    assert len(nothing.tokens) == 0


def test_a_group_with_bad_logits_fails_alone() -> None:
    logits, asked = logits_of(5, 16), batch()
    good = select(logits, asked)
    logits[2, 3] = torch.nan
    found = select(logits, asked)
    assert found[1].error is not None
    assert "non-finite logits" in found[1].error
    for i in (0, 2, 3):
        same(good[i], found[i])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"temperature": 0.0}, "temperature"),
        ({"k": 0}, "k is 0"),
        ({"logprob": np.zeros(1)}, "logprob"),
        ({"gumbel": np.zeros(1)}, "gumbel"),
        ({"lineage": np.zeros(1, np.uint64)}, "lineage"),
    ],
    ids=["temperature", "k", "logprob", "gumbel", "lineage"],
)
def test_requests_that_contradict_themselves_fail_by_name(wrong: dict[str, Any], said: str) -> None:
    (result,) = select(logits_of(6, 2), [request(replace(gumbel(2, 2), **wrong), 2)])
    assert result.error is not None
    assert said in result.error
