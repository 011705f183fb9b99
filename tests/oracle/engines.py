"""One model twice: in an engine, and untouched for transformers; and what is asked of both."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from forkdecode import LLM, Beam, DecodeResult, Greedy, GroupFailedError, Options
from forkdecode.step import F32
from tests.oracle.beam_rule import Hypothesis, Path, Rule, Scores, Search, beam_search
from tests.oracle.logits_rules import processed


@dataclass(frozen=True)
class Case:
    """One request. ends: every EOS and stop id that ends a candidate."""

    prompt: tuple[int, ...]
    beam: Beam
    options: Options
    ends: frozenset[int] = frozenset()
    greedy: bool = False

    @property
    def rule(self) -> Rule:
        return Rule.of(self.beam, self.options.max_tokens)


@dataclass(frozen=True)
class Pair:
    """engine: forkdecode on a copy of the model. oracle: the model as transformers made it."""

    engine: LLM
    oracle: PreTrainedModel
    eos: frozenset[int] = field(default_factory=frozenset)

    def ends(self, options: Options) -> frozenset[int]:
        """The ids that end a candidate under `options`."""
        return (frozenset() if options.ignore_eos else self.eos) | frozenset(options.stop_token_ids)

    def decode(self, cases: Sequence[Case]) -> list[DecodeResult | GroupFailedError]:
        """All cases in one batch; a group that fails does so alone."""
        handles = [
            self.engine.submit(list(c.prompt), Greedy() if c.greedy else c.beam, options=c.options)
            for c in cases
        ]
        results: list[DecodeResult | GroupFailedError] = []
        for handle in handles:
            try:
                results.append(handle.result())
            except GroupFailedError as error:
                results.append(error)
        return results

    def reference(self, case: Case, ends: Callable[[Path], bool] | None = None) -> Search:
        """The plain rule on the oracle's logits, recomputed from scratch at each step."""
        scores = model_scores(self.oracle, case.prompt, case.options, case.ends, greedy=case.rule.greedy)
        return beam_search(case.rule, scores, ends or (lambda path: path[-1] in case.ends))


@contextmanager
def paired(
    model: PreTrainedModel, eos: Collection[int] = (), tokenizer: Any | None = None, **config: Any
) -> Iterator[Pair]:
    """Both from `model`, which the engine changes in place."""
    oracle = copy.deepcopy(model)
    oracle.generation_config.eos_token_id = None
    model.generation_config.eos_token_id = sorted(eos) or None
    settings = {"num_blocks": 8192, "swap_memory": 0, "threads": 1, **config}
    with LLM(model, tokenizer=tokenizer, **settings) as engine:
        assert set(engine.info.eos_ids) == set(eos)
        yield Pair(engine, oracle, frozenset(eos))


def hypotheses(result: DecodeResult | GroupFailedError) -> list[Hypothesis]:
    """The engine's answer; none where no continuation was legal. Greedy search is scored as a beam."""
    if isinstance(result, GroupFailedError):
        assert "no legal token" in str(result), result
        return []
    if isinstance(result.strategy, Greedy):
        best = result.candidates[0]
        total, count = np.float32(best.selection_logprob), len(best.token_ids)
        return [Hypothesis(best.token_ids, Rule.of(Beam(width=1), count).score(total, count))]
    return [Hypothesis(c.token_ids, c.score) for c in result.candidates]


def model_scores(
    model: PreTrainedModel, prompt: Sequence[int], options: Options, ends: Collection[int], *, greedy: bool
) -> Scores:
    """Full forward passes. Beams process log-probabilities and don't normalise them again; greedy search
    processes logits."""

    @torch.inference_mode()
    def scores(paths: Sequence[Path]) -> F32:
        ids = torch.tensor([[*prompt, *path] for path in paths])
        logits = model(ids, use_cache=False).logits[:, -1].float()
        rows = logits if greedy else logits.log_softmax(-1)
        done = np.stack(
            [processed(r.numpy(), prompt, p, options, ends) for r, p in zip(rows, paths, strict=True)]
        )
        return torch.from_numpy(done).log_softmax(-1).nan_to_num(nan=-np.inf).numpy() if greedy else done

    return scores
