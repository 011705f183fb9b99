"""Which table of tile shapes a device takes, and which options its compiler."""

from __future__ import annotations

import torch

from forkdecode_kernels.triton.tiles import Family


def family(device: torch.device) -> Family:
    """Of a GPU; the interpreter's CPU tensors take Hopper's table."""
    if torch.version.hip is not None:
        return "amd"
    if device.type != "cuda":
        return "cuda"
    major, _ = torch.cuda.get_device_capability(device)
    return "blackwell" if major >= 10 else "cuda" if major == 9 else "ampere"


def at_most(registers: int, device: torch.device) -> dict[str, int]:
    """Registers of a thread, as Triton's option: NVIDIA's compiler, left to itself, aims at an occupancy of
    its own and may spill for that. AMD's knows no such option."""
    return {} if family(device) == "amd" else {"maxnreg": registers}
