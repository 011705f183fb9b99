"""How many log-probabilities a request may come to ask of an engine process."""

from __future__ import annotations

from forkdecode.errors import CapacityError
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.strategies.policy import Policy
from forkdecode.types import Continuations

MAX_LOGPROBS = 2**24
"""Log-probabilities, raw and processed ones counted once, that a result may come to have: half a gigabyte on
its way, and several times as much while it is made and read."""
MAX_HELD_LOGPROBS = 2**26
"""The same of all rows while they are decoded, whatever is returned in the end: 24 bytes each, 1.5 GiB."""
_OWN = 2
"""About what a token takes besides, in log-probabilities."""


def check_result(request: DecodeRequest, policy: Policy) -> None:
    """policy: the request's. Raises CapacityError for a request whose result could be too large to be made
    and sent, or whose rows could come to hold too much before."""
    top, most = request.options.logprobs, request.options.max_tokens
    if top is None:
        return
    if isinstance(request.strategy, Continuations):
        tokens = sum(map(len, request.strategy.token_ids))
        _check(request, "top_logprobs", top, tokens, MAX_LOGPROBS, "make too large a result")
        return
    tokens = most_tokens(policy.max_results, policy.max_rows, most)
    _check(request, "logprobs", top, tokens, MAX_LOGPROBS, "make too large a result")
    if request.stream and policy.streams_candidates:
        _check(request, "logprobs", top, policy.max_rows, MAX_LOGPROBS, "of one step are too many to be told")
    held = policy.max_rows * most
    _check(request, "logprobs", top, held, MAX_HELD_LOGPROBS, "of all its rows are more than an engine holds")


def most_tokens(results: int, rows: int, max_tokens: int) -> int:
    """Tokens that `results` hypotheses can have together, where at most `rows` end in a step and all have by
    step max_tokens: as many of max_tokens as there are rows, then as many that are one shorter, and so on."""
    steps, rest = divmod(min(results, rows * max_tokens), rows)
    return rows * (steps * max_tokens - steps * (steps - 1) // 2) + rest * (max_tokens - steps)


def _check(request: DecodeRequest, field: str, top: int, tokens: int, limit: int, why: str) -> None:
    if tokens * (top + _OWN) <= limit:
        return
    most = limit // tokens - _OWN
    allowed = f"at most {most} for {tokens:,} tokens" if most >= 0 else f"at most {limit // _OWN:,} tokens"
    raise CapacityError(
        f"{field}: {top} for each of up to {tokens:,} tokens {why}; {allowed}",
        field=field,
        limit=allowed,
        request_id=request.request_id,
    )
