"""What LLM and AsyncLLM share: a running engine, and who makes requests for it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from forkdecode.checks import check_int, check_unicode, shown
from forkdecode.config import MAX_THREADS, DType, EngineConfig, EngineKeywords
from forkdecode.constraints.catalogues import Catalogues, Source
from forkdecode.engine.start import RunningEngine, start_engine
from forkdecode.errors import invalid
from forkdecode.model.device import give_back
from forkdecode.model.loader import LoadedModel, adopt, load
from forkdecode.requests.prepare import RequestMaker
from forkdecode.tree.local import OpenSession
from forkdecode.tree.running import Emit
from forkdecode.tree.session import Post, TreeSession
from forkdecode.tree_types import OpenTree, TreeLimits


class LlmKeywords(EngineKeywords, total=False):
    """LLM's keyword arguments apart from the model; see there."""

    tokenizer: Any | None
    dtype: DType
    device: str
    threads: int | None
    max_positions: int | None
    catalogues: Mapping[str, Source] | None


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Which model a caller wants and how; not checked yet."""

    model: Any
    tokenizer: Any
    dtype: DType
    device: str
    threads: int | None
    max_positions: int | None


class Session:
    """An engine with the means to feed it. Everything here may be called from any thread."""

    def __init__(
        self,
        choice: ModelChoice,
        config: Mapping[str, Any],
        catalogues: Mapping[str, Source] | None = None,
    ) -> None:
        settings, threads = make_config(config), choice.threads
        if threads is not None:
            threads = check_int("threads", threads, 1, MAX_THREADS)
        loaded = open_model(choice)
        self.catalogues = Catalogues(loaded.info.vocab_size, loaded.info.eos_ids, loaded.info.name)
        self.catalogues.put_all({} if catalogues is None else catalogues)
        self.requests = RequestMaker(loaded.tokenizer, loaded.info, self.catalogues)
        self.engine: RunningEngine = start_engine(
            loaded, settings, threads, is_calling=self.requests.is_calling
        )

    def close(self) -> None:
        """Stops the engine; a GPU's memory is anybody's again. Idempotent."""
        self.engine.thread.close()
        self.requests.close()
        with contextlib.suppress(RuntimeError):  # of a GPU that was lost, which the engine has told
            give_back()

    def opener(self, opening: OpenTree, limits: TreeLimits | None) -> OpenSession:
        """What opens a tree session on this engine."""

        def open_session(emit: Emit, post: Post) -> TreeSession:
            return TreeSession(
                self.engine.thread,
                self.requests,
                opening,
                block_size=self.engine.capacity.block_size,
                emit=emit,
                post=post,
                limits=limits,
            )

        return open_session


def open_model(choice: ModelChoice) -> LoadedModel:
    """The model that a caller names or hands over. Raises ModelLoadError, InvalidRequestError."""
    model, tokenizer, limit = choice.model, choice.tokenizer, choice.max_positions
    for name, value in (("dtype", choice.dtype), ("device", choice.device)):
        check_unicode(name, value)
    if limit is not None:
        limit = check_int("max_positions", limit, 1)
    if tokenizer is not None and not (hasattr(tokenizer, "encode") and hasattr(tokenizer, "get_vocab")):
        raise invalid("tokenizer", f"{shown(tokenizer)} is none", "a tokenizer of transformers, or None")
    if isinstance(model, PreTrainedModel):
        return adopt(model, tokenizer, choice.dtype, choice.device, max_positions=limit)
    if not isinstance(model, (str, os.PathLike)) or not os.fspath(model):
        raise invalid("model", f"{shown(model)} is no model", "a name, a folder or a transformers model")
    return load(os.fspath(model), choice.dtype, choice.device, tokenizer=tokenizer, max_positions=limit)


def make_config(given: Mapping[str, Any]) -> EngineConfig:
    """EngineConfig from keyword arguments; an unknown name is refused by name."""
    names = [field.name for field in dataclasses.fields(EngineConfig)]
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise invalid(unknown[0], "is not a setting of the engine", ", ".join(names))
    return EngineConfig(**given)
