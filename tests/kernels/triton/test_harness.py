"""What the kernel tests rest on: poison in new memory, a language that is patched, operations elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tests.kernels.triton.on_gpu import elsewhere


@triton.jit
def _doubled(x):
    return x + tl.sum(x, 0)


@triton.jit
def _half_kernel(out_ptr, SIZE: tl.constexpr):
    lane = tl.arange(0, SIZE)
    tl.store(out_ptr + lane, _doubled(lane.to(tl.float32)), mask=lane < SIZE // 2)


def test_new_memory_holds_poison() -> None:
    assert torch.empty(3).isnan().all()
    assert torch.empty_like(torch.zeros(2, dtype=torch.bfloat16)).isnan().all()
    assert torch.empty(2, 2, dtype=torch.int32).eq(-1).all()
    assert torch.empty(3, dtype=torch.uint8).eq(255).all()


def test_what_a_kernel_leaves_out_is_seen() -> None:
    """Twice, for the language is patched anew at each launch."""
    for _ in range(2):
        out = torch.empty(8)
        _half_kernel[(1,)](out, SIZE=8)
        assert out[:4].tolist() == [28, 29, 30, 31]
        assert out[4:].isnan().all()


def test_the_language_is_whole_between_launches() -> None:
    assert tl.core.is_builtin(tl.load)


@dataclass(frozen=True)
class Pair:
    first: torch.Tensor
    names: list[torch.Tensor]


def test_an_operation_elsewhere_changes_and_returns_what_it_would_here() -> None:
    seen = []

    def operation(x: torch.Tensor, pair: Pair, *, own: torch.Tensor) -> tuple[Pair, int]:
        seen.extend([x, pair.first, pair.names[0], own])
        x += pair.names[0]
        return Pair(x * 2, [own]), 7

    x, y = torch.ones(2), torch.tensor([torch.nan, 3.0])
    found, number = elsewhere(operation, torch.clone)(x, Pair(y, [y]), own=x)
    assert x[1] == 4
    assert x.isnan().tolist() == [True, False]
    assert found.first[1] == 8
    assert number == 7
    assert seen[0] is seen[3] is not x
    assert seen[1] is seen[2] is not y


def test_what_is_not_changed_stays_the_same_tensor() -> None:
    still = torch.full((2,), torch.nan)
    version = still._version
    assert elsewhere(lambda t: t.sum(), torch.clone)(still).isnan()
    assert still._version == version
