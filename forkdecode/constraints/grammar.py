"""Grammars of one model: compiled within limits by llguidance, kept, and shared between requests."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits

from forkdecode.checks import told
from forkdecode.constraints.grammar_rows import Compiled, GrammarConstraint, Workers, masks
from forkdecode.constraints.grammar_text import (
    GrammarError,
    GrammarSpec,
    grammar_text,
    plain_error,
    refusal,
)
from forkdecode.constraints.grammar_tokens import GrammarTokens, grammar_tokens
from forkdecode.cores import usable_cores
from forkdecode.errors import EngineClosedError, GroupFailedError, QueueFullError
from forkdecode.text.token_bytes import TokenBytes

COMPILE_SECONDS = 5.0
"""What takes longer is refused. llguidance can't be stopped, but its other limits end it soon after."""
MAX_KEPT = 64
"""Compiled grammars; of the others the least recently used are forgotten first."""
RETRY_AFTER = 1.0
"""Seconds after which a request may be sent again whose grammar found no thread to compile it."""
COMPILE_THREADS = 2
COMPILE_STACK = 1 << 29
"""Bytes of address space. llguidance recurses along rules that lead to rules, as deep as a source of
MAX_GRAMMAR_BYTES goes; a stack of the usual size overflows, which ends the process."""
MASK_THREADS = 4
"""At most."""
LIMITS = {
    "max_items_in_row": 2_000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 100_000,
    "max_grammar_size": 500_000,
}
"""See LLParserLimits. A lexer's state takes 1 to 2 kB, and each row has a lexer of its own."""
_STACK_SIZE = threading.Lock()
"""Of the interpreter's setting for threads that start."""
_Key = tuple[GrammarSpec, bool]


class Grammars:
    """What compiles grammars for one model's tokens, and the threads that work out masks. Safe to use from
    several threads; there is no thread before the first grammar.

    eos_ids: at least one. names: of special tokens, by which Lark grammars may ask for them. seconds: that a
    grammar may take to compile.
    """

    def __init__(
        self,
        tokens: TokenBytes,
        vocab_size: int,
        eos_ids: Sequence[int],
        names: Mapping[int, str] | None = None,
        *,
        seconds: float = COMPILE_SECONDS,
    ) -> None:
        self._vocabulary = partial(grammar_tokens, tokens, vocab_size, tuple(eos_ids), names)
        self._strips = tokens.strips_first_space
        self._seconds = seconds
        self._lock = threading.Lock()
        self._known: OrderedDict[_Key, Future[Compiled]] = OrderedDict()
        self._tokens: dict[bool, GrammarTokens] = {}
        cores = usable_cores()
        self._threads = min(MASK_THREADS, max(1, cores // 2))
        self._workers: Workers | None = None
        self._compilers = ThreadPoolExecutor(COMPILE_THREADS, "forkdecode-grammars")
        self._jobs = ThreadPoolExecutor(self._threads, "forkdecode-masks")

    def of(
        self, spec: GrammarSpec, *, stop_ids: Sequence[int] | np.ndarray = (), opening: bool = False
    ) -> GrammarConstraint:
        """A request's constraint; waits while its grammar is compiled.

        stop_ids: ids that end a candidate besides EOS ids. opening: whether the generated text begins the
        whole text (the prompt has none), which matters to tokenizers that drop its first space.
        Raises InvalidRequestError naming the part of the spec at fault, with llguidance's message,
        QueueFullError while too many others are compiled, and EngineClosedError after close() for what was
        not compiled before.
        """
        key = (spec, opening and self._strips)
        future = self._begin(key)
        try:
            compiled = future.result(self._seconds)
        except GrammarError as error:
            raise refusal(spec, str(error)) from None
        except TimeoutError:
            if future.cancel():  # it has not begun; one that has is there for whoever asks again
                raise _busy() from None
            raise self._too_slow(spec) from None
        except CancelledError:
            raise _busy() from None
        return GrammarConstraint(compiled, self._having_workers(), np.array(stop_ids, np.int64))

    def begin(self, spec: GrammarSpec, *, opening: bool = False) -> Future[Compiled] | None:
        """Has it compiled, for of(); None where it has been."""
        try:
            future = self._begin((spec, opening and self._strips))
        except EngineClosedError:
            return None
        return None if future.done() else future

    def close(self) -> None:
        """Ends the threads; what is still to be worked out fails. Idempotent."""
        self._compilers.shutdown(wait=False, cancel_futures=True)
        self._jobs.shutdown(wait=False, cancel_futures=True)

    def _begin(self, key: _Key) -> Future[Compiled]:
        with self._lock:
            future = self._known.get(key)
            if future is not None:
                self._known.move_to_end(key)
                return future
            if len(self._known) >= MAX_KEPT:
                self._forget_one()
            future = self._known[key] = self._submit(key)
        future.add_done_callback(self._forget_failed(key))
        return future

    def _forget_one(self) -> None:
        """Of those that nobody may be waiting for, the one that was asked for or compiled first."""
        oldest = next((key for key, future in self._known.items() if future.done()), None)
        if oldest is not None:
            del self._known[oldest]

    def _submit(self, key: _Key) -> Future[Compiled]:
        with _STACK_SIZE:
            usual = threading.stack_size(COMPILE_STACK)
            try:
                return self._compilers.submit(self._compile, key)  # which may start a thread
            except RuntimeError as error:  # of an executor that is shut down
                raise EngineClosedError("the engine is closed") from error
            finally:
                threading.stack_size(usual)

    def _forget_failed(self, key: _Key) -> Callable[[Future[Compiled]], None]:
        known, lock = self._known, self._lock  # not self, which has the future: it would live on with it

        def done(future: Future[Compiled]) -> None:
            failed = future.cancelled() or future.exception() is not None
            with lock:
                if known.get(key) is not future:
                    return
                if failed:
                    del known[key]
                else:
                    known.move_to_end(key)

        return done

    def _too_slow(self, spec: GrammarSpec) -> Exception:
        return refusal(spec, "takes too long to compile", f"what compiles within {self._seconds:g} seconds")

    def _having_workers(self) -> Workers:
        with self._lock:
            if self._workers is None:
                rows = LLExecutor(self._threads) if self._threads > 1 else None
                self._workers = Workers(self._jobs, rows)
            return self._workers

    def _having_tokens(self, opening: bool) -> GrammarTokens:
        with self._lock:
            if opening not in self._tokens:
                self._tokens[opening] = self._vocabulary(opening=opening)
            return self._tokens[opening]

    def _compile(self, key: _Key) -> Compiled:
        try:
            return self._compiled(key)
        except Exception:
            raise
        except BaseException as error:  # a panic of llguidance
            raise GrammarError(told(error)) from error

    def _compiled(self, key: _Key) -> Compiled:
        spec, opening = key
        tokens = self._having_tokens(opening)
        root = LLMatcher(
            tokens.tokenizer,
            grammar_text(spec),
            log_level=0,
            limits=LLParserLimits(**LIMITS, precompute_large_lexemes=True, verbose_errors=False),
        )
        describe = partial(plain_error, spec)
        if root.is_error():
            raise GrammarError(describe(root.get_error()))
        empty = Compiled(root, np.zeros((1, tokens.full_width), np.uint32), tokens, describe)
        try:
            first = masks(empty, [root])
        except GroupFailedError as error:
            raise GrammarError(str(error).removeprefix("constraint: ")) from None
        if not first.any():
            raise GrammarError("no text of this model's tokens matches it")
        return Compiled(root, first, tokens, describe)


def _busy() -> QueueFullError:
    problem = "constraint: too many other grammars are being compiled"
    return QueueFullError(problem, field="constraint", retry_after=RETRY_AFTER)
