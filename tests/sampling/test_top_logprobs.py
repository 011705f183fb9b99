"""Top log-probabilities of groups that no processor changes, against the way of those that are changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from forkdecode.sampling.beams import _OVER_ALL_ROWS
from forkdecode.sampling.continuations import choose_changed, choose_processed
from forkdecode.sampling.row_best import _OF_EACH_ROW
from forkdecode.sampling.sampler import draw_changed, draw_processed
from forkdecode.step import ProcessorSpec, RowTopK, SelectionRequest, SelectionResult
from tests.sampling.requests import beams, children, request

VOCAB, ROWS = 2000, 3
Way = Callable[..., list[SelectionResult]]


def groups(choice: Callable[[int], Any]) -> list[tuple[SelectionRequest, Any]]:
    """Some that are changed among those that are not."""
    changed = ProcessorSpec(bias_ids=np.array([3, 9]), bias_values=np.array([2.0, -1.0], np.float32))
    specs = [ProcessorSpec(), changed, ProcessorSpec(), ProcessorSpec(), changed]
    wanted = [20, 5, 0, 7, 0]
    return [
        (request(choice(i), ROWS, start=ROWS * i, group=i, processors=spec, num_logprobs=k), choice(i))
        for i, (spec, k) in enumerate(zip(specs, wanted, strict=True))
    ]


def same(found: SelectionResult, expected: SelectionResult) -> None:
    assert found.top is not None
    assert expected.top is not None
    for pair in ((found, expected), (found.top, expected.top)):
        for field in fields(pair[0]):
            a, b = (getattr(one, field.name) for one in pair)
            if isinstance(b, np.ndarray):
                np.testing.assert_array_equal(a, b)
                assert a.dtype == b.dtype


DRAWS = [
    {"temperature": 0.8},
    {"temperature": 1.0},
    {"temperature": 0.0},
    {"top_p": 0.9},
    {"top_k": 9, "min_p": 0.01},
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_what_nothing_changes_is_told_the_same_without_copies(seed: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(5 * ROWS, VOCAB, generator=generator) * 3).to(dtype)
    base = np.array([-1.0, -1.5, -2.0], np.float32)
    ways: list[tuple[Way, Way, Callable[[int], Any]]] = [
        (draw_processed, draw_changed, lambda i: children(2 * ROWS, ROWS, seed + i, **DRAWS[i])),
        (
            partial(choose_processed, _OVER_ALL_ROWS),
            partial(choose_changed, _OVER_ALL_ROWS),
            lambda i: beams(8, base),
        ),
        (
            partial(choose_processed, _OF_EACH_ROW),
            partial(choose_changed, _OF_EACH_ROW),
            lambda i: RowTopK(6, base, 1),
        ),
    ]
    for way, reference, choice in ways:
        asked: Sequence[Any] = groups(choice)
        if way is draw_processed:
            found, expected = way(logits, asked, threads=1), reference(logits, asked, threads=1)
        else:
            found, expected = way(logits, asked, 1), reference(logits, asked, 1)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
