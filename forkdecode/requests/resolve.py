"""From what a caller writes to a DecodeRequest: token ids only, every mistake named."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from forkdecode.allowed import Constraint
from forkdecode.calls.scoring import ScoreArguments
from forkdecode.constraint_types import ConstraintSpec
from forkdecode.constraints.catalogues import Catalogues
from forkdecode.constraints.items import catalogue_digest
from forkdecode.constraints.maker import ConstraintMaker
from forkdecode.errors import InvalidRequestError, invalid
from forkdecode.model.info import ModelInfo
from forkdecode.requests.constraint import resolve_constraint
from forkdecode.requests.forced_prefix import check_forced
from forkdecode.requests.terms import Terms, TermsMaker
from forkdecode.requests.text_limit import TextLimit
from forkdecode.requests.tokenizing import Tokenizing
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.step import I64
from forkdecode.text.detokenizer import Detokenizer
from forkdecode.text.special_tokens import special_names
from forkdecode.text.stop import StopAutomata
from forkdecode.text.token_bytes import TokenBytes, token_bytes
from forkdecode.types import FRESH_SEEDS, SEEDED, Continuations, Options, Prompt, Strategy


class Resolver:
    """Checks requests against one model. Safe to call from several threads.

    A request comes of three parts: terms(), which requests that ask for the same may share; unconstrained(),
    which tokenizes; constrained(), which may wait for a grammar. resolve() is all of them.
    """

    def __init__(self, tokenizer: Any | None, info: ModelInfo, catalogues: Catalogues | None = None) -> None:
        self._tokenizer = tokenizer
        self._info = info
        size = info.vocab_size
        self._bytes = TokenBytes.build([b""] * size) if tokenizer is None else token_bytes(tokenizer, size)
        self._limit = TextLimit(tokenizer, info.max_positions)
        self._tokenizing = Tokenizing(tokenizer, size)
        automata = None if tokenizer is None else StopAutomata(self._bytes)
        names = {} if tokenizer is None else special_names(tokenizer)
        self._terms = TermsMaker(info, self.encode, automata, names, self._tokenizing.begins_apart)
        self._constraints = ConstraintMaker(
            None if tokenizer is None else self._bytes,
            size,
            info.eos_ids,
            None if tokenizer is None else names,
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
        terms = self.terms(strategy, options, request_id=request_id)
        return self.constrained(
            self.unconstrained(
                prompt,
                terms,
                request_id=request_id,
                chat=chat,
                stream=stream,
                constraint_start=constraint_start,
            )
        )

    def terms(self, strategy: Strategy, options: Options, *, request_id: str) -> Terms:
        """What does not hang on a prompt. Raises InvalidRequestError naming the field at fault."""
        with _of(request_id):
            return self._terms.decode(strategy, options)

    def unconstrained(
        self,
        prompt: Prompt,
        terms: Terms,
        *,
        request_id: str,
        chat: bool = False,
        stream: bool = False,
        constraint_start: int | None = None,
    ) -> DecodeRequest:
        """All of a request but its constraint. Raises InvalidRequestError naming the field at fault."""
        with _of(request_id):
            ids = self._prompt(prompt, chat)
        return self.of_ids(
            ids, terms, request_id=request_id, stream=stream, constraint_start=constraint_start
        )

    def of_ids(
        self,
        ids: I64,
        terms: Terms,
        *,
        request_id: str,
        stream: bool = False,
        constraint_start: int | None = None,
    ) -> DecodeRequest:
        """The same after a prompt of token ids that the model has. Raises InvalidRequestError."""
        if terms.beginning is not None and not self._bytes.lengths[ids].any():
            terms = terms.beginning
        with _of(request_id):
            self._check_length(ids, terms)
            check_forced(terms.processors, terms.ends, ids)
        return DecodeRequest(
            request_id=request_id,
            prompt=ids,
            strategy=terms.strategy,
            options=terms.options,
            seed=_seed(terms.strategy),
            processors=terms.processors,
            eos_ids=terms.eos_ids,
            stop_ids=terms.stop_ids,
            automaton=terms.automaton,
            stream=stream,
            constraint_start=constraint_start,
        )

    def constrained(self, request: DecodeRequest) -> DecodeRequest:
        """Such a request with its constraint, if its options ask for one. Raises InvalidRequestError."""
        options = request.options
        if options.constraint is None and options.prefix_allowed_tokens_fn is None:
            return request
        with _of(request.request_id):
            constraint = resolve_constraint(
                self._constraints,
                options,
                request.prompt,
                request.constraint_start,
                request.processors.forced_prefix,
                (request.eos_ids, request.stop_ids),
            )
        return replace(request, constraint=constraint, catalogue=catalogue_digest(constraint))

    def score_terms(
        self, continuations: Sequence[str | tuple[int, ...]], options: Options, *, request_id: str
    ) -> Terms:
        """What score requests of the same continuations have in common. Raises InvalidRequestError."""
        with _of(request_id):
            return self._terms.score(continuations, options)

    def resolve_score(self, asked: ScoreArguments) -> DecodeRequest:
        """Raises InvalidRequestError naming the field at fault."""
        name = asked.request_id
        terms = self.score_terms(asked.continuations, asked.options, request_id=name)
        return self.unconstrained(asked.prompt, terms, request_id=name, chat=asked.chat)

    @property
    def info(self) -> ModelInfo:
        """The model."""
        return self._info

    def encode(self, field: str, text: str, *, begins: bool = False) -> tuple[int, ...]:
        """Token ids of a piece of text by itself. begins: no text comes before it. Raises
        InvalidRequestError."""
        self._limit.check_text(field, text)
        return self._tokenizing.plain(field, text, begins=begins)

    def named(self, texts: Iterable[str]) -> frozenset[int]:
        """The special tokens whose names are among the texts."""
        return self._terms.named(texts)

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
        self._terms.ids("token_ids", token_ids)
        whole = Detokenizer(self._bytes)
        return whole.push(token_ids) + whole.finish("length")

    def constraint(self, spec: ConstraintSpec, prompt: I64) -> Constraint:
        """What a constraint allows with this model after a prompt. Raises InvalidRequestError."""
        return self._constraints.of(spec, prompt=prompt)

    def is_calling(self) -> bool:
        """See ConstraintMaker."""
        return self._constraints.is_calling()

    def close(self) -> None:
        """Ends the threads that work for constraints. Idempotent."""
        self._constraints.close()

    def _prompt(self, prompt: Prompt, chat: bool) -> I64:
        self._limit.check_prompt(prompt)
        return np.array(self._tokenizing.prompt(prompt, chat=chat), np.int64)

    def _check_length(self, ids: I64, terms: Terms) -> None:
        limit, most = self._info.max_positions, terms.options.max_tokens
        room = limit - len(ids)
        if room <= 0:
            raise invalid("prompt", f"has {len(ids)} tokens", f"at most {limit - 1} with this model")
        if most <= room:
            return
        if isinstance(terms.strategy, Continuations):
            problem = f"{most} tokens after {len(ids)} of the prompt exceed the model's {limit} positions"
            raise invalid("continuations", problem, f"1 to {room} tokens each for this prompt")
        problem = f"{most} after {len(ids)} prompt tokens exceeds the model's {limit} positions"
        raise invalid("max_tokens", problem, f"1 to {room} for this prompt")


@contextmanager
def _of(request_id: str) -> Iterator[None]:
    """InvalidRequestErrors within it are of that request."""
    try:
        yield
    except InvalidRequestError as error:
        error.request_id = request_id
        raise


def _seed(strategy: Strategy | Continuations) -> int:
    chosen = strategy.seed if isinstance(strategy, SEEDED) else 0
    return secrets.randbelow(FRESH_SEEDS) if chosen is None else chosen
