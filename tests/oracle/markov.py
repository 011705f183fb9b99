"""Models small enough to enumerate, in a real engine: scheduler, selection and texts are the product's.

The next token's logits depend on the last token and on how many stand before it, so that no two
paths are equally likely because they take the same steps in another order. A runner without arithmetic
reads each row's tokens back through its block table (tests/scheduler/toy.py), so that a wrong parent,
slot or copy changes what is decoded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from transformers import PreTrainedTokenizerFast

from forkdecode import DecodeResult, ForkdecodeError, Options, Strategy
from forkdecode.config import EngineConfig
from forkdecode.constraints.catalogue import Catalogue
from forkdecode.constraints.catalogues import Catalogues
from forkdecode.engine.core import Engine
from forkdecode.model.info import ModelInfo
from forkdecode.requests.assembly import Assembler
from forkdecode.requests.prepare import RequestMaker
from forkdecode.results import Finished
from forkdecode.scheduler.events import GroupFailed, GroupFinished
from forkdecode.scheduler.preemption import PreemptionCost
from forkdecode.scheduler.scheduler import Scheduler
from forkdecode.step import F32, I64
from tests.oracle.beam_rule import Path, Scores
from tests.oracle.logits_rules import processed
from tests.scheduler.toy import ToyRunner

POSITIONS = 24
"""Of a model's table, which repeats beyond."""
NUM_BLOCKS = 20_000


class Markov:
    """logits [P, V, V]: of the token that follows n others, by n modulo P and by the last of them. Told
    apart by `seed` in reports."""

    def __init__(
        self, logits: F32, eos: frozenset[int], tokenizer: PreTrainedTokenizerFast | None, seed: int
    ) -> None:
        self.logits = logits
        self.eos = eos
        self.tokenizer = tokenizer
        self._seed = seed

    def __repr__(self) -> str:
        return f"Markov(seed={self._seed}, vocab={self.vocab}, eos={sorted(self.eos)})"

    @property
    def vocab(self) -> int:
        return int(self.logits.shape[-1])

    def row(self, tokens: Sequence[int] | I64) -> F32:
        """[V] what follows `tokens`, the prompt's included."""
        found: F32 = self.logits[len(tokens) % len(self.logits), int(tokens[-1])]
        return found


def markov(
    seed: int,
    vocab: int,
    eos: Sequence[int] = (),
    *,
    spread: float = 1.5,
    likely_ends: float = 0.0,
    positions: int = POSITIONS,
    tokenizer: PreTrainedTokenizerFast | None = None,
) -> Markov:
    """A random model. likely_ends: what EOS ids have above the others. positions 1: homogeneous."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, spread, (positions, vocab, vocab))
    logits[:, :, list(eos)] += likely_ends
    return Markov(logits.astype(np.float32), frozenset(eos), tokenizer, seed)


def log_softmax(row: F32) -> F32:
    """In float64, rounded once; -inf where nothing is left."""
    wide = row.astype(np.float64)
    if not (wide > -np.inf).any():
        return row
    top = wide.max()
    return (wide - top - np.log(np.exp(wide - top).sum())).astype(np.float32)


class MarkovRunner(ToyRunner):
    """The toy runner with a model's logits."""

    def __init__(self, model: Markov, block_size: int) -> None:
        super().__init__(NUM_BLOCKS, block_size, 0, model.vocab)
        self._model = model

    def logits(self, context: I64) -> F32:
        return self._model.row(context)


class Language(Protocol):
    """What a constraint allows, by its definition."""

    def allowed(self, path: Path) -> Collection[int]:
        """The tokens that may follow the generated ones."""

    def complete(self, path: Path) -> bool:
        """Whether a path ends because nothing may follow, without an EOS id."""


@dataclass(frozen=True)
class Asked:
    """One request. language: what its constraint stands for, for those who execute definitions."""

    prompt: tuple[int, ...]
    strategy: Strategy
    options: Options = field(default_factory=Options)
    language: Language | None = None


class MarkovEngine:
    """Requests for one model, all of a call in one batch. Every block must come back after each call."""

    def __init__(
        self, model: Markov, *, catalogues: Mapping[str, Catalogue] | None = None, **config: Any
    ) -> None:
        settings = EngineConfig(**{"block_size": 2, "watermark": 0.0, **config})
        scheduler = Scheduler(settings, NUM_BLOCKS, 0, PreemptionCost(1.0, 1.0), b"markov")
        self.model = model
        self.runner = MarkovRunner(model, settings.block_size)
        self.engine = Engine(scheduler, self.runner)
        info = ModelInfo(
            "markov", model.vocab, 512, tuple(sorted(model.eos)), ((1, 1),), (None,), "float32", 0
        )
        known = Catalogues(info.vocab_size, info.eos_ids)
        known.put_all(catalogues or {})
        self._requests = RequestMaker(model.tokenizer, info, known)
        self._count = 0

    def decode(self, asked: Sequence[Asked]) -> list[DecodeResult | ForkdecodeError]:
        """All of them in one batch; one that fails does so alone."""
        assemblers = dict(self._submit(one) for one in asked)
        results: dict[str, DecodeResult | ForkdecodeError] = {}
        for _ in range(10_000):
            if not self.engine.has_work:
                break
            for event in self.engine.step():
                if isinstance(event, GroupFailed):
                    results[event.request_id] = event.error
                elif isinstance(event, GroupFinished):
                    (last,) = assemblers[event.request_id].events(event)
                    assert isinstance(last, Finished)
                    results[event.request_id] = last.result
            self.engine.scheduler.check()
        assert not self.engine.has_work, "no end after 10,000 steps"
        assert self.engine.stats().used_blocks == 0, "a block was not given back"
        return [results[name] for name in assemblers]

    def one(self, asked: Asked) -> DecodeResult:
        """Its result, alone; raises what it failed by."""
        (result,) = self.decode([asked])
        if isinstance(result, ForkdecodeError):
            raise result
        return result

    def _submit(self, asked: Asked) -> tuple[str, Assembler]:
        self._count += 1
        name = f"r{self._count}"
        made = self._requests.prepare(
            asked.prompt, asked.strategy, asked.options, {}, chat=False, request_id=name
        )
        self.engine.submit(made.request)
        return name, made.assembler


def ends_of(model: Markov, options: Options) -> frozenset[int]:
    """Every id that ends a candidate under `options`."""
    return (frozenset() if options.ignore_eos else model.eos) | frozenset(options.stop_token_ids)


def ending(model: Markov, asked: Asked) -> Callable[[Path], bool]:
    """Whether a path is complete with its last token, max_tokens aside."""
    ids, language = ends_of(model, asked.options), asked.language
    return lambda path: path[-1] in ids or (language is not None and language.complete(path))


def own_row(model: Markov, asked: Asked, path: Path, row: F32) -> F32:
    """`row`, logits or log-probabilities, with all that the request changes in it."""
    options, language = asked.options, asked.language
    done = processed(row, asked.prompt, path, options, ends_of(model, options))
    if language is None:
        return done
    early = len(path) + 1 < options.min_tokens
    kept = [t for t in language.allowed(path) if not (early and language.complete((*path, t)))]
    masked = np.full_like(done, -np.inf)
    masked[kept] = done[kept]
    return masked


def beam_scores(model: Markov, asked: Asked) -> Scores:
    """What beams rank by: log_softmax first, then processors, not normalised again."""

    @functools.cache
    def row(path: Path) -> F32:
        return own_row(model, asked, path, log_softmax(model.row([*asked.prompt, *path])))

    return lambda paths: np.stack([row(path) for path in paths])


def draw_logits(model: Markov, asked: Asked, path: Path) -> F32:
    """What draws start from: processed logits."""
    return own_row(model, asked, path, model.row([*asked.prompt, *path]))


def greedy_path(model: Markov, asked: Asked) -> Path | None:
    """The likeliest token, step by step, until one ends; None where nothing is legal."""
    path: Path = ()
    ends = ending(model, asked)
    while len(path) < asked.options.max_tokens and not (path and ends(path)):
        row = draw_logits(model, asked, path)
        if row.max() == -np.inf:
            return None
        path = (*path, int(row.argmax()))
    return path
