"""What requests have in common that ask for the same: strategy and options, resolved once for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from forkdecode.calls.arguments import check_options, check_strategy
from forkdecode.checks import are_ids
from forkdecode.errors import invalid
from forkdecode.model.info import ModelInfo
from forkdecode.requests.constraint import ends_by_eos
from forkdecode.step import I64, ProcessorSpec
from forkdecode.text.stop import StopAutomata, StopAutomaton
from forkdecode.types import BEAM_OPTIONS, BEAMS, Continuations, Options, Strategy


@dataclass(frozen=True, slots=True)
class Terms:
    """All of a request but what hangs on its prompt. Its arrays may be those of many requests."""

    strategy: Strategy | Continuations
    options: Options
    processors: ProcessorSpec
    eos_ids: I64
    stop_ids: I64
    ends: I64
    """EOS ids and stop ids."""
    automaton: StopAutomaton | None
    beginning: Terms | None = None
    """The same after a prompt without text, where the tokens of a text that begins are others."""


class Plain(Protocol):
    """A field's text as token ids, by itself. begins: no text comes before it."""

    def __call__(self, field: str, text: str, *, begins: bool = False) -> tuple[int, ...]: ...


class TermsMaker:
    """Resolves strategies and options for one model. Safe to call from several threads.

    automata: None where the model has no tokenizer. names: of its special tokens, by id. begins_apart:
    whether a text that begins has other tokens than one that goes on.
    """

    def __init__(
        self,
        info: ModelInfo,
        plain: Plain,
        automata: StopAutomata | None,
        names: Mapping[int, str],
        begins_apart: bool,
    ) -> None:
        self._info = info
        self._plain = plain
        self._begins_apart = begins_apart
        self._automata = automata
        self._special = {name: token for token, name in names.items() if token < info.vocab_size}

    def decode(self, strategy: Strategy, options: Options) -> Terms:
        """Of requests that decode. Raises InvalidRequestError naming the field at fault."""
        strategy, options = check_strategy(strategy), check_options(options)
        _check_beam_options(strategy, options)
        # Special tokens have no text that could be matched: who stops at one by its name means the token.
        stop_ids = self.ids("stop_token_ids", (*options.stop_token_ids, *self.named(options.stop)))
        eos_ids = np.array(self._info.eos_ids if ends_by_eos(options) else (), np.int64)
        ends = np.union1d(eos_ids, stop_ids).astype(np.int64)
        terms = Terms(
            strategy=strategy,
            options=options,
            processors=self._processors(options, ends),
            eos_ids=eos_ids,
            stop_ids=np.setdiff1d(stop_ids, eos_ids).astype(np.int64),
            ends=ends,
            automaton=self._automaton(options.stop),
        )
        if not self._begins_apart or not _any_text((options.forced_prefix, *options.bad_words)):
            return terms
        begins, spec = partial(self._plain, begins=True), terms.processors
        # Behind its first token a text goes on there, too.
        words = tuple(dict.fromkeys(self._bad_words(options.bad_words, begins) + spec.bad_words))
        first = replace(spec, bad_words=words, forced_prefix=self._forced_prefix(options, begins))
        return replace(terms, beginning=replace(terms, processors=first))

    def score(self, continuations: Sequence[str | tuple[int, ...]], options: Options) -> Terms:
        """Of requests that score these continuations. Raises InvalidRequestError naming the field."""
        terms = self._score(continuations, options, self._plain)
        if not self._begins_apart or not _any_text(continuations):
            return terms
        first = self._score(continuations, options, partial(self._plain, begins=True))
        return replace(terms, beginning=first)

    def _score(self, continuations: Sequence[str | tuple[int, ...]], options: Options, plain: Plain) -> Terms:
        strategy = Continuations(tuple(self._continuation(given, plain) for given in continuations))
        none = np.empty(0, np.int64)
        asked = replace(options, max_tokens=strategy.longest)
        return Terms(strategy, asked, ProcessorSpec(), none, none, none, None)

    def named(self, texts: Iterable[str]) -> frozenset[int]:
        """The special tokens whose names are among the texts."""
        return frozenset(self._special[text] for text in texts if text in self._special)

    def ids(self, field: str, ids: Sequence[int]) -> I64:
        """Token ids in order, each once. Raises InvalidRequestError."""
        size = self._info.vocab_size
        for token in () if are_ids(ids, size) else ids:
            if not 0 <= token < size:
                raise invalid(field, f"{token} is not a token id", f"integers from 0 to {size - 1}")
        return np.array(sorted(set(ids)), np.int64)

    def _continuation(self, continuation: str | tuple[int, ...], plain: Plain) -> tuple[int, ...]:
        """Its tokens by itself, wherever the prompt ends: a text that the tokenizer would merge with
        the prompt's end is not merged."""
        if not isinstance(continuation, str):
            self.ids("continuations", continuation)
            return continuation
        ids = plain("continuations", continuation)
        if not ids:
            raise invalid("continuations", "one of them has no tokens", "texts of at least one token")
        return ids

    def _processors(self, options: Options, ends: I64) -> ProcessorSpec:
        allowed = options.allowed_token_ids
        allowed_ids = None if allowed is None else self.ids("allowed_token_ids", allowed)
        bias_ids = self.ids("logit_bias", tuple(options.logit_bias))
        return ProcessorSpec(
            repetition_penalty=options.repetition_penalty,
            presence_penalty=options.presence_penalty,
            frequency_penalty=options.frequency_penalty,
            no_repeat_ngram_size=options.no_repeat_ngram_size,
            bad_words=self._bad_words(options.bad_words, self._plain),
            allowed_token_ids=allowed_ids,
            bias_ids=bias_ids if len(bias_ids) else None,
            bias_values=np.array([options.logit_bias[int(i)] for i in bias_ids], np.float32)
            if len(bias_ids)
            else None,
            min_tokens=options.min_tokens,
            suppressed_ids=ends if len(ends) and options.min_tokens else None,
            forced_prefix=self._forced_prefix(options, self._plain),
        )

    def _bad_words(self, words: Sequence[str | tuple[int, ...]], plain: Plain) -> tuple[tuple[int, ...], ...]:
        """A text is banned as it stands and behind a space: tokenizers write the two differently."""
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            if isinstance(word, str):
                for text in (word, " " + word.lstrip(" ")):
                    if ids := plain("bad_words", text):
                        found[ids] = None
            else:
                self.ids("bad_words", word)
                found[word] = None
        return tuple(found)

    def _forced_prefix(self, options: Options, plain: Plain) -> tuple[int, ...]:
        prefix = options.forced_prefix
        ids = plain("forced_prefix", prefix) if isinstance(prefix, str) and prefix else prefix
        ids = () if isinstance(ids, str) else ids
        self.ids("forced_prefix", ids)
        if len(ids) > options.max_tokens:
            raise invalid(
                "forced_prefix", f"has {len(ids)} tokens", f"at most max_tokens={options.max_tokens}"
            )
        return ids

    def _automaton(self, stop: tuple[str, ...]) -> StopAutomaton | None:
        if not stop:
            return None
        if self._automata is None:
            raise invalid("stop", "this model has no tokenizer", "stop_token_ids")
        return self._automata.of(stop)


def _any_text(given: Iterable[str | tuple[int, ...]]) -> bool:
    return any(isinstance(one, str) and one for one in given)


def _check_beam_options(strategy: Strategy, options: Options) -> None:
    if isinstance(strategy, BEAMS):
        return
    for name in BEAM_OPTIONS:
        value, default = getattr(options, name), getattr(Options(), name)
        if value != default:
            problem = f"{value} applies only to beam strategies, not to {type(strategy).__name__}"
            raise invalid(name, problem, f"{default}, or any with a beam strategy")
