"""Memory that stays in place on a device from step to step, and is filled by one copy a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from forkdecode_kernels.transfer import places


class StagedPart(NamedTuple):
    """Bytes on the device, and those on the host that are sent there. On a CPU they are the same."""

    host: torch.Tensor
    device: torch.Tensor


class StagedMemory:
    """Parts of the given sizes, in bytes, zeros at first; each begins at a multiple of 16. What is written to
    the host's side of them arrives with the next `send`."""

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        starts, total = places(sizes)
        on_gpu = device.type == "cuda"
        self._copied = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        self._host = torch.zeros(total, dtype=torch.uint8, pin_memory=on_gpu)
        self._device = self._host if device.type == "cpu" else torch.zeros_like(self._host, device=device)
        self.parts = tuple(
            StagedPart(self._host[start : start + size], self._device[start : start + size])
            for start, size in zip(starts, sizes, strict=True)
        )

    def begin(self) -> None:
        """Before the host's side is written: waits for the copy that still reads it."""
        if self._copied is not None:
            self._copied.synchronize()

    def send(self) -> None:
        """All parts by one copy, on the current stream."""
        if self._device is not self._host:
            self._device.copy_(self._host, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
