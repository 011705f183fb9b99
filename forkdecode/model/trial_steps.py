"""Steps that no request waits for, of any number of tokens, over keys and values of their own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forkdecode.step import I32, I64, DecodeRows, QuerySegment, StepPlan

PROMPT_TOKENS = 256
"""Of the prompt that a trial's rows read, at most."""
_NONE = np.empty(0, np.int64)


class TrialSteps:
    """Steps over the first blocks of a cache, which `prompt` fills and the others only read."""

    def __init__(self, block_size: int, num_blocks: int, max_positions: int, vocab_size: int) -> None:
        self._size = block_size
        self._positions = max_positions
        self._vocab = vocab_size
        self._tokens = min(PROMPT_TOKENS, num_blocks * block_size, max_positions)
        self.blocks: I32 = np.arange(-(-self._tokens // block_size), dtype=np.int32)
        """Those that hold something afterwards."""

    def prompt(self) -> StepPlan:
        """A prompt alone, whose keys and values are written."""
        n = self._tokens
        places = np.arange(n)
        return self._plan(0, places, places, (QuerySegment(0, n, 0, self.blocks),), ())

    def prompts(self, tokens: int) -> StepPlan:
        """So many tokens of prompts, each as long as there are positions; nothing is written."""
        starts = range(0, tokens, self._positions)
        lengths = [min(self._positions, tokens - start) for start in starts]
        segments = tuple(
            QuerySegment(start, n, 0, np.resize(self.blocks, -(-n // self._size)))
            for start, n in zip(starts, lengths, strict=True)
        )
        positions = np.concatenate([np.arange(n) for n in lengths])
        return self._plan(0, positions, np.full(tokens, -1), segments, ())

    def pairs(self, tokens: int) -> Iterator[tuple[StepPlan, StepPlan]]:
        """Steps of each kind: rows apart, rows behind a trunk, and a prompt's chunk beside rows. The second
        of a pair differs from the first in its tokens alone."""
        yield self.rows(tokens, 0), self.rows(tokens, 1)
        if len(self.blocks) > 1:
            yield self.rows(tokens, 0, trunk=True), self.rows(tokens, 1, trunk=True)
        yield self.mixed(tokens, 0), self.mixed(tokens, 1)

    def rows(self, count: int, seed: int, *, trunk: bool = False) -> StepPlan:
        """So many rows, each with a block of its own as far as they go."""
        rows = self._rows(0, count, len(self.blocks) // 2 if trunk else 0)
        positions = np.full(count, rows.context_len - 1)
        return self._plan(seed, positions, np.full(count, -1), (), (rows,))

    def mixed(self, count: int, seed: int) -> StepPlan:
        """A prompt's chunk behind a cached prefix, half of the step's tokens or what positions there are, and
        rows."""
        before = len(self.blocks) // 2 * self._size
        chunk = min(max(2, count // 2), self._positions - before)
        blocks = np.resize(self.blocks, -(-(before + chunk) // self._size))
        segment = QuerySegment(0, chunk, before, blocks)
        rows = self._rows(chunk, count - chunk, 0)
        positions = np.full(count, rows.context_len - 1)
        positions[:chunk] = np.arange(before, before + chunk)
        return self._plan(seed, positions, np.full(count, -1), (segment,), (rows,) if rows.rows else ())

    def _rows(self, start: int, count: int, trunk: int) -> DecodeRows:
        """Rows whose context ends with the first token of their last block."""
        tails = np.resize(self.blocks[trunk:], (count, 1))
        return DecodeRows(start, self.blocks[:trunk], tails, trunk * self._size + 1)

    def _plan(
        self,
        seed: int,
        positions: I64,
        slots: I64,
        segments: tuple[QuerySegment, ...],
        decodes: tuple[DecodeRows, ...],
    ) -> StepPlan:
        tokens = np.random.default_rng(seed).integers(0, self._vocab, len(positions))
        return StepPlan(0, tokens, positions, slots, segments, decodes, _NONE, ())
