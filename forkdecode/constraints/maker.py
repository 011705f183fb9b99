"""From what a caller names to a constraint for one model's tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from forkdecode.allowed import Constraint
from forkdecode.constraint_types import ConstraintSpec, FromCatalogue
from forkdecode.constraints.callable import CallableConstraint, FunctionThread
from forkdecode.constraints.catalogues import Catalogues
from forkdecode.constraints.grammar import Grammars
from forkdecode.errors import invalid
from forkdecode.step import I64
from forkdecode.text.token_bytes import TokenBytes
from forkdecode.types import PrefixFunction

_NONE = np.empty(0, np.int64)


class ConstraintMaker:
    """Makes constraints for one model. Safe to call from several threads.

    tokens: the bytes of every token; None where the model has no tokenizer. eos_ids: the model's. names: of
    special tokens. catalogues: by name; none by default.
    """

    def __init__(
        self,
        tokens: TokenBytes | None,
        vocab_size: int,
        eos_ids: Sequence[int],
        names: Mapping[int, str] | None = None,
        catalogues: Catalogues | None = None,
    ) -> None:
        self._tokens = tokens
        self._vocab_size = vocab_size
        self._eos_ids = tuple(eos_ids)
        self._catalogues = Catalogues(vocab_size, eos_ids) if catalogues is None else catalogues
        self._callers = FunctionThread()
        self._openers = ThreadPoolExecutor(1, "forkdecode-catalogues")
        self._grammars: Grammars | None = None
        if tokens is not None and self._eos_ids:
            self._grammars = Grammars(tokens, vocab_size, self._eos_ids, names)

    def of(
        self,
        spec: ConstraintSpec,
        stop_ids: I64 = _NONE,
        prompt: I64 | None = None,
        catalogue: str | None = None,
    ) -> Constraint:
        """stop_ids: what ends a candidate besides EOS ids. prompt: what stands before the constraint begins,
        if that is known. catalogue: the digest that a catalogue must have. May wait for a grammar to be
        compiled, or a catalogue to be opened.

        Raises InvalidRequestError for one that can't be had, naming "constraint" or a part of it, and
        UnavailableError for a catalogue that is being replaced.
        """
        if needs_eos(spec) and not self._eos_ids:
            problem = "only an EOS id ends its candidates, and this model has none"
            raise invalid("constraint", problem, "a catalogue with end='item', or None")
        if isinstance(spec, FromCatalogue):
            return self._catalogues.constraint(spec, catalogue)
        if self._tokens is None:
            raise invalid("constraint", "this model has no tokenizer", "a catalogue, or None")
        assert self._grammars is not None, "there is a tokenizer, and an EOS id"
        return self._grammars.of(spec, stop_ids=stop_ids, opening=self._opens(prompt))

    def begin(self, spec: ConstraintSpec, prompt: I64 | None = None) -> Future[Any] | None:
        """Starts what of() would wait for, of the same spec and prompt; None where it would not wait, or is
        refused anyway. How the future ends is of() to say."""
        if isinstance(spec, FromCatalogue):
            known = self._catalogues.is_current(spec.name)
            return None if known else self._openers.submit(self._catalogues.get, spec.name)
        if self._grammars is None:
            return None
        return self._grammars.begin(spec, opening=self._opens(prompt))

    def _opens(self, prompt: I64 | None) -> bool:
        return prompt is not None and self._tokens is not None and not self._tokens.lengths[prompt].any()

    def calling(self, function: PrefixFunction, prompt: I64) -> Constraint:
        """What a caller's function allows after `prompt` [P]. All functions share one thread."""
        return CallableConstraint(function, prompt, self._vocab_size, self._callers)

    def is_calling(self) -> bool:
        """Whether this thread is calling a caller's function, which the engine may be waiting for."""
        return self._callers.is_current

    def close(self) -> None:
        """Ends the threads that work for constraints. Idempotent."""
        self._callers.close()
        self._openers.shutdown(wait=False, cancel_futures=True)
        if self._grammars is not None:
            self._grammars.close()


def needs_eos(spec: ConstraintSpec) -> bool:
    """Whether nothing but an end-of-sequence id ends what follows the constraint."""
    return not isinstance(spec, FromCatalogue) or spec.end == "eos"
