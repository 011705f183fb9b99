"""What LLM, AsyncLLM and the server share: a caller's arguments made ready for an engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forkdecode.allowed import Constraint
from forkdecode.calls.arguments import ArgumentReader, for_each
from forkdecode.calls.scoring import read_score, score_each
from forkdecode.constraint_types import ConstraintSpec
from forkdecode.constraints.catalogues import Catalogues
from forkdecode.model.info import ModelInfo
from forkdecode.requests.assembly import Assembler
from forkdecode.requests.resolve import Resolver
from forkdecode.requests.score import PreparedScore, ScoreAssembler
from forkdecode.requests.terms import Terms
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.step import I64
from forkdecode.text.token_bytes import TokenBytes
from forkdecode.types import Continuations, Options, Strategy


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked request and what makes text of its events."""

    request: DecodeRequest
    assembler: Assembler


class RequestMaker:
    """Checks requests for one model. Safe to call from several threads.

    catalogues: what constraints may be from; none by default.
    """

    def __init__(self, tokenizer: Any | None, info: ModelInfo, catalogues: Catalogues | None = None) -> None:
        self._resolver = Resolver(tokenizer, info, catalogues)
        self._arguments = ArgumentReader()

    def prepare(
        self,
        prompt: Any,
        strategy: Any,
        options: Any,
        given: Mapping[str, Any],
        *,
        chat: bool,
        request_id: Any,
        stream: bool = False,
    ) -> Prepared:
        """Checks one request. Raises InvalidRequestError."""
        request = self.unconstrained(
            prompt, strategy, options, given, chat=chat, request_id=request_id, stream=stream
        )
        return self.constrained(request)

    def unconstrained(
        self,
        prompt: Any,
        strategy: Any,
        options: Any,
        given: Mapping[str, Any],
        *,
        chat: bool,
        request_id: Any,
        stream: bool = False,
    ) -> DecodeRequest:
        """The first part of prepare(): what takes long of it is to tokenize. Raises InvalidRequestError."""
        read = self._arguments.read(
            prompt, strategy, options, given, chat=chat, request_id=request_id, stream=stream
        )
        name = read.request_id
        return self._resolver.unconstrained(
            read.prompt,
            self._resolver.terms(read.strategy, read.options, request_id=name),
            request_id=name,
            chat=read.chat,
            stream=read.stream,
        )

    def constrained(self, request: DecodeRequest) -> Prepared:
        """The rest of it: waits for what its constraint needs. Raises InvalidRequestError."""
        request = self._resolver.constrained(request)
        return Prepared(request, Assembler(request, self._resolver.token_bytes()))

    def terms(self, strategy: Strategy, options: Options, request_id: str) -> Terms:
        """What does not hang on a prompt. Raises InvalidRequestError."""
        return self._resolver.terms(strategy, options, request_id=request_id)

    def score_terms(
        self, continuations: Sequence[str | tuple[int, ...]], options: Options, request_id: str
    ) -> Terms:
        """The same of a score request. Raises InvalidRequestError."""
        return self._resolver.score_terms(continuations, options, request_id=request_id)

    def of_path(
        self, path: I64, terms: Terms, request_id: str, constraint_start: int | None = None
    ) -> DecodeRequest:
        """A request of given terms after a path of the model's tokens, streamed unless it scores. Raises
        InvalidRequestError."""
        stream = not isinstance(terms.strategy, Continuations)
        request = self._resolver.of_ids(
            path, terms, request_id=request_id, stream=stream, constraint_start=constraint_start
        )
        return self._resolver.constrained(request)

    @property
    def info(self) -> ModelInfo:
        """The model that requests are checked for."""
        return self._resolver.info

    @property
    def token_bytes(self) -> TokenBytes:
        """The bytes of every token."""
        return self._resolver.token_bytes()

    def constraint(self, spec: ConstraintSpec, prompt: I64) -> Constraint:
        """What a constraint allows with this model after a prompt. Raises InvalidRequestError."""
        return self._resolver.constraint(spec, prompt)

    def is_calling(self) -> bool:
        """Whether this thread is calling a caller's function, which the engine may be waiting for."""
        return self._resolver.is_calling()

    def close(self) -> None:
        """Ends the threads that work for constraints; what is running with one fails. Idempotent."""
        self._resolver.close()

    def encode(self, field: str, text: str, *, begins: bool = False) -> tuple[int, ...]:
        """The token ids of a piece of text by itself: there may be none. No special tokens are added, but the
        name of one is that token. begins: no text comes before it. Raises InvalidRequestError for `field`."""
        return self._resolver.encode(field, text, begins=begins)

    def named(self, texts: Iterable[str]) -> frozenset[int]:
        """The special tokens whose names are among the texts."""
        return self._resolver.named(texts)

    def tokenize(self, prompt: Any, *, chat: bool = False) -> tuple[int, ...]:
        """The token ids of a prompt, as a request's would be. Raises InvalidRequestError."""
        return self._resolver.tokenize(prompt, chat=chat)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of token ids; special tokens have none. Raises InvalidRequestError."""
        return self._resolver.detokenize(token_ids)

    def prepare_score(
        self,
        prompt: Any,
        continuations: Any,
        *,
        top_logprobs: int = 0,
        chat: bool = False,
        priority: int = 0,
        cache_salt: str = "",
        request_id: Any = None,
    ) -> PreparedScore:
        """Checks one score request. Raises InvalidRequestError."""
        asked = read_score(
            prompt,
            continuations,
            top_logprobs=top_logprobs,
            chat=chat,
            priority=priority,
            cache_salt=cache_salt,
            request_id=self._arguments.name(request_id),
        )
        return self.scored(self._resolver.resolve_score(asked))

    def prepare_scores(
        self,
        prompt: Any,
        continuations: Any,
        *,
        top_logprobs: int,
        chat: bool,
        priority: int,
        cache_salt: str,
        request_id: Any,
    ) -> list[PreparedScore]:
        """The same for a prompt or a list of them; see score_each. Raises InvalidRequestError."""

        def make(one: Any, its_own: Any, name: Any) -> PreparedScore:
            return self.prepare_score(
                one,
                its_own,
                top_logprobs=top_logprobs,
                chat=chat,
                priority=priority,
                cache_salt=cache_salt,
                request_id=name,
            )

        return score_each(prompt, continuations, request_id, make)

    def scored(self, request: DecodeRequest) -> PreparedScore:
        """A score request with what makes its result."""
        return PreparedScore(request, ScoreAssembler(request, self._resolver.token_bytes()))

    def prepare_all(
        self,
        prompt: Any,
        strategy: Any,
        options: Any,
        given: Mapping[str, Any],
        *,
        chat: bool,
        request_id: Any,
    ) -> list[Prepared]:
        """Checks a prompt, or a list of prompts with one strategy, options and id each or for all.

        Raises InvalidRequestError, which says of which prompt of a list it speaks.
        """

        known: dict[tuple[int, int], Terms] = {}
        """By the objects that the caller gave for one prompt or for many."""

        def make(one: Any, its_strategy: Any, its_options: Any, request_id: Any) -> Prepared:
            key = id(its_strategy), id(its_options)
            name = self._arguments.name(request_id)
            if key not in known:
                read = self._arguments.read(one, its_strategy, its_options, given, chat=chat, request_id=name)
                known[key] = self._resolver.terms(read.strategy, read.options, request_id=name)
            request = self._resolver.unconstrained(one, known[key], request_id=name, chat=chat)
            return self.constrained(request)

        return for_each(prompt, strategy, options, request_id, make)
