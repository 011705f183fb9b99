"""Which table of tile shapes a device takes."""

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
