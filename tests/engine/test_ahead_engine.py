"""A whole engine that launches steps ahead, as on a GPU: tokens come from what the step before drew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from forkdecode import LLM, Greedy, Sample
from forkdecode.engine import start
from forkdecode.engine.core import Engine
from forkdecode.model import selecting
from forkdecode.model.info import ModelInfo
from forkdecode.model.runner import Runner
from forkdecode.model.runner_settings import RunnerSettings
from forkdecode.sampling.device.select import Selecting
from forkdecode.sampling.select import begin
from forkdecode.step import Draw, StepOutput, StepPlan
from tests.engine.test_graphed_engine import SETTINGS, GraphedRunner
from tests.llm.models import PROMPT, TOKENIZER, tiny_llama


def begin_and_keep(logits: torch.Tensor, requests: Any) -> Selecting:
    """What a GPU's selections leave there, for a CPU's."""
    results = begin(logits, requests).results()
    drawn = torch.full((len(logits),), -1)
    for asked, result in zip(requests, results, strict=True):
        if not isinstance(asked.choice, Draw) or len(asked.choice.source) != asked.rows:
            return Selecting(lambda: results)
        drawn[asked.logits_start + result.rows.astype(np.int64)] = torch.from_numpy(result.tokens)
    return Selecting(lambda: results, drawn)


class AheadRunner(Runner):
    """sources: for each step, whether its tokens came from the one before."""

    def launch(self, plan: StepPlan) -> Callable[[], StepOutput]:
        self.sources = [*getattr(self, "sources", []), plan.token_source is not None]
        if plan.token_source is not None:
            assert not plan.token_ids.any()
        return super().launch(plan)


class FromNodes(AheadRunner):
    def __init__(
        self, model: PreTrainedModel, info: ModelInfo, settings: RunnerSettings, *sizes: int
    ) -> None:
        from_nodes = replace(settings, decoder="generic", attention="nodes")
        super().__init__(model, info, from_nodes, *sizes)


class FromGraphs(AheadRunner, GraphedRunner):
    pass


def decoded() -> tuple[Any, list[bool]]:
    """Tokens and log-probabilities of requests that arrive together."""
    with LLM(tiny_llama(), tokenizer=TOKENIZER, **SETTINGS) as llm:
        runner: Any = llm._session.engine.thread._loop._engine._runner
        strategies = (Greedy(), Sample(n=4, seed=3), Sample(n=2, seed=5, top_k=9, temperature=1.7))
        handles = [
            llm.submit(PROMPT + "!" * i, s, max_tokens=9, logprobs=2) for i, s in enumerate(strategies)
        ]
        found = [[(c.token_ids, c.logprobs) for c in handle.result().candidates] for handle in handles]
        return found, getattr(runner, "sources", [])


@pytest.mark.parametrize("kind", [AheadRunner, FromNodes, FromGraphs])
def test_the_same_is_decoded(kind: type[AheadRunner], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "Runner", kind)
    plain, sources = decoded()
    assert not any(sources)
    monkeypatch.setattr(selecting, "begin", begin_and_keep)
    monkeypatch.setattr(
        start, "Engine", lambda scheduler, runner, *_: Engine(scheduler, runner, device=runner)
    )
    ahead, sources = decoded()
    assert ahead == plain
    assert sum(sources) > 5


def test_who_kept_nothing_is_not_asked_to_go_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "Runner", AheadRunner)
    monkeypatch.setattr(
        start, "Engine", lambda scheduler, runner, *_: Engine(scheduler, runner, device=runner)
    )
    plain, sources = decoded()
    assert plain
    assert not any(sources)  # a CPU's selections are kept nowhere, and the engine asks first
