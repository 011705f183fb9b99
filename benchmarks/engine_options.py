"""What benchmarks.engine_work --options runs: requests with each option, over random logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from benchmarks.gate import request
from forkdecode.allowed import Constraint
from forkdecode.constraint_types import FromCatalogue, Regex
from forkdecode.constraints.catalogue_build import build_catalogue
from forkdecode.constraints.catalogues import Catalogues
from forkdecode.constraints.maker import ConstraintMaker
from forkdecode.sampling.select import select
from forkdecode.scheduler.request import DecodeRequest, NodeRef
from forkdecode.step import I64, ProcessorSpec, StepOutput, StepPlan
from forkdecode.text.stop import StopAutomaton
from forkdecode.text.token_bytes import TokenBytes
from forkdecode.types import Beam, DiverseBeam, Sample, StochasticBeam, Strategy

VOCABULARY, PROMPT, SPARE = 49_152, 200, 32
GRAMMAR = "(t[0-9]+ )+"
"""Lets through most tokens at a word's beginning, few within."""
TOKENS = TokenBytes.build(
    [bytes([i]) for i in range(256)] + [f"t{i} ".encode() for i in range(256, VOCABULARY + 1)]
)


class RandomModel:
    """Chooses from random logits of standard deviation 3, other rows of them each step."""

    def __init__(self, rows: int) -> None:
        rng = np.random.default_rng(1)
        self._logits = torch.from_numpy(rng.standard_normal((rows + SPARE, VOCABULARY), np.float32) * 3)
        torch.set_num_threads(1)

    def execute(self, plan: StepPlan) -> StepOutput:
        first, count = plan.step * 5 % SPARE, len(plan.logits_index)
        results = select(self._logits[first : first + count], plan.selections, threads=1)
        assert all(result.error is None for result in results), results
        return StepOutput(plan.step, results)


@dataclass(frozen=True)
class Option:
    """A strategy for `width` rows of group i, and what else a request has."""

    strategy: Callable[[int, int], Strategy]
    change: Callable[[DecodeRequest], DecodeRequest] = lambda asked: asked

    def requests(self, groups: int, rows: int, steps: int) -> list[DecodeRequest]:
        """One for each of the groups, which share `rows`, of `steps` tokens."""
        asked = []
        for i in range(groups):
            plain = request(i, PROMPT, self.strategy(rows // groups, i), steps, shared=False)
            prompt = _ids(PROMPT, i)
            asked.append(
                self.change(replace(plain, prompt=prompt, eos_ids=np.array([VOCABULARY]), stream=True))
            )
        return asked


def options() -> dict[str, Option]:
    """By name; what no name says is a draw at temperature 0.8."""
    biased = np.unique(_ids(100, 1))
    words = _ids(300, 2).reshape(100, 3)
    changed: dict[str, dict[str, Any]] = {
        "repetition_penalty": {"repetition_penalty": 1.1},
        "presence, frequency": {"presence_penalty": 0.5, "frequency_penalty": 0.5},
        "no_repeat_ngram_size 3": {"no_repeat_ngram_size": 3},
        "logit_bias of 100": {"bias_ids": biased, "bias_values": np.ones(len(biased), np.float32)},
        "bad_words, 100 of three": {"bad_words": tuple(map(tuple, words.tolist()))},
        "min_tokens": {"min_tokens": 10_000, "suppressed_ids": _ids(2, 3)},
        "allowed_token_ids, 500": {"allowed_token_ids": np.unique(_ids(500, 4))},
    }
    found = {"plain": Option(_sample)}
    found |= {name: Option(_sample, _processed(**spec)) for name, spec in changed.items()}
    found["stop strings"] = Option(_sample, _stopping)
    found["grammar"] = Option(_sample, _constrained(_grammar))
    found["catalogue"] = Option(_sample, _constrained(_catalogue))
    found["tree nodes kept"] = Option(_sample, _in_tree)
    found["logprobs 20"] = Option(_sample, _with_logprobs)
    beams = {"beam": _beam, "diverse beam": _diverse, "stochastic beam": _stochastic}
    for name, strategy in beams.items():
        found[name] = Option(strategy)
        found[f"{name}, logprobs 20"] = Option(strategy, _with_logprobs)
        found[f"{name}, repetition_penalty"] = Option(strategy, _processed(repetition_penalty=1.1))
        found[f"{name}, stop strings"] = Option(strategy, _stopping)
        found[f"{name}, catalogue"] = Option(strategy, _constrained(_catalogue))
    return found


def _sample(width: int, i: int) -> Strategy:
    return Sample(width, temperature=0.8, seed=i)


def _beam(width: int, i: int) -> Strategy:
    return Beam(width)


def _diverse(width: int, i: int) -> Strategy:
    return DiverseBeam(width, groups=2, diversity_penalty=0.5)


def _stochastic(width: int, i: int) -> Strategy:
    return StochasticBeam(width, seed=i)


def _processed(**spec: Any) -> Callable[[DecodeRequest], DecodeRequest]:
    return lambda asked: replace(asked, processors=ProcessorSpec(**spec))


def _with_logprobs(asked: DecodeRequest) -> DecodeRequest:
    return replace(asked, options=replace(asked.options, logprobs=20))


def _stopping(asked: DecodeRequest) -> DecodeRequest:
    return replace(asked, automaton=_automaton())


def _in_tree(asked: DecodeRequest) -> DecodeRequest:
    number = 1 + 1000 * int(asked.request_id)
    return replace(asked, origin=NodeRef("tree", number), keep=NodeRef("tree", number + 1))


def _constrained(make: Callable[[], Constraint]) -> Callable[[DecodeRequest], DecodeRequest]:
    return lambda asked: replace(asked, constraint=make())


@cache
def _automaton() -> StopAutomaton:
    return StopAutomaton(["t12 t345 t678", "never"], TOKENS)


@cache
def _maker() -> ConstraintMaker:
    rng = np.random.default_rng(5)
    catalogues = Catalogues(VOCABULARY, [VOCABULARY])
    # 16 ways at each of the first four tokens, one at each of the many that follow.
    ways = rng.integers(0, 16, (20_000, 4)) + np.arange(4) * 16
    rest = rng.integers(1000, VOCABULARY, (20_000, 60))
    catalogues.put("items", build_catalogue(np.concatenate([ways, rest], axis=1).astype(np.int32)))
    return ConstraintMaker(TOKENS, VOCABULARY, [VOCABULARY - 1], catalogues=catalogues)


def _grammar() -> Constraint:
    return _maker().of(Regex(GRAMMAR))


def _catalogue() -> Constraint:
    return _maker().of(FromCatalogue("items", end="item"))


def _ids(count: int, seed: int) -> I64:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count)
