"""Selections on a device copy once there and once back, however many groups a step has.

The device's operations run here on CPU tensors; what would be a copy between host and GPU, or wait for
it, is counted where torch is asked for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from forkdecode.sampling import beams as beam_requests
from forkdecode.sampling import group_logits, row_best, sampler
from forkdecode.sampling.select import select
from forkdecode.step import Choice, Draw, Gather, ProcessorSpec, RowTopK, SelectionRequest, TopK
from forkdecode_kernels import logsumexp
from forkdecode_kernels.draw import gpu_draws
from forkdecode_kernels.row_candidates import sorted_rows
from forkdecode_kernels.topk import gpu_groups

THERE = {"to", "cuda", "copy_"}
BACK = {"cpu", "numpy", "item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero"}


class Copies(TorchFunctionMode):
    """Counts what moves or waits. A tensor that .cpu() has brought is on the host: to read it is free."""

    def __init__(self) -> None:
        super().__init__()
        self.there = self.back = 0
        self.names: Counter[str] = Counter()
        self._here: set[int] = set()
        self._kept: list[torch.Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        result = func(*args, **(kwargs or {}))
        if name in THERE and any(isinstance(a, torch.device) for a in args):
            self.there += 1
            self.names[name] += 1
        elif name in BACK and id(args[0]) not in self._here:
            self.back += 1
            self.names[name] += 1
            if isinstance(result, torch.Tensor):
                self._here.add(id(result))
                self._kept.append(result)  # so that its id stays its own
        return result


def request(group: int, start: int, rows: int, choice: Choice, **processors: Any) -> SelectionRequest:
    none = np.empty(0, np.int64)
    return SelectionRequest(group, start, rows, choice, ProcessorSpec(**processors), none, None, 0)


def draw(rows: int, **settings: float) -> Draw:
    source = np.arange(rows, dtype=np.int32)
    return Draw(source, np.arange(rows, dtype=np.uint64), 3, **settings)


@pytest.fixture(autouse=True)
def on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The selections' operations are the device's."""

    def drawn(
        logits: torch.Tensor, rows: Any, uniform: Any, *, distribution: bool = False, threads: int
    ) -> Any:
        return gpu_draws(logits, rows, uniform, distribution=distribution)

    def best(logits: torch.Tensor, groups: Any, base: Any, *, normalized: bool = False, threads: int) -> Any:
        return gpu_groups(logits, groups, base, normalized)

    def by_row(
        logits: torch.Tensor, rows: Any, k: Any, base: Any, *, normalized: bool = False, threads: int
    ) -> Any:
        return sorted_rows(logits, rows, k, base, normalized=normalized)

    def copied(logits: torch.Tensor, rows: Any, *, log_softmax: bool, threads: int) -> Any:
        return logsumexp.device_rows(logits, rows, log_softmax=log_softmax)

    monkeypatch.setattr(sampler, "filtered_draw", drawn)
    monkeypatch.setattr(beam_requests, "beam_topk", best)
    monkeypatch.setattr(row_best, "row_candidates", by_row)
    monkeypatch.setattr(group_logits, "float_rows", copied)
    monkeypatch.setattr(group_logits, "picked_logits", logsumexp.device_picked)


def counted(choices: list[Choice], **processors: Any) -> Copies:
    """Copies of one step of these groups of 2 rows."""
    logits = torch.randn(2 * len(choices), 200, generator=torch.Generator().manual_seed(1))
    asked = [request(i, 2 * i, 2, choice, **processors) for i, choice in enumerate(choices)]
    expected = select(logits, asked, threads=1)  # also compiles
    with Copies() as copies:
        found = select(logits, asked, threads=1)
    for a, b in zip(found, expected, strict=True):
        assert a.error is None
        assert a.tokens.tolist() == b.tokens.tolist()
    return copies


BASE = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    "choice",
    [draw(2, temperature=0.7, top_p=0.9), TopK(4, BASE, 2), RowTopK(3, BASE)],
    ids=["draw", "top k", "top k a row"],
)
def test_groups_of_one_kind_share_one_copy_each_way(choice: Choice) -> None:
    copies = counted([choice] * 3)
    assert (copies.there, copies.back) == (1, 1), copies.names


def test_each_kind_has_its_own() -> None:
    copies = counted([draw(2), TopK(4, BASE, 2), draw(2, top_k=5), RowTopK(3, BASE), TopK(3, BASE, 1)])
    assert (copies.there, copies.back) == (3, 3), copies.names


def test_named_tokens_take_their_sums_and_themselves() -> None:
    gather = Gather(np.zeros(1, np.int32), np.array([5]))
    copies = counted([gather] * 3)
    assert copies.back <= 2, copies.names


def test_the_count_sees_what_a_group_does_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = beam_requests.beam_topk

    def with_a_look(logits: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        assert bool((logits[:1] == logits[:1]).all())
        return whole(logits, *args, **kwargs)

    monkeypatch.setattr(beam_requests, "beam_topk", with_a_look)
    assert counted([TopK(4, BASE, 2)]).back == 2
