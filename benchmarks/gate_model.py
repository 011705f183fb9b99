"""A stand-in for the model whose answers are the same bits on every machine.

Scores are multiples of 1/256 below 2^16 of them, so that float32 sums are exact and no order of addition,
library or compiler can change which beam wins.
"""

from __future__ import annotations

import numpy as np

from forkdecode.step import F32, I32, U64, Draw, SelectionRequest, SelectionResult, StepOutput, StepPlan, TopK

VOCABULARY = 997
CANDIDATES = 8
"""Tokens that a row of a beam may go on with, at most."""


def mixed(values: U64) -> U64:
    """A well-mixed number for each (the finalizer of splitmix64: Steele, Lea and Flood 2014)."""
    with np.errstate(over="ignore"):
        z = values + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found: U64 = z ^ (z >> np.uint64(31))
    return found


class ExactModel:
    """Executes plans without KV: what it answers depends on the step, the group and the row alone."""

    def execute(self, plan: StepPlan) -> StepOutput:
        return StepOutput(plan.step, tuple(self._answer(s) for s in plan.selections))

    def _answer(self, request: SelectionRequest) -> SelectionResult:
        choice = request.choice
        key = request.group_id << 40 | request.num_generated << 20
        if isinstance(choice, TopK):
            return self._best(request, choice, key)
        if not isinstance(choice, Draw):
            raise TypeError(f"{type(choice).__name__} is not answered")
        hashed = mixed(np.arange(key, key + len(choice.source), dtype=np.uint64))
        tokens = (hashed % np.uint64(VOCABULARY)).astype(np.int64)
        logprobs = self._logprobs(hashed)
        return SelectionResult(
            request.group_id, choice.source, tokens, logprobs, logprobs, np.zeros_like(logprobs)
        )

    def _best(self, request: SelectionRequest, choice: TopK, key: int) -> SelectionResult:
        """The k best of the rows' candidates. A child's token is its rank in its row."""
        each = max(CANDIDATES, -(-choice.k // request.rows))
        hashed = mixed(np.arange(key, key + request.rows * each, dtype=np.uint64))
        logprobs = self._logprobs(hashed)
        scores = (choice.base[:, None] + logprobs.reshape(request.rows, each)).ravel()
        best = np.argsort(-scores, kind="stable")[: choice.k]
        rows: I32 = (best // each).astype(np.int32)
        taken = logprobs[best]
        return SelectionResult(request.group_id, rows, best % each, taken, taken, scores[best])

    @staticmethod
    def _logprobs(hashed: U64) -> F32:
        """[n] from 0 down to -4, in steps of 1/256."""
        found: F32 = -((hashed >> np.uint64(54)).astype(np.float32)) / np.float32(256)
        return found
