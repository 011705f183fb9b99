"""Steps of decode rows run from a tape: the same bits as their passes called one by one."""

from __future__ import annotations

import pytest
import torch

from forkdecode.model.lean import LeanDecoder
from forkdecode.model.lean_tape import TapedLayers
from tests.model.driver import Driver
from tests.model.test_lean import trace, vary
from tests.models import tiny_model


class _Counted:
    """Taped layers, and which steps they took."""

    def __init__(self, taped: TapedLayers) -> None:
        self._taped = taped
        self.took: list[bool] = []

    def __call__(self, *arguments: object) -> torch.Tensor | None:
        done = self._taped(*arguments)  # type: ignore[arg-type]
        self.took.append(done is not None)
        return done


@pytest.mark.parametrize("family", ["qwen2", "gemma2", "gemma3"])
def test_the_bits_of_passes_one_by_one(family: str) -> None:
    """Biases; softcaps, windows and four norms; norms of heads, and layers that turn differently."""
    taped, one_by_one = (Driver(vary(tiny_model(family)), block_size=8) for _ in range(2))
    first, second = taped.runner._decoder, one_by_one.runner._decoder
    assert isinstance(first, LeanDecoder)
    assert isinstance(second, LeanDecoder)
    assert first._taped is not None
    counted = _Counted(first._taped)
    first._taped, second._taped = counted, None  # type: ignore[assignment]
    (_, got), (_, want) = trace(taped), trace(one_by_one)
    assert torch.equal(got, want)
    # A prompt in two parts, five steps of rows, the last of them beside another prompt.
    assert counted.took == [False, False, *[True] * 5, False]


def test_not_where_products_are_not_our_own() -> None:
    for dtype, weights in ((torch.bfloat16, "native"), (torch.float32, "int8")):
        driver = Driver(tiny_model("llama", dtype=dtype), weights=weights)
        decoder = driver.runner._decoder
        assert isinstance(decoder, LeanDecoder)
        assert decoder._taped is None
