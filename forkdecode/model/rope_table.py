"""Cosines and sines of every position, computed once by transformers' own rotary module."""

from __future__ import annotations

from typing import Any

import torch

_CHUNK = 1024


class RopeTable:
    """Grows by whole chunks of positions as they are first used; float32.

    rotary: a transformers rotary embedding with one fixed table, or one for each layer type.
    """

    def __init__(self, rotary: Any, layer_type: str | None) -> None:
        self._rotary = rotary
        self._arguments = () if layer_type is None else (layer_type,)
        self._cos, self._sin = self._computed(0)

    def rows(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """positions [T] int64 -> cos, sin [T, half]."""
        last = int(positions.max())
        while last >= len(self._cos):
            parts = [(self._cos, self._sin)]
            # Doubling, so that a long sequence doesn't copy the table at each chunk.
            parts += [self._computed(at) for at in range(len(self._cos), 2 * len(self._cos), _CHUNK)]
            self._cos, self._sin = (torch.cat(each) for each in zip(*parts, strict=True))
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)

    def _computed(self, start: int) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(start, start + _CHUNK)[None]
        cos, sin = self._rotary(torch.empty(0, dtype=torch.float32), positions, *self._arguments)
        # transformers repeats the first half in the second.
        half = cos.shape[-1] // 2
        return cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous()
