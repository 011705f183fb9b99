"""What modelling code asks of a linear layer's weight without multiplying by it."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class WeightFacts:
    """Stands where the weight was: Hunyuan's router looks at its dtype.

    It is no tensor, not even one without memory: torch multiplies by such a tensor without a word.
    """

    dtype: torch.dtype
    device: torch.device
    shape: torch.Size

    @classmethod
    def of(cls, weight: torch.Tensor) -> WeightFacts:
        """The facts of `weight`, which is not kept."""
        return cls(weight.dtype, weight.device, weight.shape)
