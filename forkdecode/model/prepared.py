"""A model made ready for steps: what a runner computes with, and how it is made of a transformers model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from transformers import PreTrainedModel

from forkdecode.config import Compile, Weights
from forkdecode.model.compiled import check_compile, compile_layers
from forkdecode.model.generic import GenericDecoder
from forkdecode.model.head import LogitsHead
from forkdecode.model.int8 import Int8Linear, check_int8
from forkdecode.model.lean import LeanDecoder
from forkdecode.model.packing import ROW_QUANTUM, Linear, PackedLinear, pack_linears, rows_stand_alone
from forkdecode.model.weights import convert, take


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """row_quantum: a step's tokens are padded to a multiple of it."""

    decoder: LeanDecoder | GenericDecoder
    head: LogitsHead
    row_quantum: int


@dataclass(frozen=True, slots=True)
class Preparing:
    """How an engine wants its models; see Runner. Holds nothing of any."""

    dtype: torch.dtype
    device: torch.device
    decoder: Literal["auto", "generic"] = "auto"
    weights: Weights = "native"
    compiles: Compile = "none"

    def check(self, model: PreTrainedModel) -> None:
        """Raises InvalidRequestError where what is wanted can't be had."""
        check_compile(model, self.device, self.compiles)
        if self.weights == "int8":
            check_int8(self.device, self.dtype)

    def __call__(self, model: PreTrainedModel, vocab_size: int) -> PreparedModel:
        """Takes the model: on a CPU its weights are repacked, each layer's in place of its own. May be called
        in any thread."""
        linear: type[Linear] = Int8Linear if self.weights == "int8" else PackedLinear
        convert(model, self.device, self.dtype)
        torch.nn.Module.train(model, False)
        take(model)
        on_cpu = self.device.type == "cpu"
        lean = LeanDecoder.of(model, self.dtype, linear) if self.decoder == "auto" and on_cpu else None
        decoder = lean or GenericDecoder(model)
        if self.compiles == "layers":
            compile_layers(model)
        pack_linears(model, linear)
        alone = on_cpu and (linear is Int8Linear or rows_stand_alone(self.dtype))
        head = LogitsHead(model, vocab_size, 1 if alone else ROW_QUANTUM)
        # The generic decoder's modules have vectorised loops over all rows at once.
        return PreparedModel(decoder, head, 1 if alone and lean else ROW_QUANTUM)
