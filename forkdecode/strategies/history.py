"""What a group has generated, step by step, as parents and tokens: nothing is copied at a fork."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forkdecode.step import F32, I32, I64, TopLogprobs
from forkdecode.strategies.hypotheses import HypothesisBatch


@dataclass(frozen=True, slots=True)
class TokenPath:
    """One sequence's generated tokens with their log-probabilities, [g] each, and what was most
    likely at each of its steps, [g, k] each, where asked for."""

    tokens: I64
    logprobs: F32
    selection_logprobs: F32
    top: TopLogprobs | None


class History:
    """Tokens and log-probabilities of all rows that ever lived."""

    def append(
        self,
        parents: I32,
        tokens: I64,
        logprobs: F32,
        selection_logprobs: F32,
        top: TopLogprobs | None = None,
    ) -> None:
        """Adds a step whose R' rows continue rows `parents` of the step before. top: of the step's
        source rows (not of the R' new ones). Call it for the last step too, with R' = 0."""
        raise NotImplementedError

    @property
    def steps(self) -> int:
        raise NotImplementedError

    def tokens(self, step: int, rows: I32) -> I64:
        """[n, step] What `rows` (numbered as after `step` steps) have generated."""
        raise NotImplementedError

    def paths(self, hypotheses: HypothesisBatch) -> Sequence[TokenPath]:
        """All that is known of each hypothesis, its last token included."""
        raise NotImplementedError
