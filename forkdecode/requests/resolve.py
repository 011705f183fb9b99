"""From what a caller writes to a DecodeRequest: token ids only, every mistake named."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from forkdecode.allowed import Constraint
from forkdecode.calls.arguments import check_options, check_strategy
from forkdecode.calls.scoring import ScoreArguments
from forkdecode.checks import are_ids
from forkdecode.constraint_types import ConstraintSpec
from forkdecode.constraints.catalogues import Catalogues
from forkdecode.constraints.grammar_tokens import special_names
from forkdecode.constraints.items import catalogue_digest
from forkdecode.constraints.maker import ConstraintMaker
from forkdecode.errors import InvalidRequestError, invalid
from forkdecode.model.info import ModelInfo
from forkdecode.requests.constraint import ends_by_eos, resolve_constraint
from forkdecode.requests.forced_prefix import check_forced
from forkdecode.requests.text_limit import TextLimit
from forkdecode.requests.tokenizing import Tokenizing
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.step import I64, ProcessorSpec
from forkdecode.text.detokenizer import Detokenizer
from forkdecode.text.stop import StopAutomata, StopAutomaton
from forkdecode.text.token_bytes import TokenBytes, token_bytes
from forkdecode.types import (
    BEAM_OPTIONS,
    BEAMS,
    MAX_SEED,
    SEEDED,
    Continuations,
    Options,
    Prompt,
    Strategy,
)


class Resolver:
    """Checks requests against one model. Safe to call from several threads."""

    def __init__(self, tokenizer: Any | None, info: ModelInfo, catalogues: Catalogues | None = None) -> None:
        self._tokenizer = tokenizer
        self._info = info
        size = info.vocab_size
        self._bytes = TokenBytes.build([b""] * size) if tokenizer is None else token_bytes(tokenizer, size)
        self._limit = TextLimit(tokenizer, info.max_positions)
        self._tokenizing = Tokenizing(tokenizer, size)
        self._automata = StopAutomata(self._bytes)
        self._constraints = ConstraintMaker(
            None if tokenizer is None else self._bytes,
            size,
            info.eos_ids,
            None if tokenizer is None else special_names(tokenizer),
            catalogues,
        )

    def resolve(
        self,
        prompt: Prompt,
        strategy: Strategy,
        options: Options,
        *,
        request_id: str,
        chat: bool = False,
        stream: bool = False,
        constraint_start: int | None = None,
    ) -> DecodeRequest:
        """constraint_start: see DecodeRequest. Raises InvalidRequestError naming the field at fault."""
        try:
            return self._resolve(prompt, strategy, options, request_id, chat, stream, constraint_start)
        except InvalidRequestError as error:
            error.request_id = request_id
            raise

    def resolve_score(self, asked: ScoreArguments) -> DecodeRequest:
        """Raises InvalidRequestError naming the field at fault."""
        try:
            return self._resolve_score(asked)
        except InvalidRequestError as error:
            error.request_id = asked.request_id
            raise

    @property
    def info(self) -> ModelInfo:
        """The model."""
        return self._info

    def encode(self, field: str, text: str) -> tuple[int, ...]:
        """Token ids of a piece of text by itself. Raises InvalidRequestError."""
        return self._plain(field, text)

    def token_bytes(self) -> TokenBytes:
        """The bytes of every token; none where the model has no tokenizer."""
        return self._bytes

    def tokenize(self, prompt: Prompt, *, chat: bool = False) -> tuple[int, ...]:
        """Token ids of a prompt. Raises InvalidRequestError."""
        return tuple(self._prompt(prompt, chat).tolist())

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of token ids, special tokens left out. Raises InvalidRequestError."""
        if self._tokenizer is None:
            raise invalid("token_ids", "this model has no tokenizer", "a model that has one")
        self._limit.check_ids(token_ids)
        self._ids("token_ids", token_ids)
        whole = Detokenizer(self._bytes)
        return whole.push(token_ids) + whole.finish("length")

    def _resolve(
        self,
        prompt: Prompt,
        strategy: Strategy,
        options: Options,
        request_id: str,
        chat: bool,
        stream: bool,
        constraint_start: int | None,
    ) -> DecodeRequest:
        strategy, options = check_strategy(strategy), check_options(options)
        _check_beam_options(strategy, options)
        ids = self._prompt(prompt, chat)
        self._check_length(ids, options)
        stop_ids = self._ids("stop_token_ids", options.stop_token_ids)
        eos_ids = np.array(self._info.eos_ids if ends_by_eos(options) else (), np.int64)
        ends = np.union1d(eos_ids, stop_ids).astype(np.int64)
        processors = self._processors(options, ends, ids)
        stop_ids = np.setdiff1d(stop_ids, eos_ids).astype(np.int64)
        constraint = resolve_constraint(
            self._constraints,
            options,
            ids,
            constraint_start,
            processors.forced_prefix,
            (eos_ids, stop_ids),
        )
        return DecodeRequest(
            request_id=request_id,
            prompt=ids,
            strategy=strategy,
            options=options,
            seed=_seed(strategy),
            processors=processors,
            eos_ids=eos_ids,
            stop_ids=stop_ids,
            automaton=self._automaton(options.stop),
            stream=stream,
            constraint=constraint,
            constraint_start=constraint_start,
            catalogue=catalogue_digest(constraint),
        )

    def _resolve_score(self, asked: ScoreArguments) -> DecodeRequest:
        ids, limit = self._prompt(asked.prompt, asked.chat), self._info.max_positions
        if len(ids) >= limit:
            raise invalid("prompt", f"has {len(ids)} tokens", f"at most {limit - 1} with this model")
        continuations = Continuations(tuple(map(self._continuation, asked.continuations)))
        longest = continuations.longest
        if len(ids) + longest > limit:
            problem = f"{longest} tokens after {len(ids)} of the prompt exceed the model's {limit} positions"
            raise invalid("continuations", problem, f"1 to {limit - len(ids)} tokens each for this prompt")
        none = np.empty(0, np.int64)
        return DecodeRequest(
            request_id=asked.request_id,
            prompt=ids,
            strategy=continuations,
            options=replace(asked.options, max_tokens=longest),
            seed=0,
            processors=ProcessorSpec(),
            eos_ids=none,
            stop_ids=none,
            automaton=None,
        )

    def _continuation(self, continuation: str | tuple[int, ...]) -> tuple[int, ...]:
        """Its tokens by itself, wherever the prompt ends: a text that the tokenizer would merge with
        the prompt's end is not merged."""
        if not isinstance(continuation, str):
            self._ids("continuations", continuation)
            return continuation
        ids = self._plain("continuations", continuation)
        if not ids:
            raise invalid("continuations", "one has no tokens", "texts of at least one token")
        return ids

    def _prompt(self, prompt: Prompt, chat: bool) -> I64:
        self._limit.check_prompt(prompt)
        return np.array(self._tokenizing.prompt(prompt, chat=chat), np.int64)

    def _check_length(self, ids: I64, options: Options) -> None:
        limit = self._info.max_positions
        if len(ids) >= limit:
            raise invalid("prompt", f"has {len(ids)} tokens", f"at most {limit - 1} with this model")
        if len(ids) + options.max_tokens > limit:
            raise invalid(
                "max_tokens",
                f"{options.max_tokens} after {len(ids)} prompt tokens exceeds the model's {limit} positions",
                f"1 to {limit - len(ids)} for this prompt",
            )

    def _ids(self, field: str, ids: Sequence[int]) -> I64:
        size = self._info.vocab_size
        for token in () if are_ids(ids, size) else ids:
            if not 0 <= token < size:
                raise invalid(field, f"{token} is not a token id", f"integers from 0 to {size - 1}")
        return np.array(sorted(set(ids)), np.int64)

    def _processors(self, options: Options, ends: I64, prompt: I64) -> ProcessorSpec:
        allowed = options.allowed_token_ids
        allowed_ids = None if allowed is None else self._ids("allowed_token_ids", allowed)
        bias_ids = self._ids("logit_bias", tuple(options.logit_bias))
        spec = ProcessorSpec(
            repetition_penalty=options.repetition_penalty,
            presence_penalty=options.presence_penalty,
            frequency_penalty=options.frequency_penalty,
            no_repeat_ngram_size=options.no_repeat_ngram_size,
            bad_words=self._bad_words(options.bad_words),
            allowed_token_ids=allowed_ids,
            bias_ids=bias_ids if len(bias_ids) else None,
            bias_values=np.array([options.logit_bias[int(i)] for i in bias_ids], np.float32)
            if len(bias_ids)
            else None,
            min_tokens=options.min_tokens,
            suppressed_ids=ends if len(ends) and options.min_tokens else None,
            forced_prefix=self._forced_prefix(options),
        )
        check_forced(spec, ends, prompt)
        return spec

    def _plain(self, field: str, text: str) -> tuple[int, ...]:
        self._limit.check_text(field, text)
        return self._tokenizing.plain(field, text)

    def _bad_words(self, words: Sequence[str | tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
        """A text is banned as it stands and behind a space: tokenizers write the two differently."""
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            if isinstance(word, str):
                for text in (word, " " + word.lstrip(" ")):
                    if ids := self._plain("bad_words", text):
                        found[ids] = None
            else:
                self._ids("bad_words", word)
                found[word] = None
        return tuple(found)

    def _forced_prefix(self, options: Options) -> tuple[int, ...]:
        prefix = options.forced_prefix
        ids = self._plain("forced_prefix", prefix) if isinstance(prefix, str) and prefix else prefix
        ids = () if isinstance(ids, str) else ids
        self._ids("forced_prefix", ids)
        if len(ids) > options.max_tokens:
            raise invalid(
                "forced_prefix", f"has {len(ids)} tokens", f"at most max_tokens={options.max_tokens}"
            )
        return ids

    def constraint(self, spec: ConstraintSpec, prompt: I64) -> Constraint:
        """What a constraint allows with this model after a prompt. Raises InvalidRequestError."""
        return self._constraints.of(spec, prompt=prompt)

    def close(self) -> None:
        """Ends the threads that work for constraints. Idempotent."""
        self._constraints.close()

    def _automaton(self, stop: tuple[str, ...]) -> StopAutomaton | None:
        if not stop:
            return None
        if self._tokenizer is None:
            raise invalid("stop", "this model has no tokenizer", "stop_token_ids")
        return self._automata.of(stop)


def _check_beam_options(strategy: Strategy, options: Options) -> None:
    if isinstance(strategy, BEAMS):
        return
    for name in BEAM_OPTIONS:
        value, default = getattr(options, name), getattr(Options(), name)
        if value != default:
            problem = f"{value} is of beams alone, and this is {type(strategy).__name__}"
            raise invalid(name, problem, f"{default}, or with a strategy of beams")


def _seed(strategy: Strategy) -> int:
    chosen = strategy.seed if isinstance(strategy, SEEDED) else 0
    return int.from_bytes(os.urandom(8), "little") & MAX_SEED if chosen is None else chosen
