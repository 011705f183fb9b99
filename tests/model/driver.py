"""Drives a Runner by hand-made step plans over real block tables, and reads whole distributions back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from forkdecode.config import Weights
from forkdecode.kv.block_pool import BlockPool
from forkdecode.kv.block_table import BlockTable
from forkdecode.model.info import ModelInfo
from forkdecode.model.runner import Runner
from forkdecode.model.runner_settings import RunnerSettings
from forkdecode.step import (
    BlockMoves,
    DecodeRows,
    ProcessorSpec,
    QuerySegment,
    SelectionRequest,
    SelectionResult,
    StepPlan,
    TopK,
)

I64 = NDArray[np.int64]


def model_info(model: PreTrainedModel) -> ModelInfo:
    """What the loader would say of a tiny model."""
    config = model.config
    layers = config.num_hidden_layers
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * layers
    windows = tuple(window if t == "sliding_attention" else None for t in types)
    return ModelInfo(
        "tiny", config.vocab_size, 1024, (), ((heads, dim),) * layers, windows,
        str(model.dtype).removeprefix("torch."), 0,
    )  # fmt: skip


def make_runner(
    model: PreTrainedModel,
    *,
    block_size: int = 4,
    num_blocks: int = 600,
    decoder: Literal["auto", "generic"] = "auto",
    attention: Literal["auto", "nodes"] = "auto",
    weights: Weights = "native",
    info: ModelInfo | None = None,
) -> Runner:
    info = info or model_info(model)
    cpu = torch.device("cpu")
    settings = RunnerSettings(
        block_size, model.dtype, cpu, decoder=decoder, attention=attention, weights=weights
    )
    return Runner(model, info, settings, num_blocks, 64)


@dataclass
class Group:
    """Rows of token lists over a block table. `computed` tokens have KV."""

    table: BlockTable
    rows: list[list[int]]

    @property
    def computed(self) -> int:
        return self.table.length


@dataclass
class StepBuilder:
    """Collects one step's work."""

    ids: list[I64] = field(default_factory=list)
    positions: list[I64] = field(default_factory=list)
    slots: list[I64] = field(default_factory=list)
    segments: list[QuerySegment] = field(default_factory=list)
    decodes: list[DecodeRows] = field(default_factory=list)
    logits_index: list[I64] = field(default_factory=list)
    selections: list[SelectionRequest] = field(default_factory=list)
    copies: list[BlockMoves] = field(default_factory=list)
    tokens: int = 0

    def prefill(self, group: Group, count: int) -> None:
        """The group's single row computes `count` more tokens, logits unwanted."""
        start = group.computed
        extension = group.table.extend(count)
        self.copies.append(extension.copies)
        self.segment(group.rows[0], start, count, group.table.row_blocks(0), extension.slots[0])

    def segment(
        self, row: Sequence[int], start: int, count: int, blocks: NDArray[np.int32], slots: I64
    ) -> None:
        self.segments.append(QuerySegment(self.tokens, count, start, blocks))
        self._add(np.array(row[start : start + count]), np.arange(start, start + count), slots)

    def decode(self, group: Group, vocab: int) -> None:
        """Every row computes its last token; asks for the whole distribution of each row."""
        assert all(len(row) == group.computed + 1 for row in group.rows)
        extension = group.table.extend(1)
        self.copies.append(extension.copies)
        table, rows = group.table, len(group.rows)
        self.decodes.append(DecodeRows(self.tokens, table.trunk, table.tails, table.length))
        self.logits_index.append(np.arange(self.tokens, self.tokens + rows))
        for r in range(rows):
            first = sum(s.rows for s in self.selections)
            choice = TopK(vocab, np.zeros(1, np.float32), 1)
            self.selections.append(
                SelectionRequest(
                    len(self.selections), first, 1, choice, ProcessorSpec(), np.zeros(1, np.int64), None, 0
                )
            )
            del r
        last = np.array([row[-1] for row in group.rows])
        self._add(last, np.full(rows, table.length - 1), extension.slots[:, 0])

    def _add(self, ids: I64, positions: I64, slots: I64) -> None:
        self.ids.append(ids.astype(np.int64))
        self.positions.append(positions.astype(np.int64))
        self.slots.append(slots.astype(np.int64))
        self.tokens += len(ids)

    def plan(self) -> StepPlan:
        none = np.empty(0, np.int64)
        return StepPlan(
            0,
            np.concatenate(self.ids or [none]),
            np.concatenate(self.positions or [none]),
            np.concatenate(self.slots or [none]),
            tuple(self.segments),
            tuple(self.decodes),
            np.concatenate(self.logits_index or [none]).astype(np.int64),
            tuple(self.selections),
            copies=BlockMoves.concat(self.copies),
        )


class Driver:
    """A runner, its block pool, and groups made by hand."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        block_size: int = 4,
        num_blocks: int = 600,
        decoder: Literal["auto", "generic"] = "auto",
        attention: Literal["auto", "nodes"] = "auto",
        weights: Weights = "native",
        info: ModelInfo | None = None,
    ) -> None:
        """info: what the loader would say, where that is not as plain as model_info's."""
        self.runner = make_runner(
            model, block_size=block_size, num_blocks=num_blocks, decoder=decoder, attention=attention,
            weights=weights, info=info,
        )  # fmt: skip
        self.pool = BlockPool(num_blocks, block_size)
        self.vocab = model.config.vocab_size

    def open(self, prompt: Sequence[int]) -> Group:
        return Group(BlockTable(self.pool), [list(prompt)])

    def fork(self, group: Group, parents: Sequence[int], tokens: Sequence[int]) -> None:
        """The next rows continue `parents` with `tokens`."""
        group.table.advance(np.array(parents, np.int32))
        group.rows = [[*group.rows[p], t] for p, t in zip(parents, tokens, strict=True)]

    def run(self, step: StepBuilder) -> torch.Tensor:
        """Log-probabilities [rows, V] of every decode row of the step, in order."""
        output = self.runner.execute(step.plan())
        return (
            torch.stack([self._distribution(r) for r in output.results]) if output.results else torch.empty(0)
        )

    def prefill(self, group: Group, chunks: Sequence[int] | None = None) -> torch.Tensor:
        """All of the prompt but its last token in chunks (one step each), then the last: [1, V]."""
        total = len(group.rows[0]) - 1 - group.computed
        for chunk in chunks if chunks is not None else [total] if total else []:
            step = StepBuilder()
            step.prefill(group, chunk)
            self.run(step)
        return self.decode(group)

    def decode(self, *groups: Group) -> torch.Tensor:
        step = StepBuilder()
        for group in groups:
            step.decode(group, self.vocab)
        return self.run(step)

    def _distribution(self, result: SelectionResult) -> torch.Tensor:
        assert result.error is None, result.error
        out = torch.full((self.vocab,), float("-inf"), dtype=torch.float32)
        out[torch.from_numpy(result.tokens)] = torch.from_numpy(result.logprobs)
        return out


@torch.inference_mode()
def expected(model: PreTrainedModel, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Log-probabilities [rows, V] after each row, by transformers' own full forward."""
    return torch.log_softmax(model(torch.tensor(rows)).logits[:, -1].float(), -1)
