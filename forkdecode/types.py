"""What callers say: strategies and options. All frozen, checked when built."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

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
from forkdecode.errors import invalid

if TYPE_CHECKING:
    from forkdecode.results import Candidate

EarlyStopping: TypeAlias = Literal[True, False, "never"]
RankBy: TypeAlias = Literal["cumulative_logprob", "mean_logprob", "none"]
Scorer: TypeAlias = Callable[[Sequence["Candidate"]], Sequence[float]]
"""Takes one request's finished candidates, returns a score for each: higher is better."""
Message: TypeAlias = Mapping[str, Any]
Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]
"""Text, token ids, or chat messages ({"role": ..., "content": ...})."""

MAX_COUNT = 65_536
MAX_SEED = 2**64 - 1
MAX_BAD_WORDS = 4096
"""Of a request: each text is tokenized twice, and each step looks for each word of several tokens."""
MAX_STOP_BYTES = 4096
"""Of all stop strings of a request: each byte is a state with a 2 KiB row of transitions."""


def _check_sampling(s: Sample | BestOf) -> None:
    keep(s, "temperature", check_float, 0.0, 1e4)
    keep(s, "top_k", check_int, 0)
    keep(s, "top_p", check_float, 0.0, 1.0, open_low=True)
    keep(s, "min_p", check_float, 0.0, 1.0)
    keep(s, "typical_p", check_float, 0.0, 1.0, open_low=True)
    if s.seed is not None:
        keep(s, "seed", check_int, 0, MAX_SEED)


@dataclass(frozen=True, slots=True)
class Greedy:
    """The most likely token at each step; ties to the lower token id."""


@dataclass(frozen=True, slots=True)
class Sample:
    """n independent samples of one prompt. They differ from each other and repeat for a seed.

    temperature 0 is greedy and needs n = 1; top_k 0, top_p 1, min_p 0 and typical_p 1 are off.
    seed None takes a fresh one, reported in the result.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        keep(self, "n", check_int, 1, MAX_COUNT)
        _check_sampling(self)
        if self.temperature == 0.0 and self.n > 1:
            raise invalid("temperature", f"0 would make all n={self.n} samples equal", "above 0 with n > 1")


@dataclass(frozen=True, slots=True)
class BestOf:
    """Draw best_of samples and return the n best, ranked.

    rank_by: "cumulative_logprob", "mean_logprob" (per generated token), or a scorer: a callable
    on the finished candidates, run in the caller's thread; or "none": all that finish are returned,
    whatever n is, in the order of samples, for the caller to rank. first_finished: stop as soon as
    that many candidates have finished, and rank those alone.
    """

    best_of: int = 8
    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    seed: int | None = None
    rank_by: RankBy | Scorer = "cumulative_logprob"
    first_finished: int | None = None

    def __post_init__(self) -> None:
        keep(self, "best_of", check_int, 1, MAX_COUNT)
        keep(self, "n", check_int, 1, self.best_of)
        _check_sampling(self)
        if self.temperature == 0.0 and self.best_of > 1:
            raise invalid(
                "temperature", f"0 would make all {self.best_of} samples equal", "above 0 with best_of > 1"
            )
        named = isinstance(self.rank_by, str) and self.rank_by in get_args(RankBy)
        if not named and not callable(self.rank_by):
            raise invalid(
                "rank_by",
                f"{shown(self.rank_by)} is unknown",
                "'cumulative_logprob', 'mean_logprob', 'none' or a callable on candidates",
            )
        if self.first_finished is not None:
            keep(self, "first_finished", check_int, self.n, self.best_of)


@dataclass(frozen=True, slots=True)
class Beam:
    """Beam search as transformers' `generate` defines it.

    num_return_sequences None returns every hypothesis of the pool. score = selection_logprob /
    generated tokens ** length_penalty. patience p != 1 (Kasai et al. 2022, "Beam decoding with
    controlled patience") makes the pool ceil(p * width) and needs early_stopping=True.
    """

    width: int = 4
    num_return_sequences: int | None = None
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    patience: float = 1.0

    def __post_init__(self) -> None:
        keep(self, "width", check_int, 1, MAX_COUNT)
        keep(self, "length_penalty", check_float, -100.0, 100.0)
        known = isinstance(self.early_stopping, (bool, str)) and self.early_stopping in (True, False, "never")
        if not known:
            raise invalid(
                "early_stopping", f"{shown(self.early_stopping)} is unknown", "True, False or 'never'"
            )
        keep(self, "patience", check_float, 0.0, 1e3, open_low=True)
        if self.patience != 1.0 and self.early_stopping is not True:
            raise invalid("patience", f"{self.patience:g} needs early_stopping=True", "1 otherwise")
        if self.num_return_sequences is not None:
            keep(self, "num_return_sequences", check_int, 1, self.pool_size)

    @property
    def pool_size(self) -> int:
        """How many finished hypotheses are kept: ceil(patience * width)."""
        return math.ceil(self.patience * self.width - 1e-9) or 1


Strategy: TypeAlias = Greedy | Sample | BestOf | Beam


@dataclass(frozen=True, slots=True)
class Continuations:
    """What a score request has in a strategy's place: the token sequences to be scored, none empty.

    Made of a checked request; callers say `score(prompt, continuations)`.
    """

    token_ids: tuple[tuple[int, ...], ...]

    @property
    def longest(self) -> int:
        """Tokens of the longest one."""
        return max(map(len, self.token_ids))


@dataclass(frozen=True, slots=True)
class Options:
    """How to decode, whatever the strategy. Sequences are normalised to tuples.

    max_tokens, min_tokens: bounds on generated tokens; before min_tokens, EOS and stop ids are
    masked and stop strings don't end anything. stop: texts that end a candidate, matched in the
    generated text only and cut from it unless include_stop. ignore_eos: EOS ids don't end a
    candidate. logprobs: None for the chosen tokens' sums alone, 0 for each chosen token, k for the
    top k of each step besides. forced_prefix: text or token ids each candidate must begin with.
    update_every, update_beams: while a beam is streamed, every how many steps (0: never) how many of
    its best live hypotheses are shown (0: all); refused with any other strategy.
    priority: higher runs first. cache_salt: requests with different salts never share cached
    prefix blocks.
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
        keep(self, "repetition_penalty", check_float, 0.0, 1e4, open_low=True)
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
        if self.logprobs is not None:
            keep(self, "logprobs", check_int, 0, 1024)
        keep(self, "update_every", check_int, 0)
        keep(self, "update_beams", check_int, 0, MAX_COUNT)
        keep(self, "priority", check_int, -(2**31), 2**31 - 1)
        keep(self, "cache_salt", check_unicode)


def _check_bias(name: str, value: object) -> dict[int, float]:
    """A copy: what the caller does with the mapping later is of no effect."""
    if not isinstance(value, Mapping):
        raise invalid(name, f"{shown(value)} is not a mapping", "{token id: number}")
    return {check_int(name, token, 0): check_float(name, bias, -1e4, 1e4) for token, bias in value.items()}


OPTION_NAMES: tuple[str, ...] = tuple(f.name for f in fields(Options))
BEAM_OPTIONS: tuple[str, ...] = ("update_every", "update_beams")
"""Those that say something of beams alone; with another strategy they must stay at their defaults."""


def make_options(options: Mapping[str, Any]) -> Options:
    """Options from keyword arguments; an unknown name is refused by name."""
    unknown = sorted(set(options) - set(OPTION_NAMES))
    if unknown:
        raise invalid(unknown[0], "is not an option", ", ".join(OPTION_NAMES))
    return Options(**options)
