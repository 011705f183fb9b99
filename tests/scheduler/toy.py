"""A model without arithmetic: it stores tokens where KV would lie and reads them back.

Its logits are a function of the tokens found through the block tables, so that any mistake in
slots, copies, swaps, segments or parents changes what is decoded, or is caught on the spot.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from forkdecode.sampling.select import select
from forkdecode.step import I64, StepOutput, StepPlan

EMPTY = -1


class ToyRunner:
    """Executes plans on a store of tokens. Raises AssertionError when a row reads a wrong slot."""

    def __init__(self, num_blocks: int, block_size: int, host_slots: int, vocab: int, sharpness: float = 2.0):
        self.size = block_size
        self.vocab = vocab
        self.sharpness = sharpness
        self.store = np.full((num_blocks, block_size), EMPTY, np.int64)
        self.host = np.full((max(1, host_slots), block_size), EMPTY, np.int64)
        self.computed = 0
        self.fail_at: set[int] = set()

    def execute(self, plan: StepPlan) -> StepOutput:
        if plan.step in self.fail_at:
            raise RuntimeError("the toy was told to fail")
        self._move(plan)
        assert len(plan.token_ids) == len(plan.positions) == len(plan.slots)
        assert len(set(plan.slots.tolist())) == len(plan.slots), "two tokens of a step write one slot"
        flat = self.store.reshape(-1)
        flat[plan.slots] = plan.token_ids + (plan.positions << 32)
        self.computed += len(plan.slots)
        context: dict[int, I64] = {}  # of each query token: what it attends to, itself included
        for segment in plan.segments:
            row = self._read(segment.blocks, segment.position + segment.token_count)
            for i in range(segment.token_count):
                context[segment.token_start + i] = row[: segment.position + i + 1]
        for rows in plan.decodes:
            for r in range(rows.rows):
                table = np.concatenate([rows.trunk, rows.tails[r]])
                context[rows.token_start + r] = self._read(table, rows.context_len)
        assert len(context) == len(plan.token_ids), "each token is in one segment or decode row"
        logits = [self.logits(context[token]) for token in plan.logits_index.tolist()]
        results = select(torch.from_numpy(np.stack(logits)), plan.selections) if logits else ()
        return StepOutput(plan.step, tuple(results))

    def _move(self, plan: StepPlan) -> None:
        self.host[plan.swap_out.target] = self.store[plan.swap_out.source]
        self.store[plan.zero_blocks] = EMPTY
        self.store[plan.swap_in.target] = self.host[plan.swap_in.source]
        assert not set(plan.copies.source.tolist()) & set(plan.copies.target.tolist())
        self.store[plan.copies.target] = self.store[plan.copies.source]

    def _read(self, blocks: np.ndarray, length: int) -> I64:
        assert len(blocks) == -(-length // self.size), "a table covers its row exactly"
        found = self.store[blocks].reshape(-1)[:length]
        assert (found >> 32 == np.arange(length)).all(), "a slot holds another position's token"
        return found & 0xFFFFFFFF

    def logits(self, context: I64) -> np.ndarray:
        """[V] float32, a function of the last tokens and the length."""
        key = hashlib.sha256(np.asarray(context, "<i8").tobytes()).digest()
        rng = np.random.default_rng(int.from_bytes(key[:8], "little"))
        return (rng.standard_normal(self.vocab) * self.sharpness).astype(np.float32)
