"""From a group's hypotheses to the records its caller gets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forkdecode.errors import GroupFailedError
from forkdecode.results import TokenLogprob
from forkdecode.scheduler.events import CandidateRecord, TopPairs
from forkdecode.scheduler.group import SequenceGroup
from forkdecode.step import F32, I64, TopLogprobs
from forkdecode.strategies.history import TokenPath
from forkdecode.strategies.hypotheses import CANCELLED, REASONS, HypothesisBatch

MAX_PARTIAL_LOGPROBS = 2**24
"""Log-probabilities of what a group that ends early has; beyond that it is told of without them. To make them
takes seconds, which all other groups would wait for, and gigabytes."""


def top_pairs(ids: I64, values: F32) -> TopPairs:
    """[k] ids and log-probabilities as pairs; what is masked (-inf) is left out."""
    return tuple((int(i), float(v)) for i, v in zip(ids, values, strict=True) if v > -np.inf)


def token_logprobs(path: TokenPath) -> tuple[TokenLogprob, ...]:
    """One record a token of the path."""
    tops: list[tuple[TopPairs, TopPairs]] = [((), ())] * len(path.tokens)
    if path.top is not None:
        tops = top_of_rows(path.top)
    return tuple(
        TokenLogprob(int(t), float(raw), float(processed), *top)
        for t, raw, processed, top in zip(
            path.tokens, path.logprobs, path.selection_logprobs, tops, strict=True
        )
    )


def top_of_rows(top: TopLogprobs) -> list[tuple[TopPairs, TopPairs]]:
    """The raw and processed pairs of each of the [R, k] rows: top_pairs of all, in a few calls."""
    raw = _pairs(top.raw_ids, top.raw)
    if top.processed_ids is top.raw_ids and top.processed is top.raw:
        return list(zip(raw, raw, strict=True))
    return list(zip(raw, _pairs(top.processed_ids, top.processed), strict=True))


def _pairs(ids: I64, values: F32) -> list[TopPairs]:
    found = [tuple(zip(i, v, strict=True)) for i, v in zip(ids.tolist(), values.tolist(), strict=True)]
    for row in np.flatnonzero(~(values > -np.inf).all(axis=1)).tolist():
        found[row] = top_pairs(ids[row], values[row])
    return found


def records(
    group: SequenceGroup, batch: HypothesisBatch, first_rank: int = 0, *, bare: bool = False
) -> tuple[CandidateRecord, ...]:
    """The candidates of `batch`, in its order; hypotheses of a beam are numbered from first_rank. bare:
    without log-probabilities, though asked for."""
    named = group.policy.streams_candidates
    tokens: Sequence[I64]
    logprobs: Sequence[tuple[TokenLogprob, ...] | None] = [None] * len(batch)
    if bare or group.request.options.logprobs is None:
        tokens = group.history.endings(batch)
    else:
        paths = group.history.paths(batch)
        tokens = [path.tokens for path in paths]
        logprobs = [token_logprobs(path) for path in paths]
    found = []
    for i in range(len(batch)):
        reason = REASONS[int(batch.reason[i])]
        assert reason is not None, "a live row is no hypothesis"
        found.append(
            CandidateRecord(
                index=int(batch.candidate[i]) if named else first_rank + i,
                token_ids=tuple(tokens[i].tolist()),
                finish_reason=reason,
                cumulative_logprob=float(batch.cumulative[i]),
                selection_logprob=float(batch.selection[i]),
                score=float(batch.score[i]),
                logprobs=logprobs[i],
            )
        )
    return tuple(found)


def partial_records(group: SequenceGroup) -> tuple[CandidateRecord, ...]:
    """What a group that ends early has: its finished candidates, of a beam those that it could still
    return, then its live rows, best first, as cancelled."""
    policy = group.policy
    ended = policy.hypotheses.best() if policy.streams_candidates else policy.results()
    live = group.num_rows if group.rows.generated else 0
    tokens, top = int(ended.generated.sum()) + live * group.rows.generated, group.request.options.logprobs
    bare = top is not None and tokens * (top + 2) > MAX_PARTIAL_LOGPROBS
    finished = records(group, ended, bare=bare)
    return finished + records(group, _cut_off(group), len(finished), bare=bare) if live else finished


def _cut_off(group: SequenceGroup) -> HypothesisBatch:
    """The live rows as hypotheses that end where they are, best first."""
    rows = group.rows
    try:
        scores = group.policy.live_score(rows)
    except GroupFailedError:  # a caller's scorer, of a group that ends for another reason: that is told
        scores = rows.selection.astype(np.float64)
    order = np.argsort(-scores, kind="stable").astype(np.int32)
    parents, tokens, logprobs, selection_logprobs = group.history.last(order)
    return HypothesisBatch(
        generated=np.full(len(order), rows.generated, np.int32),
        row=parents,
        pick=order.astype(np.int64),
        token=tokens,
        logprob=logprobs,
        selection_logprob=selection_logprobs,
        cumulative=rows.cumulative[order],
        selection=rows.selection[order],
        score=scores[order],
        reason=np.full(len(order), CANCELLED, np.uint8),
        candidate=rows.candidate[order],
    )
