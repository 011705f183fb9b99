"""How a runner is to run its model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from forkdecode.config import Compile, Weights
from forkdecode.model.prepared import Preparing


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """block_size: token positions a KV block. threads: torch's thread count for the whole process; None
    leaves it. decoder: "auto" takes LeanDecoder for the models that it knows, "generic" transformers' own
    modules for all. attention: "nodes" runs from node lists on a CPU too, as on a GPU. weights, compile: see
    EngineConfig; "int8" leaves expert layers as they are. batch_invariant: see Planners."""

    block_size: int
    dtype: torch.dtype
    device: torch.device
    threads: int | None = None
    decoder: Literal["auto", "generic"] = "auto"
    attention: Literal["auto", "nodes"] = "auto"
    weights: Weights = "native"
    compile: Compile = "none"
    batch_invariant: bool = True

    @property
    def preparing(self) -> Preparing:
        return Preparing(self.dtype, self.device, self.decoder, self.weights, self.compile)
