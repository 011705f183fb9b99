"""The decoder of any model, by transformers' own modules."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput

from forkdecode.model.attention import ATTENTION_NAME, StepAttention, install
from forkdecode.model.experts import install_experts
from forkdecode.model.hand_over import HandOver
from forkdecode.model.rows_alone import RowsAlone


class GenericDecoder:
    """Any model, by its own modules; attention and expert layers are forkdecode's."""

    def __init__(self, model: PreTrainedModel) -> None:
        install()
        model.set_attn_implementation(ATTENTION_NAME)
        install_experts(model)
        self._base = model.base_model
        self._handed = HandOver(model)
        on_cpu = model.device.type == "cpu"
        self._loops: AbstractContextManager[object] = RowsAlone() if on_cpu else nullcontext()

    def __call__(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        step: StepAttention,
        wanted: torch.Tensor | None = None,
    ) -> ModelOutput:
        """tokens, positions [T] int64 -> the decoder's output, last_hidden_state [1, T, hidden]: of all
        tokens, whichever are wanted."""
        ids, places = tokens[None], positions[None]
        self._handed.content = step
        try:
            with self._loops:
                output: ModelOutput = self._base(input_ids=ids, position_ids=places, use_cache=False)
        finally:
            self._handed.content = None
        return output
