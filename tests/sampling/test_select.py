"""The batch as a whole: groups of every kind together, none able to change or fail another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from forkdecode.sampling.select import select, warm_up
from forkdecode.step import ProcessorSpec, SelectionRequest, SelectionResult
from forkdecode_kernels.cpu.selection import draw, perturbed, rows, topk
from tests.sampling.requests import beams, children, request

VOCAB = 700
ENTRIES: list[Any] = [
    draw._draw_rows,
    rows.row_sums,
    rows.subtract,
    rows._widen,
    topk._list_tiles,
    perturbed._rows,
]
HEAVY = ProcessorSpec(repetition_penalty=1.2, frequency_penalty=0.3, bad_words=((5, 6), (9,)))


def mixed() -> list[SelectionRequest]:
    """Twelve groups over 30 rows: draws and beams, with and without processors and log-probabilities."""
    rng = np.random.default_rng(0)
    made: list[SelectionRequest] = []
    start = 0
    kinds: list[dict[str, Any]] = [{}, {"processors": HEAVY}, {"num_logprobs": 3}]
    for i, extra in enumerate(kinds * 4):
        rows = 1 + i % 4
        choices = (
            children(2 * rows, rows, seed=i, temperature=0.8, top_p=0.9),
            beams(8, -rng.random(rows)),
            children(rows, rows, temperature=0.0),
            children(9, rows, seed=i, typical_p=0.8, top_k=50),
        )
        history = rng.integers(0, VOCAB, (rows, 4))
        made.append(request(choices[i // 3], rows, start=start, group=i, generated=history, **extra))
        start += rows
    return made


def total_rows(requests: list[SelectionRequest]) -> int:
    return sum(r.rows for r in requests)


def same(a: SelectionResult, b: SelectionResult) -> None:
    assert a.error == b.error
    assert a.group_id == b.group_id
    for name in ("rows", "tokens", "logprobs", "selection_logprobs", "scores"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        assert getattr(a, name).dtype == getattr(b, name).dtype
    if a.top is not None and b.top is not None:
        np.testing.assert_array_equal(a.top.raw, b.top.raw)
        np.testing.assert_array_equal(a.top.processed_ids, b.top.processed_ids)


def logits_for(requests: list[SelectionRequest], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    rows = total_rows(requests)
    return (torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(7)) * 3).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_group_gets_the_same_alone_in_another_order_and_with_other_threads(dtype: torch.dtype) -> None:
    requests = mixed()
    logits = logits_for(requests, dtype)
    together = select(logits, requests, threads=2)
    assert [r.group_id for r in together] == list(range(12))
    assert all(r.error is None for r in together)
    turned = select(logits, requests[::-1], threads=1)[::-1]
    for one, other, ask in zip(together, turned, requests, strict=True):
        same(one, other)
        own = logits[ask.logits_start : ask.logits_start + ask.rows]
        same(one, select(own.clone(), [replace(ask, logits_start=0)])[0])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("victim", range(12))
def test_non_finite_logits_fail_their_group_only(value: float, victim: int) -> None:
    requests = mixed()
    logits = logits_for(requests)
    clean = select(logits, requests)
    logits[requests[victim].logits_start, 17] = value
    for i, (found, before) in enumerate(zip(select(logits, requests), clean, strict=True)):
        if i == victim:
            assert found.error == "non-finite logits at generated token 5"
            assert len(found.tokens) == 0
        else:
            same(found, before)


def broken(ask: SelectionRequest) -> list[SelectionRequest]:
    """The request with one thing wrong each."""
    return [
        replace(ask, processors=replace(HEAVY, allowed_token_ids=np.array([VOCAB]))),
        replace(ask, processors=HEAVY, generated=None),
        replace(ask, processors=HEAVY, num_generated=3),
        replace(ask, logits_start=30),
        replace(ask, rows=99),
    ]


@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize("victim", [3, 4, 9])
def test_what_goes_wrong_in_a_group_stays_there(which: int, victim: int) -> None:
    requests = mixed()
    logits = logits_for(requests)
    clean = select(logits, requests)
    spoilt = list(requests)
    spoilt[victim] = broken(requests[victim])[which]
    for i, (found, before) in enumerate(zip(select(logits, spoilt), clean, strict=True)):
        if i == victim:
            assert found.error
        else:
            same(found, before)


def test_of_a_row_with_no_legal_token_there_are_no_draws_and_no_candidates() -> None:
    logits = logits_for(mixed())[:4].clone()
    logits[1] = -torch.inf
    drawn, beam = select(
        logits,
        [request(children(4, 4), 4, num_generated=2), request(beams(8, np.zeros(4)), 4, group=1)],
    )
    (clean,) = select(logits[[0, 2, 2, 3]], [request(children(4, 4), 4, num_generated=2)])
    assert drawn.error is None
    assert drawn.rows.tolist() == [0, 2, 3]
    assert drawn.tokens.tolist() == clean.tokens[[0, 2, 3]].tolist()
    assert drawn.selection_logprobs.tolist() == clean.selection_logprobs[[0, 2, 3]].tolist()
    assert beam.error is None
    assert len(beam.tokens) == 8
    assert 1 not in beam.rows


def test_a_processor_that_overflows_fails_its_group() -> None:
    logits = logits_for(mixed())[:2].abs() + 1
    tiny = ProcessorSpec(repetition_penalty=1e-39)
    drawn, beam = select(
        logits,
        [
            request(children(2, 2), 2, processors=tiny, generated=[[1], [2]]),
            request(beams(4, np.zeros(2)), 2, processors=tiny, generated=[[1], [2]]),
        ],
    )
    assert drawn.error == "non-finite logits at generated token 2"
    assert beam.error is None  # log-probabilities are negative: multiplied, not divided


def test_logits_are_never_written_to() -> None:
    requests = mixed()
    logits = logits_for(requests)
    before = logits.clone()
    select(logits, requests)
    assert torch.equal(logits, before)


def test_nothing_to_select() -> None:
    assert select(torch.zeros(0, VOCAB), []) == ()


def test_warm_up_runs_and_leaves_no_kernel_to_compile() -> None:
    warm_up(threads=2)
    compiled = [len(kernel.signatures) for kernel in ENTRIES]
    requests = mixed()
    for dtype in (torch.float32, torch.bfloat16):
        select(logits_for(requests, dtype), requests)
    assert [len(kernel.signatures) for kernel in ENTRIES] == compiled
    assert all(compiled)


def test_warm_up_tells_of_a_selection_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = SelectionResult.failed(0, "out of resources")
    monkeypatch.setattr("forkdecode.sampling.select.select", lambda *_, **__: (failed,))
    with pytest.raises(RuntimeError, match="a selection failed: out of resources"):
        warm_up()
