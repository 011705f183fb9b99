"""Selections of every kind run on a device before any request does; one that failed there would keep engines
from starting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from forkdecode.sampling import select as selection
from forkdecode.sampling.device.select import select_on_device
from forkdecode.step import SelectionRequest, SelectionResult
from forkdecode_kernels import topk

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_warm_up_runs_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[SelectionRequest] = []

    def on_device(
        logits: torch.Tensor, requests: Sequence[SelectionRequest], **_: Any
    ) -> tuple[SelectionResult, ...]:
        asked.extend(requests)
        return select_on_device(logits, requests)

    monkeypatch.setattr(selection, "select", on_device)
    selection.warm_up(1, DEVICE, 257, [torch.bfloat16])  # a last word of one bit
    assert len({type(request.choice) for request in asked}) == 4
    assert len({type(request.allowed) for request in asked}) == 2


def test_what_only_wide_beams_take_is_ready_on_a_gpu_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[torch.device, int]] = []
    monkeypatch.setattr(topk, "warm_up", lambda device, vocab: made.append((device, vocab)))
    gpu = torch.device("cuda:1")
    selection.warm_up(1, gpu, 300, [])
    assert made == [(gpu, 300)]
    selection.warm_up(1, torch.device("cpu"), 300, [])
    assert len(made) == 1
