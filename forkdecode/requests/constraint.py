"""What a request's options hold its candidates to, checked against the other options."""

from __future__ import annotations

import numpy as np

from forkdecode.allowed import Constraint
from forkdecode.constraints.continued import continued, progress
from forkdecode.constraints.items import check_lengths, without_short_items
from forkdecode.constraints.maker import ConstraintMaker, needs_eos
from forkdecode.errors import invalid
from forkdecode.step import I64
from forkdecode.types import Options


def resolve_constraint(
    maker: ConstraintMaker,
    options: Options,
    prompt: I64,
    start: int | None,
    forced: tuple[int, ...],
    ends: tuple[I64, I64],
) -> Constraint | None:
    """None for none. start: DecodeRequest's constraint_start. forced: the forced prefix's tokens. ends: the
    request's EOS ids, and its stop ids. Raises InvalidRequestError."""
    constraint = _made(maker, options, prompt, start, ends[1])
    if constraint is None:
        return None
    if start is None:  # in a tree, what one decode leaves unfinished the next goes on with
        check_lengths(constraint, options.min_tokens, options.max_tokens)
    long_enough = without_short_items(constraint, options.min_tokens)
    if not forced:
        return long_enough
    eos = frozenset(np.concatenate(ends).tolist())
    stands, at = progress(constraint, np.array(forced, np.int64), ends=eos)
    if stands == "broken":
        name = "constraint" if options.prefix_allowed_tokens_fn is None else "prefix_allowed_tokens_fn"
        problem = f"token {forced[at]} at position {at} is not allowed by {name}"
        raise invalid("forced_prefix", problem, f"a beginning that {name} allows")
    if start is None and stands == "complete" and len(forced) < options.min_tokens:
        problem = f"completes the constraint after {len(forced)} tokens"
        raise invalid("forced_prefix", problem, f"not before min_tokens={options.min_tokens}")
    if long_enough is constraint or stands == "complete" or start is not None:
        return long_enough  # in a tree, what only short items go on with is a dead end like others
    stands, at = progress(long_enough, np.array(forced, np.int64), ends=eos)
    if stands == "broken":
        least = options.min_tokens
        problem = f"no item of {least} or more tokens continues with token {forced[at]} at position {at}"
        raise invalid("forced_prefix", problem, f"the beginning of one, with min_tokens={least}")
    return long_enough


def ends_by_eos(options: Options) -> bool:
    """Whether EOS ids end this request's candidates. Items that end by themselves may hold them."""
    return not options.ignore_eos and (options.constraint is None or needs_eos(options.constraint))


def _made(
    maker: ConstraintMaker, options: Options, prompt: I64, start: int | None, stop_ids: I64
) -> Constraint | None:
    spec = options.constraint
    if options.prefix_allowed_tokens_fn is not None:
        return maker.calling(options.prefix_allowed_tokens_fn, prompt)
    if spec is None:
        return None
    if options.ignore_eos and needs_eos(spec):
        raise invalid("ignore_eos", "only EOS can end a candidate under this constraint", "False with it")
    return continued(maker.of(spec, stop_ids, prompt[:start]), prompt, start)
