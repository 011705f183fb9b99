"""What callers say and get: strategies, options, results, events. All frozen, checked when built."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias, get_args

from forkdecode.errors import invalid

EarlyStopping: TypeAlias = Literal[True, False, "never"]
FinishReason: TypeAlias = Literal["eos", "stop", "length", "cancelled", "pruned"]
RankBy: TypeAlias = Literal["cumulative_logprob", "mean_logprob"]
Scorer: TypeAlias = Callable[[Sequence["Candidate"]], Sequence[float]]
"""Takes one request's finished candidates, returns a score for each: higher is better."""
Message: TypeAlias = Mapping[str, Any]
Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]
"""Text, token ids, or chat messages ({"role": ..., "content": ...})."""

MAX_COUNT = 65_536
MAX_SEED = 2**64 - 1


def check_int(name: str, value: object, low: int, high: int | None = None) -> None:
    """Raises InvalidRequestError unless `value` is an int (no bool) in low..high."""
    top = "any larger integer" if high is None else str(high)
    if isinstance(value, bool) or not isinstance(value, int):
        raise invalid(name, f"{value!r} is not an integer", f"integers from {low} to {top}")
    if value < low or (high is not None and value > high):
        raise invalid(name, f"{value} is out of range", f"integers from {low} to {top}")


def check_float(
    name: str, value: object, low: float = -math.inf, high: float = math.inf, *, open_low: bool = False
) -> None:
    """Raises InvalidRequestError unless `value` is a finite number in [low, high] or (low, high]."""
    allowed = f"finite numbers {'above' if open_low else 'from'} {low:g} to {high:g}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise invalid(name, f"{value!r} is not a number", allowed)
    if not math.isfinite(value) or value > high or value < low or (open_low and value == low):
        raise invalid(name, f"{value!r} is out of range", allowed)


def check_bool(name: str, value: object) -> None:
    """Raises InvalidRequestError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise invalid(name, f"{value!r} is not a boolean", "True or False")


def _check_sampling(s: Sample | BestOf) -> None:
    check_float("temperature", s.temperature, 0.0, 1e4)
    check_int("top_k", s.top_k, 0)
    check_float("top_p", s.top_p, 0.0, 1.0, open_low=True)
    check_float("min_p", s.min_p, 0.0, 1.0)
    check_float("typical_p", s.typical_p, 0.0, 1.0, open_low=True)
    if s.seed is not None:
        check_int("seed", s.seed, 0, MAX_SEED)


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
        check_int("n", self.n, 1, MAX_COUNT)
        _check_sampling(self)
        if self.temperature == 0.0 and self.n > 1:
            raise invalid("temperature", f"0 would make all n={self.n} samples equal", "above 0 with n > 1")


@dataclass(frozen=True, slots=True)
class BestOf:
    """Draw best_of samples and return the n best, ranked.

    rank_by: "cumulative_logprob", "mean_logprob" (per generated token), or a scorer: a callable
    on the finished candidates, run in the caller's thread. first_finished: stop as soon as that
    many candidates have finished, and rank those alone.
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
        check_int("best_of", self.best_of, 1, MAX_COUNT)
        check_int("n", self.n, 1, self.best_of)
        _check_sampling(self)
        if self.temperature == 0.0 and self.best_of > 1:
            raise invalid(
                "temperature", f"0 would make all {self.best_of} samples equal", "above 0 with best_of > 1"
            )
        if not callable(self.rank_by) and self.rank_by not in get_args(RankBy):
            raise invalid(
                "rank_by",
                f"{self.rank_by!r} is unknown",
                "'cumulative_logprob', 'mean_logprob' or a callable on candidates",
            )
        if self.first_finished is not None:
            check_int("first_finished", self.first_finished, self.n, self.best_of)


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
        check_int("width", self.width, 1, MAX_COUNT)
        check_float("length_penalty", self.length_penalty, -100.0, 100.0)
        if not (isinstance(self.early_stopping, bool) or self.early_stopping == "never"):
            raise invalid("early_stopping", f"{self.early_stopping!r} is unknown", "True, False or 'never'")
        check_float("patience", self.patience, 0.0, 1e3, open_low=True)
        if self.patience != 1.0 and self.early_stopping is not True:
            raise invalid("patience", f"{self.patience:g} needs early_stopping=True", "1 otherwise")
        if self.num_return_sequences is not None:
            check_int("num_return_sequences", self.num_return_sequences, 1, self.pool_size)

    @property
    def pool_size(self) -> int:
        """How many finished hypotheses are kept: ceil(patience * width)."""
        return math.ceil(self.patience * self.width - 1e-9) or 1


Strategy: TypeAlias = Greedy | Sample | BestOf | Beam


def _token_sequence(name: str, value: object) -> tuple[int, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise invalid(name, f"{value!r} is not a sequence of token ids", "sequences of integers")
    for token in value:
        check_int(name, token, 0)
    return tuple(value)


def _words(name: str, value: object) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise invalid(name, f"{value!r} is not a list", "a list of texts or of token id lists")
    words: list[str | tuple[int, ...]] = []
    for word in value:
        word = word if isinstance(word, str) else _token_sequence(name, word)
        if not word:
            raise invalid(name, "has an empty entry", "non-empty texts or token id lists")
        words.append(word)
    return tuple(words)


def _stop_strings(value: object) -> tuple[str, ...]:
    items = (value,) if isinstance(value, str) else value
    if not isinstance(items, Sequence) or not all(isinstance(s, str) and s for s in items):
        raise invalid("stop", f"{value!r} is not usable", "a non-empty text or a list of them")
    for text in items:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise invalid("stop", f"{text!r} is not valid Unicode", "text without lone surrogates") from None
    return tuple(items)


@dataclass(frozen=True, slots=True)
class Options:
    """How to decode, whatever the strategy. Sequences are normalised to tuples.

    max_tokens, min_tokens: bounds on generated tokens; before min_tokens, EOS and stop ids are
    masked and stop strings don't end anything. stop: texts that end a candidate, matched in the
    generated text only and cut from it unless include_stop. ignore_eos: EOS ids don't end a
    candidate. logprobs: None for the chosen tokens' sums alone, 0 for each chosen token, k for the
    top k of each step besides. forced_prefix: text or token ids each candidate must begin with.
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
    priority: int = 0
    cache_salt: str = ""

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        check_int("max_tokens", self.max_tokens, 1)
        check_int("min_tokens", self.min_tokens, 0, self.max_tokens)
        set_(self, "stop", _stop_strings(self.stop))
        set_(self, "stop_token_ids", _token_sequence("stop_token_ids", self.stop_token_ids))
        check_bool("include_stop", self.include_stop)
        check_bool("ignore_eos", self.ignore_eos)
        check_float("repetition_penalty", self.repetition_penalty, 0.0, 1e4, open_low=True)
        check_float("presence_penalty", self.presence_penalty, -100.0, 100.0)
        check_float("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        check_int("no_repeat_ngram_size", self.no_repeat_ngram_size, 0, 1024)
        if not isinstance(self.logit_bias, Mapping):
            raise invalid("logit_bias", f"{self.logit_bias!r} is not a mapping", "{token id: number}")
        for token, bias in self.logit_bias.items():
            check_int("logit_bias", token, 0)
            check_float("logit_bias", bias, -1e4, 1e4)
        set_(self, "bad_words", _words("bad_words", self.bad_words))
        if self.allowed_token_ids is not None:
            ids = _token_sequence("allowed_token_ids", self.allowed_token_ids)
            if not ids:
                raise invalid("allowed_token_ids", "is empty", "None or at least one token id")
            set_(self, "allowed_token_ids", ids)
        if not isinstance(self.forced_prefix, str):
            set_(self, "forced_prefix", _token_sequence("forced_prefix", self.forced_prefix))
        if self.logprobs is not None:
            check_int("logprobs", self.logprobs, 0, 1024)
        check_int("priority", self.priority, -(2**31), 2**31 - 1)
        if not isinstance(self.cache_salt, str):
            raise invalid("cache_salt", f"{self.cache_salt!r} is not a text", "any text")


OPTION_NAMES: tuple[str, ...] = tuple(f.name for f in fields(Options))


def make_options(options: Mapping[str, Any]) -> Options:
    """Options from keyword arguments; an unknown name is refused by name."""
    unknown = sorted(set(options) - set(OPTION_NAMES))
    if unknown:
        raise invalid(unknown[0], "is not an option", ", ".join(OPTION_NAMES))
    return Options(**options)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One generated token: its id, raw and processed log-probability, and the step's top k of both."""

    token_id: int
    logprob: float
    selection_logprob: float
    top: tuple[tuple[int, float], ...] = ()
    top_processed: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """One finished candidate. index: which sample it is, or the hypothesis's rank for a beam.

    token_ids are the generated tokens, the EOS or stop token included; text has neither.
    score: what it is ranked by.
    """

    index: int
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    cumulative_logprob: float
    selection_logprob: float
    score: float
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What one request took. Times in seconds; blocks are of the engine's block size.

    unshared_block_steps and unique_block_steps are sums over steps: the paper's saving is
    1 - unique / unshared, averaged over time.
    """

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    peak_unshared_blocks: int
    peak_unique_blocks: int
    unshared_block_steps: int
    unique_block_steps: int
    copies: int
    preemptions: int
    recomputed_tokens: int
    swapped_blocks: int
    steps: int
    queue_time: float
    time_to_first_token: float
    time_per_token: float
    total_time: float

    @property
    def saved(self) -> float:
        """Share of KV blocks saved by sharing, averaged over time (PagedAttention paper, 6.3)."""
        return 1 - self.unique_block_steps / self.unshared_block_steps if self.unshared_block_steps else 0.0


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """A finished request: its candidates, best first where the strategy ranks, and its usage."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    strategy: Strategy
    seed: int | None
    candidates: tuple[Candidate, ...]
    usage: Usage

    @property
    def text(self) -> str:
        """The first candidate's text."""
        return self.candidates[0].text


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt's first step ran."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Delta:
    """New tokens of one candidate, and the text that has become certain with them."""

    request_id: str
    candidate: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class BeamUpdate:
    """The best live hypothesis of a beam after a step: provisional, replaced by the next update."""

    request_id: str
    generated_tokens: int
    token_ids: tuple[int, ...]
    text: str
    score: float
    finished: int


@dataclass(frozen=True, slots=True)
class CandidateFinished:
    """One sample ended; its text is complete."""

    request_id: str
    candidate: int
    finish_reason: FinishReason
    cumulative_logprob: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The request is done."""

    request_id: str
    result: DecodeResult


Event: TypeAlias = Started | Delta | BeamUpdate | CandidateFinished | Finished
