"""What a step's answer does to a group: its strategy decides, its rows and blocks follow."""

from __future__ import annotations

import numpy as np

from forkdecode.errors import GroupFailedError, NoLegalTokenError
from forkdecode.kv.prefix_cache import PrefixCache
from forkdecode.scheduler.events import (
    CandidateEnded,
    CandidateStuck,
    GroupEvent,
    GroupStarted,
    TokensAppended,
)
from forkdecode.scheduler.group import SequenceGroup
from forkdecode.scheduler.held_rows import HeldRows
from forkdecode.scheduler.keeping import hold_finished, hold_prompt, let_go
from forkdecode.scheduler.moving import Moving
from forkdecode.scheduler.outcome import top_of_rows
from forkdecode.step import I64, Bools, SelectionResult
from forkdecode.strategies.hypotheses import EOS, LENGTH, REASONS, STOP, U8, HypothesisBatch
from forkdecode.strategies.policy import Decision, StopHits

MAX_CACHED_ROWS = 64
"""Finishing rows of one group and step whose generated blocks enter the prefix cache, unless nodes keep
them."""
FEW_IDS = 16
"""Up to so many ids are compared with each token."""


def stop_hits(group: SequenceGroup, result: SelectionResult) -> tuple[StopHits, I64]:
    """Why each of the N candidates ends here, if it does, and its stop automaton's next state."""
    request, tokens = group.request, result.tokens
    generated = group.rows.generated + 1
    states = np.zeros(len(tokens), np.int64)
    reason: U8 = np.zeros(len(tokens), np.uint8)  # that is LIVE
    if generated >= request.options.max_tokens:
        reason[:] = LENGTH
    if request.automaton is not None:
        states, hit = request.automaton.advance(group.stop_state[result.rows], tokens)
        if generated >= request.options.min_tokens:
            reason[hit] = STOP
    if result.ended is not None:
        reason[result.ended] = STOP
    if len(request.stop_ids):
        reason[among(tokens, request.stop_ids)] = STOP
    if len(request.eos_ids):
        reason[among(tokens, request.eos_ids)] = EOS
    return StopHits(reason), states


def among(tokens: I64, ids: I64) -> Bools:
    """[N] Which tokens are one of `ids`. Those are few, and np.isin sorts: 20 microseconds for one id."""
    if len(ids) > FEW_IDS:
        return np.isin(tokens, ids)
    found: Bools = np.logical_or.reduce(tokens[:, None] == ids, axis=1)
    return found


def commit_selection(
    group: SequenceGroup,
    result: SelectionResult,
    cache: PrefixCache | None,
    held: HeldRows,
    moving: Moving,
    now: float,
) -> tuple[list[GroupEvent], bool]:
    """Advances `group` by one token; its table follows by `moving`. Returns its events, and whether it is
    done.

    Raises GroupFailedError when the selection failed, NoLegalTokenError when nothing follows any row and
    nothing has finished.
    """
    if result.error is not None:
        raise GroupFailedError(
            result.error, field=_at_fault(group, result.field), request_id=group.request_id
        )
    _begin(group, cache, held, now)
    hits, states = stop_hits(group, result)
    if not len(result.tokens) and not len(group.policy.hypotheses):
        raise _nothing_legal(group)
    decision = let_go(group, group.policy.decide(result, group.rows, hits), held)
    if cache is not None and len(decision.finished):
        _cache_finished(group, decision.finished, cache)
    hold_finished(group, decision.finished, held)
    next_states = states[decision.picks]
    finishing = group.finishing(next_states, group.rows.generated + 1)
    rows = decision.next_rows(group.rows, finishing)
    group.history.append(
        decision.parents,
        decision.tokens,
        result.logprobs[decision.picks],
        result.selection_logprobs[decision.picks],
        result.top,
    )
    group.costs.generated_tokens += len(decision.picks) + len(decision.finished)
    events = _step_events(group, result, decision) if group.request.stream else []
    moving.add(group, decision.parents)
    group.move(rows, decision.parents, decision.tokens, next_states)
    if group.beam_stream is not None and group.num_rows:
        events += group.beam_stream.events(
            group.request_id, group.history, group.policy, decision.parents, decision.finished, rows
        )
    return events, decision.done


def _begin(group: SequenceGroup, cache: PrefixCache | None, held: HeldRows, now: float) -> None:
    """What a group's first selection is the time for: its prompt is computed."""
    table = group.table
    assert table is not None, "a group that decodes has a table"
    if group.costs.first_token is None:
        group.costs.first_token = now
    if not group.prompt_done:
        group.prompt_done = True
        if cache is not None:
            cache.insert(group.request.prompt, table.row_blocks(0), group.request.options.cache_salt)
        hold_prompt(group, held)


def _nothing_legal(group: SequenceGroup) -> NoLegalTokenError:
    free = group.constraint is None
    beside = "" if free else ", under the constraint and the other options"
    return NoLegalTokenError(
        f"no legal token at generated token {group.rows.generated + 1}{beside}",
        field=_at_fault(group, None if free else "constraint"),
        request_id=group.request_id,
    )


def _at_fault(group: SequenceGroup, field: str | None) -> str | None:
    """What the caller calls it: a constraint may be a function."""
    calls = group.request.options.prefix_allowed_tokens_fn is not None
    return "prefix_allowed_tokens_fn" if calls and field == "constraint" else field


def started(group: SequenceGroup) -> GroupStarted:
    """The event of a group's first step, once for each that streams."""
    group.announced = True
    return GroupStarted(group.request_id, group.costs.cached_tokens)


def _cache_finished(group: SequenceGroup, finished: HypothesisBatch, cache: PrefixCache) -> None:
    """Registers the full blocks of rows that end here: a dialogue may go on from them."""
    assert group.table is not None
    rows = np.unique(finished.row if group.request.keep else finished.row[:MAX_CACHED_ROWS]).astype(np.int32)
    generated = group.history.tokens(group.rows.generated, rows)
    salt = group.request.options.cache_salt
    for row, tokens in zip(rows, generated, strict=True):
        path = np.concatenate([group.request.prompt, tokens])
        cache.insert(path, group.table.row_blocks(int(row)), salt)


def _step_events(group: SequenceGroup, result: SelectionResult, decision: Decision) -> list[GroupEvent]:
    """Tokens of a sampling group, those of the candidates that end here included."""
    if not group.policy.streams_candidates:
        return []
    stuck = _stuck_events(group, decision)
    finished, picks, candidates = decision.finished, decision.picks, decision.candidate
    if not len(picks) and not len(finished):
        return stuck
    if len(finished):  # else the rows are in the order of their candidates
        picks = np.concatenate([picks, finished.pick])
        candidates = np.concatenate([candidates, finished.candidate])
        order = np.argsort(candidates, kind="stable")
        picks, candidates = picks[order], candidates[order]
    top = None
    if result.top is not None:
        by_row = top_of_rows(result.top)
        top = tuple(by_row[r] for r in result.rows[picks])
    request_id = group.request_id
    events: list[GroupEvent] = [
        TokensAppended(
            request_id,
            candidates.astype(np.int32, copy=False),
            result.tokens[picks],
            result.logprobs[picks],
            result.selection_logprobs[picks],
            top,
        )
    ]
    for i in range(len(finished)):
        reason = REASONS[int(finished.reason[i])]
        assert reason is not None
        events.append(
            CandidateEnded(request_id, int(finished.candidate[i]), reason, float(finished.cumulative[i]))
        )
    return events + stuck


def _stuck_events(group: SequenceGroup, decision: Decision) -> list[GroupEvent]:
    rows = group.rows
    return [
        CandidateStuck(
            group.request_id, int(rows.candidate[row]), float(rows.cumulative[row]), _nothing_legal(group)
        )
        for row in decision.stuck.tolist()
    ]
