"""From hidden states to logits, exactly as the model's own class does it, any number of rows at a time."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.utils.generic import ModelOutput

from forkdecode.model.packing import ROW_QUANTUM

MAX_LOGITS_BYTES = 256 * 1024 * 1024
VECTOR = 64
"""A multiple of the numbers of any vector register."""
_OUTPUT_ARGUMENT = "forkdecode_output"


class _Replay(torch.nn.Module):
    """Stands where the decoder was and answers hidden states that are already computed."""

    def forward(self, *_: Any, **kwargs: Any) -> ModelOutput:
        output: ModelOutput = kwargs[_OUTPUT_ARGUMENT]
        return output

    @property
    def decoder(self) -> _Replay:
        """What OPT's forward calls of it."""
        return self


def _replaying(model: PreTrainedModel) -> PreTrainedModel:
    """A shallow copy that shares every module but the decoder, so that no family's rule is repeated here."""
    shallow = copy.copy(model)
    shallow._modules = dict(model._modules)
    shallow._modules[model.base_model_prefix] = _Replay()
    return shallow


def replayed(model: PreTrainedModel, output: ModelOutput) -> torch.Tensor:
    """The logits that the model's forward makes of its decoder's output. Raises whatever it raises where it
    does not take it from the decoder in the way that LogitsHead needs."""
    return _logits(_replaying(model), output)


def _logits(replaying: PreTrainedModel, output: ModelOutput) -> torch.Tensor:
    """input_ids are there to be counted: Gemma 4 compares their number with that of the hidden states."""
    hidden = output["last_hidden_state"]
    ids = torch.zeros(hidden.shape[:2], dtype=torch.int64, device=hidden.device)
    arguments: dict[str, Any] = {_OUTPUT_ARGUMENT: output}
    logits: torch.Tensor = replaying(input_ids=ids, use_cache=False, **arguments).logits
    return logits


class LogitsHead:
    """The model's own forward after its decoder: lm_head and whatever scaling or cap follows.

    row_quantum: rows are padded to a multiple of it, unless whatever follows lm_head ends on a whole vector.
    """

    def __init__(self, model: PreTrainedModel, vocab_size: int, row_quantum: int) -> None:
        self._model = _replaying(model)
        # What follows lm_head are vectorised loops of torch over all logits at once.
        self._row_quantum = row_quantum if vocab_size % VECTOR == 0 else ROW_QUANTUM
        self._row_bytes = vocab_size * max(4, model.dtype.itemsize)

    @property
    def max_rows(self) -> int:
        """How many rows' logits stay within the byte bound."""
        return max(1, MAX_LOGITS_BYTES // self._row_bytes)

    def __call__(self, output: ModelOutput, index: torch.Tensor) -> torch.Tensor:
        """The decoder's output of a step, and the M tokens wanted -> logits [M, V].

        Rows are bitwise independent of each other.
        """
        padded = torch.nn.functional.pad(index, (0, -len(index) % self._row_quantum))
        hidden = output["last_hidden_state"].index_select(1, padded)
        return _logits(self._model, type(output)(last_hidden_state=hidden))[0, : len(index)]

    def runs(self, rows: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Cuts groups of `rows` rows into runs (first, last) of `max_rows`, one group at least."""
        limit, first, total = self.max_rows, 0, 0
        for i, count in enumerate(rows):
            if i > first and total + count > limit:
                yield first, i
                first, total = i, 0
            total += count
        yield first, len(rows)
