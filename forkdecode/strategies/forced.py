"""Rows whose next tokens are known: they follow given sequences, whatever their logits say."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from forkdecode.step import I32, I64


class ForcedTokens:
    """C token sequences, none empty. Row i of a group follows sequence `candidate[i]`, of which its
    first `generated` tokens are behind it. The group begins as one row, which forks into C at the
    first token."""

    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        self.lengths: I64 = np.fromiter(map(len, sequences), np.int64, len(sequences))
        self._start: I64 = np.cumsum(self.lengths) - self.lengths
        self._flat: I64 = np.fromiter(chain.from_iterable(sequences), np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def ahead(self, candidate: I32, generated: int) -> int:
        """How many tokens every row can append at once: until the rows fork, or the first one ends."""
        if generated == 0 and len(self) > 1:
            return 1
        return int(self.lengths[candidate].min()) - generated

    def following(self, candidate: I32, generated: int, count: int) -> I64:
        """[R, count] The next tokens of each row; count is at most `ahead`."""
        first = self._start[candidate] + generated
        return np.asarray(self._flat[first[:, None] + np.arange(count)], np.int64)
