"""What callers pass: prompts and options. Strategies are in strategy_types. All frozen, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias, TypedDict

from forkdecode.checks import (
    check_bool,
    check_float,
    check_int,
    check_texts,
    check_token_ids,
    check_unicode,
    check_words,
    keep,
    shown,
)
from forkdecode.constraint_types import ConstraintSpec, check_constraint
from forkdecode.errors import invalid
from forkdecode.other_names import hint
from forkdecode.scorer_types import Contrastive, CustomScorer, HypothesisScorer, LengthNormalised
from forkdecode.strategy_types import (
    BEAMS,
    FRESH_SEEDS,
    MAX_COUNT,
    MAX_SEED,
    SEEDED,
    STRATEGY_NAMES,
    Beam,
    BestOf,
    DiverseBeam,
    EarlyStopping,
    Greedy,
    RankBy,
    Sample,
    Scorer,
    StochasticBeam,
    Strategy,
)

__all__ = [
    "BEAMS",
    "BEAM_OPTIONS",
    "FRESH_SEEDS",
    "LOCAL_OPTIONS",
    "MAX_BAD_WORDS",
    "MAX_COUNT",
    "MAX_SEED",
    "MAX_STOP_BYTES",
    "OPTION_NAMES",
    "SEEDED",
    "STRATEGY_NAMES",
    "Beam",
    "BestOf",
    "Continuation",
    "Continuations",
    "Contrastive",
    "CustomScorer",
    "DiverseBeam",
    "EarlyStopping",
    "Greedy",
    "HypothesisScorer",
    "LengthNormalised",
    "Message",
    "OptionKeywords",
    "Options",
    "PrefixFunction",
    "Prompt",
    "RankBy",
    "Sample",
    "Scorer",
    "StochasticBeam",
    "Strategy",
    "make_options",
]

Message: TypeAlias = Mapping[str, Any]
Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]
"""Text, token ids, or chat messages ({"role": ..., "content": ...})."""
Continuation: TypeAlias = str | Sequence[int]
"""What is scored after a prompt: text or token ids."""

PrefixFunction: TypeAlias = Callable[[int, Any], Sequence[int]]
"""fn(batch_id, input_ids) -> token ids: batch_id is 0, input_ids [P + g] an int64 tensor of torch, the prompt
and what has been generated; the ids are those that may follow, at least one."""
MAX_BAD_WORDS = 4096
"""Of a request: each text is tokenized twice, and each step looks for each word of several tokens."""
MAX_STOP_BYTES = 4096
"""Of all stop strings of a request: each byte is a state with a 2 KiB row of transitions."""


@dataclass(frozen=True, slots=True)
class Continuations:
    """What a score request has instead of a strategy: the token sequences to score, none empty.

    Built from a checked request; callers use `score(prompt, continuations)`.
    """

    token_ids: tuple[tuple[int, ...], ...]

    @property
    def longest(self) -> int:
        """Number of tokens in the longest one."""
        return max(map(len, self.token_ids))


@dataclass(frozen=True, slots=True)
class Options:
    """How to decode, whatever the strategy. Sequences are converted to tuples.

    max_tokens, min_tokens: bounds on generated tokens; before min_tokens, EOS and stop ids are masked and
    stop strings don't end anything. stop: texts that end a candidate, matched in the generated text only and
    cut from it unless include_stop is set. ignore_eos: EOS ids don't end a candidate. logprobs: None returns
    only sums, 0 adds the log-probability of each chosen token, k also the top k of each step. forced_prefix:
    text or token ids that each candidate must begin with. constraint: what all generated tokens must follow,
    including a forced prefix (see constraint_types). prefix_allowed_tokens_fn: the same as a function, as in
    transformers (see PrefixFunction); instead of a constraint, and in process only. It is called in a thread
    of its own, one call at a time, and the engine waits for it, with all that it runs: calls of the same LLM
    raise UnavailableError in it. If it raises, only its request ends.
    update_every, update_beams: while a beam is streamed, the number of steps between two updates (0: no
    updates) and how many of its best live hypotheses they show (0: all); refused with any other strategy.
    priority: requests with a higher priority run first. cache_salt: requests with different salts never share
    cached prefix blocks.
    """

    max_tokens: int = 64
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: tuple[str | tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    forced_prefix: str | tuple[int, ...] = ()
    constraint: ConstraintSpec | None = None
    prefix_allowed_tokens_fn: PrefixFunction | None = None
    logprobs: int | None = None
    update_every: int = 1
    update_beams: int = 1
    priority: int = 0
    cache_salt: str = ""

    def __post_init__(self) -> None:
        keep(self, "max_tokens", check_int, 1)
        keep(self, "min_tokens", check_int, 0, self.max_tokens)
        keep(self, "stop", check_texts, MAX_STOP_BYTES)
        keep(self, "stop_token_ids", check_token_ids)
        keep(self, "include_stop", check_bool)
        keep(self, "ignore_eos", check_bool)
        keep(self, "repetition_penalty", check_float, 1e-4, 1e4)
        keep(self, "presence_penalty", check_float, -100.0, 100.0)
        keep(self, "frequency_penalty", check_float, -100.0, 100.0)
        keep(self, "no_repeat_ngram_size", check_int, 0, 1024)
        keep(self, "logit_bias", _check_bias)
        keep(self, "bad_words", check_words, MAX_BAD_WORDS)
        if self.allowed_token_ids is not None:
            keep(self, "allowed_token_ids", check_token_ids)
            if not self.allowed_token_ids:
                raise invalid("allowed_token_ids", "is empty", "None or at least one token id")
        is_text = isinstance(self.forced_prefix, str)
        keep(self, "forced_prefix", check_unicode if is_text else check_token_ids)
        if self.constraint is not None:
            keep(self, "constraint", check_constraint)
        if self.prefix_allowed_tokens_fn is not None:
            _check_function("prefix_allowed_tokens_fn", self.prefix_allowed_tokens_fn, self.constraint)
        if self.logprobs is not None:
            keep(self, "logprobs", check_int, 0, 1024)
        keep(self, "update_every", check_int, 0)
        keep(self, "update_beams", check_int, 0, MAX_COUNT)
        keep(self, "priority", check_int, -(2**31), 2**31 - 1)
        keep(self, "cache_salt", check_unicode)


class OptionKeywords(TypedDict, total=False):
    """Options' fields, as keywords of the verbs: what is normalised there as callers may write it."""

    max_tokens: int
    min_tokens: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    include_stop: bool
    ignore_eos: bool
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    no_repeat_ngram_size: int
    logit_bias: Mapping[int, float]
    bad_words: Sequence[str | Sequence[int]]
    allowed_token_ids: Sequence[int] | None
    forced_prefix: str | Sequence[int]
    constraint: ConstraintSpec | None
    prefix_allowed_tokens_fn: PrefixFunction | None
    logprobs: int | None
    update_every: int
    update_beams: int
    priority: int
    cache_salt: str


def _check_function(name: str, value: object, constraint: ConstraintSpec | None) -> None:
    if not callable(value):
        raise invalid(name, f"{shown(value)} is not callable", "a function of batch id and token ids")
    if constraint is not None:
        raise invalid(name, "can't be combined with constraint", "one of the two")


def _check_bias(name: str, value: object) -> dict[int, float]:
    """A copy: what the caller does with the mapping later is of no effect."""
    if not isinstance(value, Mapping):
        raise invalid(name, f"{shown(value)} is not a mapping", "{token id: number}")
    return {check_int(name, token, 0): check_float(name, bias, -1e4, 1e4) for token, bias in value.items()}


OPTION_NAMES: tuple[str, ...] = tuple(f.name for f in fields(Options))
LOCAL_OPTIONS: tuple[str, ...] = ("prefix_allowed_tokens_fn",)
"""Those that never leave their process; a client refuses them by name."""
BEAM_OPTIONS: tuple[str, ...] = ("update_every", "update_beams")
"""Those that say something of beams alone; with another strategy they must stay at their defaults."""


def make_options(options: Mapping[str, Any]) -> Options:
    """Options from keyword arguments; an unknown name is refused with a hint at its counterpart here."""
    unknown = sorted(set(options) - set(OPTION_NAMES))
    if unknown:
        raise invalid(unknown[0], "is not an option", hint(unknown[0]) or ", ".join(OPTION_NAMES))
    return Options(**options)
