"""A caller's prefix_allowed_tokens_fn as a constraint, asked beside the forward pass."""

from __future__ import annotations

import threading
import traceback
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from forkdecode.allowed import Allowed, AllowedLists
from forkdecode.checks import shown, told
from forkdecode.errors import GroupFailedError, called_by_engine
from forkdecode.step import I32, I64
from forkdecode.types import PrefixFunction

FIELD = "prefix_allowed_tokens_fn"


class FunctionThread:
    """The one thread in which callers' functions are called, so that none is ever called twice at once."""

    def __init__(self) -> None:
        self._mark = threading.local()
        mark = partial(setattr, self._mark, "here", True)
        self._pool = ThreadPoolExecutor(1, "forkdecode-prefix-function", mark)

    @property
    def is_current(self) -> bool:
        """Whether it is what asks: a function that is being called."""
        return getattr(self._mark, "here", False)

    def submit(self, constraint: CallableConstraint, generated: I64) -> Future[Allowed]:
        """Has a constraint ask. Raises UnavailableError where nobody could wait for the answer."""
        if self.is_current:
            raise called_by_engine()
        return self._pool.submit(constraint.ask, generated)

    def close(self) -> None:
        """Ends it once the call that it is at has returned. Idempotent."""
        self._pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True, eq=False)
class CallableConstraint:
    """What `function` returns for a row's tokens may follow them: the prompt's [P] and the generated ones."""

    function: PrefixFunction
    prompt: I64
    vocab_size: int
    worker: FunctionThread

    def rows(self) -> CallableRows:
        """The one row that a group starts with."""
        return CallableRows(self, np.empty((1, 0), np.int64))

    def ask(self, generated: I64) -> Allowed:
        """Calls the function for each of R rows; generated [R, g]. Raises GroupFailedError."""
        import torch  # the caller's function takes tensors; whoever only looks at requests needs none

        prompt = np.broadcast_to(self.prompt, (len(generated), len(self.prompt)))
        whole = torch.from_numpy(np.concatenate([prompt, generated], axis=1))
        found = [self._ids(whole[row]) for row in range(len(whole))]
        edges = np.cumsum([0, *map(len, found)], dtype=np.int64)
        return AllowedLists(np.concatenate(found).astype(np.int32), edges[:-1], edges[1:])

    def _ids(self, tokens: Any) -> I64:
        try:
            answer = self.function(0, tokens)
        except BaseException as error:  # it may raise anything, sys.exit() too
            raise _failed(f"raised {told(error)}{_place(error)}") from error
        try:
            ids = np.asarray(answer if hasattr(answer, "__array__") else list(answer))
        except BaseException as error:  # its answer may be anything, too, a generator of such code
            raise _failed(f"returned {shown(answer)}, which lists no token ids") from error
        if not ids.size:
            raise _failed("returned no token id: nothing may follow")
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise _failed(f"returned {shown(answer)}, which lists no token ids")
        unique: I64 = np.unique(ids).astype(np.int64)
        if unique[0] < 0 or unique[-1] >= self.vocab_size:
            wrong = unique[0] if unique[0] < 0 else unique[-1]
            raise _failed(f"returned {wrong}, which is no token id: 0 to {self.vocab_size - 1} are")
        return unique


@dataclass(frozen=True, slots=True, eq=False)
class CallableRows:
    """generated [R, g]: the tokens of each row."""

    constraint: CallableConstraint
    generated: I64

    def allowed(self) -> Asked:
        """Has the function called."""
        return Asked(self.constraint.worker.submit(self.constraint, self.generated))

    def next(self, parents: I32, tokens: I64) -> CallableRows:
        """See ConstraintRows."""
        return CallableRows(
            self.constraint, np.concatenate([self.generated[parents], tokens[:, None]], axis=1)
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """What the function says, which it may still be thinking about."""

    answer: Future[Allowed]

    def get(self) -> Allowed:
        """Waits for it. Raises GroupFailedError."""
        try:
            return self.answer.result()
        except CancelledError as error:
            raise _failed("was not called any more: the engine was closed") from error


def _failed(what: str) -> GroupFailedError:
    return GroupFailedError(f"{FIELD} {what}", field=FIELD)


def _place(error: BaseException) -> str:
    """Where in the caller's code."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else ""
