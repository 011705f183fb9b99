"""Whether a forced prefix contradicts the request's other options, but for its constraint."""

from __future__ import annotations

from collections.abc import Sequence

from forkdecode.errors import invalid
from forkdecode.step import I64, ProcessorSpec


def check_forced(spec: ProcessorSpec, ends: I64, prompt: I64) -> None:
    """ends: EOS and stop ids. Raises InvalidRequestError naming the token at fault.

    no_repeat_ngram_size contradicts none: a prefix may have to repeat what the prompt says.
    """
    forced = spec.forced_prefix
    for position, token in enumerate(forced):
        if spec.allowed_token_ids is not None and token not in spec.allowed_token_ids:
            problem = f"token {token} at position {position} is not in allowed_token_ids"
            raise invalid("forced_prefix", problem, "tokens that are in it")
        if token in ends and (position < len(forced) - 1 or position < spec.min_tokens):
            raise invalid(
                "forced_prefix",
                f"token {token} at position {position} ends a candidate there",
                "EOS and stop ids only as its last token, after min_tokens tokens",
            )
    found = _banned(spec.bad_words, prompt, forced)
    if found is not None:
        position, length = found
        what = "is one of" if length == 1 else "completes one of"
        problem = f"token {forced[position]} at position {position} {what} bad_words"
        raise invalid("forced_prefix", problem, "tokens that complete none of bad_words")


def _banned(words: Sequence[tuple[int, ...]], prompt: I64, forced: tuple[int, ...]) -> tuple[int, int] | None:
    """Where in `forced` the first token stands that completes a bad word, which may begin in the prompt, and
    that word's length."""
    lengths = sorted({len(word) for word in words})
    if not lengths or not forced:
        return None
    banned = set(words)
    before = prompt[max(0, len(prompt) - lengths[-1] + 1) :].tolist()
    tokens = (*before, *forced)
    for end in range(len(before) + 1, len(tokens) + 1):
        for length in lengths:
            if length <= end and tokens[end - length : end] in banned:
                return end - 1 - len(before), length
    return None
