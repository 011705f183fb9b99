"""The in-process SDK for threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, NoReturn, Unpack, overload

import torch
from transformers import PreTrainedModel

from forkdecode.calls.arguments import is_batch
from forkdecode.calls.handle import EventStream, Handle
from forkdecode.calls.many import ManyKeywords, in_order
from forkdecode.calls.tree import Tree
from forkdecode.config import DEFAULT_MODEL, DType, EngineKeywords
from forkdecode.constraints.catalogue import Catalogue
from forkdecode.constraints.catalogues import Catalogues
from forkdecode.engine.port import Job
from forkdecode.engine.sizing import Capacity
from forkdecode.errors import ForkdecodeError
from forkdecode.llm.session import ModelChoice, Session
from forkdecode.model.info import ModelInfo
from forkdecode.requests.prepare import Prepared
from forkdecode.requests.score import send_scores
from forkdecode.results import DecodeResult, EngineStats, ScoreResult
from forkdecode.tree.local import LocalLink
from forkdecode.tree_types import OpenTree, TreeLimits
from forkdecode.types import Continuation, OptionKeywords, Options, Prompt, Strategy


class LLM:
    """A model with its own engine, in this process. Safe to use from several threads.

    model: the default model's name, a folder, a .gguf file, a hub id, or a transformers model. A transformers
    model is modified in place; pass a `copy.deepcopy` to keep yours. update_weights replaces its weights.
    tokenizer: replaces the one of the folder or file, or belongs to a transformers model;
    without any, prompts are token ids. dtype: "auto", "float32", "bfloat16", "float16". threads: torch's
    threads, by default the usable cores. max_positions: serve fewer positions than the model has; required by
    the rope types "dynamic" and "longrope". catalogues: files of catalogues, or Catalogue objects, by the
    names that FromCatalogue uses. Other keywords are EngineConfig's: block_size, kv_memory, ...

    Raises ModelLoadError for a model that cannot be found or served, CapacityError when the KV cache does not
    fit, InvalidRequestError for a wrong setting.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | PreTrainedModel = DEFAULT_MODEL,
        *,
        tokenizer: Any | None = None,
        dtype: DType = "auto",
        device: str = "auto",
        threads: int | None = None,
        max_positions: int | None = None,
        catalogues: Mapping[str, Catalogue | str | os.PathLike[str]] | None = None,
        **config: Unpack[EngineKeywords],
    ) -> None:
        choice = ModelChoice(model, tokenizer, dtype, device, threads, max_positions)
        self._session = Session(choice, config, catalogues)

    def __reduce__(self) -> NoReturn:
        """A shallow copy would be a second owner of the engine."""
        self._session.engine.thread.__reduce__()

    @property
    def info(self) -> ModelInfo:
        """The loaded model: name, dtype, sizes and EOS ids."""
        return self._session.engine.info

    @property
    def tokenizer(self) -> Any | None:
        """transformers' tokenizer of the model, or None."""
        return self._session.engine.tokenizer

    @property
    def catalogues(self) -> Catalogues:
        """The catalogues that FromCatalogue can name; running requests keep theirs when one changes."""
        return self._session.catalogues

    @property
    def capacity(self) -> Capacity:
        """The size of the block pool."""
        return self._session.engine.capacity

    @overload
    def decode(  # type: ignore[overload-overlap]  # a text is a Sequence[str]
        self,
        prompt: Prompt,
        strategy: Strategy | None = None,
        *,
        options: Options | None = None,
        chat: bool = False,
        request_id: str | None = None,
        **given: Unpack[OptionKeywords],
    ) -> DecodeResult: ...

    @overload
    def decode(
        self,
        prompt: Sequence[Prompt],
        strategy: Strategy | Sequence[Strategy] | None = None,
        *,
        options: Options | Sequence[Options] | None = None,
        chat: bool = False,
        request_id: Sequence[str] | None = None,
        **given: Unpack[OptionKeywords],
    ) -> list[DecodeResult]: ...

    def decode(
        self,
        prompt: Any,
        strategy: Any = None,
        *,
        options: Any = None,
        chat: bool = False,
        request_id: Any = None,
        **given: Unpack[OptionKeywords],
    ) -> DecodeResult | list[DecodeResult]:
        """Decodes a prompt, or a list of prompts in one batch, and waits.

        prompt: text, token ids or chat messages. strategy: Greedy() by default; for a list of prompts, one
        for all or one each. Options are given as keywords (max_tokens=64, stop=["\\n"], ...) or as an Options
        object. chat: treat texts as user messages, rendered by the model's chat template.

        Raises InvalidRequestError naming the field, CapacityError, GroupFailedError. In a batch, all requests
        are checked before the first is sent; the first error ends the others.
        """
        prepared = self._session.requests.prepare_all(
            prompt, strategy, options, given, chat=chat, request_id=request_id
        )
        results = self._wait(self._start(prepared))
        return results if is_batch(prompt) else results[0]

    def stream(
        self,
        prompt: Prompt,
        strategy: Strategy | None = None,
        *,
        options: Options | None = None,
        chat: bool = False,
        request_id: str | None = None,
        **given: Unpack[OptionKeywords],
    ) -> EventStream:
        """Typed events of one request as they happen; the last is Finished. Closing or dropping the stream
        cancels the request. Raises the errors of decode(); a wrong request is refused at once."""
        prepared = self._session.requests.prepare(
            prompt, strategy, options, given, chat=chat, request_id=request_id, stream=True
        )
        return EventStream(self._start([prepared])[0])

    def submit(
        self,
        prompt: Prompt,
        strategy: Strategy | None = None,
        *,
        options: Options | None = None,
        chat: bool = False,
        request_id: str | None = None,
        stream: bool = False,
        **given: Unpack[OptionKeywords],
    ) -> Handle:
        """Sends a request and returns at once. stream: whether the handle yields events before the last.
        Raises InvalidRequestError, and CapacityError for a request that can never be served here."""
        prepared = self._session.requests.prepare(
            prompt, strategy, options, given, chat=chat, request_id=request_id, stream=stream
        )
        return self._start([prepared])[0]

    @overload
    def decode_many(
        self,
        prompts: Iterable[Prompt],
        strategy: Strategy | Sequence[Strategy] | None = None,
        *,
        return_errors: Literal[False] = False,
        **given: Unpack[ManyKeywords],
    ) -> Generator[DecodeResult, None, None]: ...

    @overload
    def decode_many(
        self,
        prompts: Iterable[Prompt],
        strategy: Strategy | Sequence[Strategy] | None = None,
        *,
        return_errors: bool,
        **given: Unpack[ManyKeywords],
    ) -> Generator[DecodeResult | ForkdecodeError, None, None]: ...

    def decode_many(
        self,
        prompts: Iterable[Prompt],
        strategy: Strategy | Sequence[Strategy] | None = None,
        *,
        options: Options | Sequence[Options] | None = None,
        chat: bool = False,
        request_id: Sequence[str] | None = None,
        concurrency: int = 16,
        progress: bool = True,
        return_errors: bool = False,
        **given: Unpack[OptionKeywords],
    ) -> Generator[DecodeResult | ForkdecodeError, None, None]:
        """Yields the results of many prompts in their order, with at most `concurrency` of them running at a
        time. strategy, options and request_id are one for all, or a list.

        progress: show a progress bar on standard error if that is a terminal. return_errors: yield a failed
        request's error in the place of its result; otherwise the error is raised, and ends the others.
        Requests are made as results are asked for; closing the iterator cancels running ones.
        """

        def start(prompt: Any, strategy: Any, options: Any, name: Any, heard: Callable[[], None]) -> Handle:
            prepared = self._session.requests.prepare(
                prompt, strategy, options, given, chat=chat, request_id=name
            )
            return self._start([prepared], heard)[0]

        return in_order(
            start, prompts, strategy, options, request_id, concurrency, progress, return_errors=return_errors
        )

    def tokenize(self, prompt: Prompt, *, chat: bool = False) -> tuple[int, ...]:
        """Token ids of a prompt as `decode` would see it, including special tokens."""
        return self._session.requests.tokenize(prompt, chat=chat)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of token ids; special tokens have none."""
        return self._session.requests.detokenize(token_ids)

    @overload
    def score(  # type: ignore[overload-overlap]  # a text is a Sequence[str]
        self,
        prompt: Prompt,
        continuations: Sequence[Continuation],
        *,
        top_logprobs: int = 0,
        chat: bool = False,
        priority: int = 0,
        cache_salt: str = "",
        request_id: str | None = None,
    ) -> ScoreResult: ...

    @overload
    def score(
        self,
        prompt: Sequence[Prompt],
        continuations: Sequence[Continuation] | Sequence[Sequence[Continuation]],
        *,
        top_logprobs: int = 0,
        chat: bool = False,
        priority: int = 0,
        cache_salt: str = "",
        request_id: Sequence[str] | None = None,
    ) -> list[ScoreResult]: ...

    def score(
        self,
        prompt: Any,
        continuations: Any,
        *,
        top_logprobs: int = 0,
        chat: bool = False,
        priority: int = 0,
        cache_salt: str = "",
        request_id: Any = None,
    ) -> ScoreResult | list[ScoreResult]:
        """The log-likelihood of each of several continuations of one prompt, which is computed and stored
        once; waits. For a list of prompts, all sent at once, returns a list.

        continuations: texts or token ids; a text is tokenized by itself, and no special tokens are added. For
        a list of prompts, the same for all, or one list per prompt. top_logprobs: also report this many most
        likely tokens at each position. Nothing is sampled and nothing ends early: log-probabilities are the
        model's own, for every token given.

        Raises InvalidRequestError naming the argument, CapacityError, GroupFailedError; the first error ends
        the others.
        """
        engine = self._session.engine.thread
        prepared = self._session.requests.prepare_scores(
            prompt,
            continuations,
            top_logprobs=top_logprobs,
            chat=chat,
            priority=priority,
            cache_salt=cache_salt,
            request_id=request_id,
        )
        answers = send_scores(engine, prepared)
        try:
            results = [
                one.assembler.result(answer.result()) for one, answer in zip(prepared, answers, strict=True)
            ]
        except BaseException:
            for one in prepared:
                engine.cancel(one.request)
            raise
        return results if is_batch(prompt) else results[0]

    def tree(
        self,
        prompt: Prompt | None = None,
        *,
        chat: bool = False,
        seed: int | None = None,
        cache_salt: str = "",
        limits: TreeLimits | None = None,
    ) -> Tree:
        """A tree of sequences that you steer: nodes are decoded, forked, scored and pruned, and share the KV
        of what they have in common.

        prompt: the root; None: the roots are imported. seed: with the same seed, the same commands make the
        same tree; None draws a fresh one. limits: what it may hold; by default as much as the engine has.

        Raises InvalidRequestError naming the argument.
        """
        opening = OpenTree(prompt, chat, seed, cache_salt)
        return Tree(LocalLink(self._session.opener(opening, limits)))

    def update_weights(
        self, weights: str | os.PathLike[str] | PreTrainedModel | Mapping[str, torch.Tensor]
    ) -> None:
        """Replaces the model's weights, for example after a round of training. Waits until that is done.

        weights: usually `policy.state_dict()`, a mapping with a tensor for every name (for tied weights, one
        of the names is enough). Its tensors are copied, and neither kept nor changed. Or a model's name or
        folder, or a transformers model of the same class, which is modified in place. Names and shapes must
        be those of the old weights; numbers are converted to info.dtype.

        Requests sent before the new weights are ready finish with the old ones. Requests sent after that
        wait. What is sent after this call returns gives the results of a new LLM. The prefix cache is
        emptied, and the KV of tree nodes is computed again when needed; nodes keep their tokens and scores.
        info and tokenizer stay the same. While it runs, memory holds the old and the new weights, and one
        layer of them twice, besides the tensors of a mapping.

        Raises InvalidRequestError naming what is missing, unknown or different, ModelLoadError for a model
        that can't be loaded, CapacityError if a GPU lacks memory, and EngineClosedError. The old weights then
        stay in use.
        """
        self._session.engine.weights.update(weights)

    def stats(self) -> EngineStats:
        """The state and the counters of the engine."""
        return self._session.engine.thread.stats()

    def close(self) -> None:
        """Stops the engine; running requests end with EngineClosedError. Idempotent."""
        self._session.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, prepared: Sequence[Prepared], heard: Callable[[], None] | None = None) -> list[Handle]:
        thread = self._session.engine.thread
        handles = [
            Handle(
                one.request.request_id,
                one.assembler.events,
                partial(thread.cancel, one.request),
                heard,
                thread.check_caller,
            )
            for one in prepared
        ]
        thread.submit([Job(one.request, handle.put) for one, handle in zip(prepared, handles, strict=True)])
        return handles

    def _wait(self, handles: list[Handle]) -> list[DecodeResult]:
        try:
            return [handle.result() for handle in handles]
        except BaseException:
            for handle in handles:
                handle.cancel()
            raise
