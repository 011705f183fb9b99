"""Makes requests whole that have crossed to the engine process."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future
from typing import Any

from forkdecode.allowed import Constraint
from forkdecode.constraints.catalogues import Catalogues
from forkdecode.constraints.continued import continued
from forkdecode.constraints.items import without_short_items
from forkdecode.constraints.maker import ConstraintMaker
from forkdecode.model.loader import LoadedModel
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.text.special_tokens import special_names
from forkdecode.text.stop import StopAutomata, StopAutomaton
from forkdecode.text.token_bytes import token_bytes


class Maker:
    """Of requests that have crossed, what has not: stop automata and constraints, made here from the
    options, and shared."""

    def __init__(self, loaded: LoadedModel, catalogues: Catalogues) -> None:
        self._automata: StopAutomata | None = None
        size, tokens, names = loaded.info.vocab_size, None, None
        if loaded.tokenizer is not None:
            tokens = token_bytes(loaded.tokenizer, size)
            names = special_names(loaded.tokenizer)
            self._automata = StopAutomata(tokens)
        self._constraints = ConstraintMaker(tokens, size, loaded.info.eos_ids, names, catalogues)

    def whole(self, sent: DecodeRequest) -> DecodeRequest:
        """The request with all that it had. Raises InvalidRequestError, and UnavailableError where its
        catalogue has been replaced since it was checked."""
        automaton, constraint = self._automaton(sent.options.stop), self._constraint(sent)
        if automaton is None and constraint is None:
            return sent
        return dataclasses.replace(sent, automaton=automaton, constraint=constraint)

    def begin(self, sent: DecodeRequest) -> Future[Any] | None:
        """Starts what whole() would have to wait for; None where it is there already."""
        spec = sent.options.constraint
        if spec is None:
            return None
        return self._constraints.begin(spec, sent.prompt[: sent.constraint_start])

    def close(self) -> None:
        """Ends the threads that work for constraints. Idempotent."""
        self._constraints.close()

    def _automaton(self, stop: tuple[str, ...]) -> StopAutomaton | None:
        return self._automata.of(stop) if stop and self._automata is not None else None

    def _constraint(self, sent: DecodeRequest) -> Constraint | None:
        spec = sent.options.constraint
        if spec is None:
            return None
        before = sent.prompt[: sent.constraint_start]
        constraint = self._constraints.of(spec, sent.stop_ids, before, sent.catalogue)
        begun = continued(constraint, sent.prompt, sent.constraint_start)
        return without_short_items(begun, sent.options.min_tokens)
