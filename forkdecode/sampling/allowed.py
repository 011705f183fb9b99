"""What a constraint leaves of a group's logits: masks, and which candidates it ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from forkdecode.allowed import Allowed, AllowedBits, AllowedLists, Ready
from forkdecode.step import I32, I64, Bools, Gather, SelectionRequest
from forkdecode_kernels.allowed import (
    TokenLists,
    count_open,
    find_entries,
    keep_bits,
    keep_listed,
    lists_of_bits,
)
from forkdecode_kernels.listed import longest_list

_NO_IDS = np.empty(0, np.int64)
_NONE = np.empty(0, np.bool_)


def settled(request: SelectionRequest) -> SelectionRequest:
    """The request with what is allowed at hand: waits for it, unless nothing here depends on it.

    Raises what the constraint raises, and ValueError for what does not fit the request's rows.
    """
    source = request.allowed
    if source is None or isinstance(source, Ready):
        return request
    if isinstance(request.choice, Gather):
        return replace(request, allowed=None)
    allowed = source.get()
    rows = len(allowed.start if isinstance(allowed, AllowedLists) else allowed.words)
    if rows != request.rows:
        raise ValueError(f"the constraint speaks of {rows} rows, of {request.rows}")
    return replace(request, allowed=Ready(allowed))


def allowed_of(request: SelectionRequest) -> Allowed | None:
    """What the request's rows may continue with; None for anything."""
    return None if request.allowed is None else request.allowed.get()


def is_masked(request: SelectionRequest) -> bool:
    """Whether the constraint changes this step's logits. A forced token was found allowed when the
    request was checked, or overrules a callable."""
    return request.allowed is not None and request.num_generated >= len(request.processors.forced_prefix)


def lists_of(allowed: AllowedLists, request: SelectionRequest) -> TokenLists:
    """The lists as the kernels take them. Before min_tokens an entry that would end a candidate is masked,
    as end-of-sequence ids are."""
    rows, too_early = len(allowed.start), request.num_generated + 1 < request.processors.min_tokens
    return TokenLists(
        allowed.tokens,
        allowed.start,
        allowed.stop,
        _NONE if allowed.ends is None else allowed.ends,
        np.zeros(rows, np.bool_) if allowed.also is None else allowed.also,
        _NO_IDS if allowed.also_ids is None else allowed.also_ids,
        without_ends=too_early,
    )


def listed(request: SelectionRequest) -> TokenLists:
    """The lists of a request for which reads_lists holds."""
    allowed = allowed_of(request)
    assert isinstance(allowed, AllowedLists), "told by bits"
    return lists_of(allowed, request)


def reads_lists(request: SelectionRequest) -> bool:
    """Whether lists of allowed tokens are all that changes this step's logits."""
    lists_only = is_masked(request) and not request.processors.active(request.num_generated)
    return lists_only and isinstance(allowed_of(request), AllowedLists)


def reads_short_lists(request: SelectionRequest, vocab: int) -> bool:
    """Whether, besides, no list is so long that a mask is less work."""
    if not reads_lists(request):
        return False
    lists = listed(request)
    entries = int((lists.stop - lists.start).max(initial=0)) + len(lists.also_ids)
    return entries <= longest_list(vocab)


def with_short_lists(request: SelectionRequest, vocab: int) -> SelectionRequest:
    """The request with few set bits as lists: what a grammar allows next is often a bracket or a digit."""
    allowed = allowed_of(request)
    if not isinstance(allowed, AllowedBits) or request.processors.active(request.num_generated):
        return request
    lists = lists_of_bits(allowed.words, vocab, longest_list(vocab))
    if lists is None:
        return request
    return replace(request, allowed=Ready(AllowedLists(lists.tokens, lists.start, lists.stop)))


def apply_allowed(
    values: torch.Tensor, request: SelectionRequest, first: int, last: int, *, threads: int = 1
) -> None:
    """Sets what rows first .. last of the group may not continue with to -inf; values are theirs, [r, V]."""
    if not is_masked(request):
        return
    allowed = allowed_of(request)
    if isinstance(allowed, AllowedBits):
        keep_bits(values, allowed.words[first:last], threads=threads)
    elif allowed is not None:
        lists = lists_of(allowed, request)
        # End-of-sequence ids that wait for min_tokens are masked already, and stay so.
        keep_listed(values, lists.part(first, last), threads=threads)


def may_end(request: SelectionRequest) -> bool:
    """Whether the constraint may end candidates in this step."""
    allowed = allowed_of(request)
    return isinstance(allowed, AllowedLists) and allowed.ends is not None


def still_open(request: SelectionRequest, finishing_ids: I64 | None) -> int | None:
    """How many continuations the constraint leaves that end nothing by it, nor by an id in finishing_ids;
    None where it ends none anyway."""
    allowed = allowed_of(request)
    if not isinstance(allowed, AllowedLists) or allowed.ends is None:
        return None
    lists = lists_of(allowed, request)
    beside = lists.also_ids if finishing_ids is None else np.setdiff1d(lists.also_ids, finishing_ids)
    return count_open(lists) + int(lists.also.sum()) * len(beside)


def ended(request: SelectionRequest, rows: I32 | I64, tokens: I64) -> Bools | None:
    """[N] Which candidates, tokens[i] after the group's row rows[i], the constraint ends; None for none."""
    allowed = allowed_of(request)
    if not isinstance(allowed, AllowedLists) or allowed.ends is None or not len(allowed.ends):
        return None
    at = find_entries(lists_of(allowed, request), rows, tokens)
    return np.asarray(allowed.ends[at] & (at >= 0), np.bool_)
