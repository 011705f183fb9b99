"""What parallel samples hold, counted without a model.

Samples fork once, behind the prompt, and then each row continues itself: with end tokens ignored nothing
that a model says changes which blocks they hold. So thousands of requests can be counted at once, by what
`memory_replay.replay` counts step by step on the engine's block table (the tests compare the two).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.memory_replay import Counts
from forkdecode.step import I64


@dataclass(frozen=True)
class Samples:
    """Requests of `width` rows. prompts, outputs [N]: tokens."""

    width: int
    prompts: I64
    outputs: I64

    def counts(self, block_size: int) -> Counts:
        """Of all requests together, as `replay` counts each."""
        lengths, steps = self._steps()
        rows = np.where(steps > 0, self.width, 1)
        held = -(-lengths // block_size)
        trunk = np.repeat(self.prompts, self.outputs) // block_size
        # The prompt's full blocks are shared, the rest is each row's own; one row shares with none.
        unique = np.where(steps > 0, trunk + rows * (held - trunk), held)
        forked = (self.prompts % block_size > 0) & (self.outputs > 1)
        return Counts(
            steps=len(steps),
            unique_blocks=int(unique.sum()),
            unshared_blocks=int((rows * held).sum()),
            wasted_slots=int((rows * (-lengths % block_size)).sum()),
            copies=int(forked.sum()) * (self.width - 1),
            generated=self.width * int((self.outputs - 1).sum()),
        )

    def ideal_tokens(self) -> int:
        """Sum over all steps of what a token trie holds of rows that draw no token alike."""
        _, steps = self._steps()
        return int((self.prompts * self.outputs).sum() + self.width * steps.sum())

    def contiguous_tokens(self, *, reserved: bool) -> int:
        """The sum of `memory_replay.contiguous_tokens`."""
        lengths, _ = self._steps()
        if reserved:
            return self.width * int(((self.prompts + self.outputs - 1) * self.outputs).sum())
        return self.width * int(lengths.sum())

    def _steps(self) -> tuple[I64, I64]:
        """Of each step of all requests: tokens in a row, and how many steps of its request came before."""
        first = np.repeat(np.cumsum(self.outputs) - self.outputs, self.outputs)
        steps = np.arange(int(self.outputs.sum())) - first
        return np.repeat(self.prompts, self.outputs) + steps, steps
