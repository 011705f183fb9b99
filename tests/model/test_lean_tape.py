"""Steps of decode rows run from a tape: the same bits as their passes called one by one."""

from __future__ import annotations

import pytest
import torch

from forkdecode.model import packing
from forkdecode.model.lean import LeanDecoder
from forkdecode.model.lean_tape import TapedLayers
from forkdecode.model.packing import rows_stand_alone
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["qwen2", "gemma2", "gemma3"])
def test_the_bits_of_passes_one_by_one(family: str, dtype: torch.dtype) -> None:
    """Biases; softcaps, windows and four norms; norms of heads, and layers that turn differently."""
    if not rows_stand_alone(dtype):
        pytest.skip("products are oneDNN's here")
    taped, one_by_one = (Driver(vary(tiny_model(family, dtype=dtype)), block_size=8) for _ in range(2))
    first, second = taped.runner._decoder, one_by_one.runner._decoder
    assert isinstance(first, LeanDecoder)
    assert isinstance(second, LeanDecoder)
    assert first._taped is not None
    counted = _Counted(first._taped)
    first._taped, second._taped = counted, None  # type: ignore[assignment]
    (_, got), (_, want) = trace(taped), trace(one_by_one)
    assert torch.equal(got, want)
    # A prompt in two parts, and five steps of rows, the last of them beside another prompt.
    assert counted.took == [True] * 8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_not_where_products_are_not_our_own(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "rows_stand_alone", lambda _: False)
    decoder = Driver(tiny_model("llama", dtype=dtype)).runner._decoder
    assert isinstance(decoder, LeanDecoder)
    assert decoder._taped is None


def test_not_with_8_bit_weights() -> None:
    decoder = Driver(tiny_model("llama"), weights="int8").runner._decoder
    assert isinstance(decoder, LeanDecoder)
    assert decoder._taped is None
