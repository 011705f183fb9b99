"""Which table of tile shapes a device takes."""

from __future__ import annotations

import torch

from forkdecode_kernels.triton.tiles import Family


def family(device: torch.device) -> Family:
    """Of a GPU; the interpreter's CPU tensors take NVIDIA's usual table."""
    if torch.version.hip is not None:
        return "amd"
    if device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 10:
        return "blackwell"
    return "cuda"
