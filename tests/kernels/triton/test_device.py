"""Which options a device's compiler takes."""

from __future__ import annotations

import pytest
import torch

from forkdecode_kernels.triton.device import at_most


def test_registers_are_told_to_nvidias_compiler_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert at_most(128, torch.device("cpu")) == {"maxnreg": 128}, "the interpreter takes Hopper's options"
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert at_most(128, torch.device("cuda")) == {}
