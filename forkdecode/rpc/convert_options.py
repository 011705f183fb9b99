"""Options to and from the protocol."""

from __future__ import annotations

from forkdecode.errors import callable_stays
from forkdecode.rpc.convert_constraints import constraint_message, constraint_of
from forkdecode.rpc.convert_prompts import piece_of, token_ids
from forkdecode.rpc.fields import RENAMED, given
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.types import LOCAL_OPTIONS, OPTION_NAMES, Options

_SHAPED = (
    "logit_bias",
    "bad_words",
    "allowed_token_ids",
    "forced_prefix",
    "constraint",
    *LOCAL_OPTIONS,
)
"""Those that are not the same plain value in both."""
_PLAIN = tuple(name for name in OPTION_NAMES if name not in _SHAPED)


def options_of(message: pb.Options) -> Options:
    """What is not set has its default. Raises InvalidRequestError."""
    names = {RENAMED.get(name, name): name for name in _PLAIN}
    plain = {names[field]: value for field, value in given(message, names).items()}
    return Options(
        **plain,
        logit_bias=dict(message.logit_bias),
        bad_words=tuple(piece_of("bad_words", i, word) for i, word in enumerate(message.bad_words)),
        allowed_token_ids=tuple(message.allowed_token_ids.ids)
        if message.HasField("allowed_token_ids")
        else None,
        forced_prefix=message.forced_prefix_text
        if message.HasField("forced_prefix_text")
        else tuple(message.forced_prefix_ids.ids),
        constraint=constraint_of(message.constraint) if message.HasField("constraint") else None,
    )


def options_message(options: Options) -> pb.Options:
    """Every option is written out, so that defaults of another version don't matter.

    Raises InvalidRequestError for a prefix_allowed_tokens_fn: it is a Python callable and stays where it is.
    """
    if options.prefix_allowed_tokens_fn is not None:
        raise callable_stays("prefix_allowed_tokens_fn")
    values = {RENAMED.get(name, name): getattr(options, name) for name in _PLAIN}
    message = pb.Options(**values, logit_bias=options.logit_bias)
    for word in options.bad_words:
        if isinstance(word, str):
            message.bad_words.add(text=word)
        else:
            message.bad_words.add(token_ids=token_ids(word))
    if options.allowed_token_ids is not None:
        message.allowed_token_ids.CopyFrom(token_ids(options.allowed_token_ids))
    if isinstance(options.forced_prefix, str):
        message.forced_prefix_text = options.forced_prefix
    else:
        message.forced_prefix_ids.CopyFrom(token_ids(options.forced_prefix))
    if options.constraint is not None:
        message.constraint.CopyFrom(constraint_message(options.constraint))
    return message
