"""Linear layers with 8-bit weights: products of integers, on CPUs that have instructions for them.

Each output channel's weights have a scale of their own, and so has each row of the input, found as it comes
(dynamic quantisation). The sums are exact integers, so a row's result cannot depend on other rows.
"""

from __future__ import annotations

import torch

from forkdecode.errors import invalid
from forkdecode.model.weight_facts import WeightFacts
from forkdecode_kernels.quantise import ZERO, quantise_rows


class Int8Linear(torch.nn.Module):
    """x [..., in] -> [..., out], nearly as torch.nn.Linear. Holds the packed 8-bit weight only; weight: the
    facts of the one that it was made of."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.weight = WeightFacts.of(weight)
        rows = weight.detach().float().contiguous()  # packing reads memory, not strides
        self._scale = (rows.abs().amax(1) / 127.0).clamp(min=1e-30)
        codes = (rows / self._scale[:, None]).round_().to(torch.int8)
        self._weight = torch.ops.onednn.qlinear_prepack(codes, None)
        self._zero = torch.zeros(len(rows), dtype=torch.int64)
        self._bias = None if bias is None else bias.detach().float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes, scale = quantise_rows(x.reshape(-1, x.shape[-1]))
        out: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            codes, 1.0, ZERO, self._weight, self._scale, self._zero, None,
            1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip
        out.mul_(scale[:, None])
        if self._bias is not None:
            out.add_(self._bias)
        return out.to(x.dtype).view(*x.shape[:-1], -1)


def check_int8(device: torch.device, dtype: torch.dtype) -> None:
    """Raises InvalidRequestError where 8-bit weights can't be had."""
    if device.type != "cpu":
        raise invalid("weights", "'int8' is for CPUs", "'native'")
    if dtype not in (torch.float32, torch.bfloat16):
        raise invalid("weights", f"'int8' does not go with {dtype}", "'native', or dtype float32 or bfloat16")
    if not (hasattr(torch.ops.onednn, "qlinear_pointwise") and torch.cpu._is_vnni_supported()):
        raise invalid("weights", "'int8' needs a CPU with VNNI, or AMX", "'native'")
