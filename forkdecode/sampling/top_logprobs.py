"""The most likely tokens of each row, raw and processed, for requests that ask for log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forkdecode.step import TopLogprobs


def joined(parts: Sequence[TopLogprobs]) -> TopLogprobs:
    """Row chunks of one group, in order, as one."""
    if len(parts) == 1:
        return parts[0]
    return TopLogprobs(
        np.concatenate([p.raw_ids for p in parts]),
        np.concatenate([p.raw for p in parts]),
        np.concatenate([p.processed_ids for p in parts]),
        np.concatenate([p.processed for p in parts]),
    )
