"""A whole engine whose steps run by graphs, as on a GPU; on a CPU stand-ins are captured in their place."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from transformers import PreTrainedModel

from forkdecode import LLM, Beam, Sample
from forkdecode.engine import start
from forkdecode.model.graphed import GraphedDecoder
from forkdecode.model.info import ModelInfo
from forkdecode.model.runner import Runner
from forkdecode.model.runner_settings import RunnerSettings
from tests.llm.models import PROMPT, TOKENIZER, tiny_llama
from tests.model.test_node_plans import Recorder

SETTINGS: dict[str, Any] = {"num_blocks": 64, "max_step_tokens": 16, "max_prefill_tokens": 8, "threads": 1}


class GraphedRunner(Runner):
    """Takes its attention from node lists, and its steps from what is recorded."""

    def __init__(
        self, model: PreTrainedModel, info: ModelInfo, settings: RunnerSettings, *sizes: int
    ) -> None:
        from_nodes = dataclasses.replace(settings, decoder="generic", attention="nodes")
        super().__init__(model, info, from_nodes, *sizes)

    def _graphs(self) -> GraphedDecoder:
        assert self._planners is not None
        return GraphedDecoder(self._decoder, self.cache, self._windows, self._planners, Recorder())


def decoded() -> tuple[list[list[tuple[int, ...]]], list[int]]:
    """Tokens of requests that arrive together; steps, graphs captured for them, and steps run by graphs."""
    with LLM(tiny_llama(), tokenizer=TOKENIZER, **SETTINGS) as llm:
        engine: Any = llm._session.engine.thread._loop._engine
        graphs = engine._runner._graphed
        recorder = Recorder() if graphs is None else graphs._capture
        captured, replayed = recorder.captured, recorder.replayed
        strategies = (Beam(width=3), Sample(n=4, seed=3))
        handles = [llm.submit(PROMPT + "!" * i, s, max_tokens=5) for i, s in enumerate(strategies)]
        tokens = [[c.token_ids for c in handle.result().candidates] for handle in handles]
        counts = [llm.stats().steps, recorder.captured - captured, recorder.replayed - replayed]
    return tokens, counts


def test_every_step_runs_by_a_graph_that_was_there_before(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = decoded()
    monkeypatch.setattr(start, "Runner", GraphedRunner)
    tokens, (steps, captured, replayed) = decoded()
    assert tokens == plain
    assert (captured, replayed) == (0, steps)


def test_new_weights_are_captured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def tokens(llm: LLM) -> tuple[int, ...]:
        return llm.decode(PROMPT, Beam(width=3), max_tokens=5).candidates[0].token_ids

    with LLM(tiny_llama(seed=1), tokenizer=TOKENIZER, **SETTINGS) as llm:
        expected = tokens(llm)
    monkeypatch.setattr(start, "Runner", GraphedRunner)
    with LLM(tiny_llama(seed=0), tokenizer=TOKENIZER, **SETTINGS) as llm:
        updates: Any = llm._session.engine.weights
        updates._prepare = dataclasses.replace(updates._prepare, decoder="generic")
        assert tokens(llm) != expected
        llm.update_weights(tiny_llama(seed=1).state_dict())
        recorder = llm._session.engine.thread._loop._engine._runner._graphed._capture  # type: ignore[union-attr]
        assert tokens(llm) == expected
        captured = recorder.captured
        assert captured
        assert tokens(llm) == expected
        assert (recorder.captured, recorder.replayed > captured) == (captured, True)
