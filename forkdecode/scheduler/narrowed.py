"""What a step has drawn, for the rows that are left when it has answered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forkdecode.step import I32, SelectionResult


def narrowed(result: SelectionResult, rows: I32) -> SelectionResult:
    """Of the draws for a group's rows, those for `rows` of them, which are all that it has left, in order."""
    if result.error is not None:
        return result
    kept = np.isin(result.rows, rows)
    top = result.top
    return replace(
        result,
        rows=np.searchsorted(rows, result.rows[kept]).astype(np.int32),
        tokens=result.tokens[kept],
        logprobs=result.logprobs[kept],
        selection_logprobs=result.selection_logprobs[kept],
        scores=result.scores[kept],
        top=None
        if top is None
        else replace(
            top,
            raw_ids=top.raw_ids[rows],
            raw=top.raw[rows],
            processed_ids=top.processed_ids[rows],
            processed=top.processed[rows],
        ),
    )
