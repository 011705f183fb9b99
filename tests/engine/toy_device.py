"""The toy model as a device that computes by itself, and engines on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from forkdecode.engine.core import Engine
from forkdecode.step import Draw, StepOutput, StepPlan
from tests.scheduler.engines import toy_engine
from tests.scheduler.toy import ToyRunner


class ToyDevice:
    """The toy model as a device that computes by itself. log: what is done, in order. waits: called before
    an answer. fails: which part of a step of that number raises, its launch or its answer.

    Steps run one after the other, when their answers are asked for; the tokens that a step takes from the
    one before are looked up then.
    """

    def __init__(self, model: ToyRunner, fails: dict[int, str] | None = None) -> None:
        self._model = model
        self._fails = fails or {}
        self.log: list[str] = []
        self.waits: Callable[[], object] = lambda: None
        self.goes_ahead = False
        self._drawn = np.empty(0, np.int64)

    def execute(self, plan: StepPlan) -> StepOutput:
        raise AssertionError("a device is launched")

    def launch(self, plan: StepPlan) -> Callable[[], StepOutput]:
        self._fail(plan, "launch")
        self.log.append(f"launch {plan.step}")
        self.goes_ahead = all(map(_one_each, plan.selections))

        def answer() -> StepOutput:
            self.waits()
            self._fail(plan, "answer")
            self.log.append(f"answer {plan.step}")
            output = self._model.execute(self._with_tokens(plan))
            self._drawn = self._tokens_of(output, plan)
            return output

        return answer

    def _with_tokens(self, plan: StepPlan) -> StepPlan:
        if plan.token_source is None:
            return plan
        return replace(plan, token_ids=self._drawn[plan.token_source], token_source=None)

    def _tokens_of(self, output: StepOutput, plan: StepPlan) -> np.ndarray:
        """[M] What each row of the logits has drawn, 0 where it has drawn nothing."""
        drawn = np.zeros(len(plan.logits_index), np.int64)
        for asked, result in zip(plan.selections, output.results, strict=True):
            if isinstance(asked.choice, Draw):
                drawn[asked.logits_start + result.rows] = result.tokens
        return drawn

    def _fail(self, plan: StepPlan, part: str) -> None:
        if self._fails.get(plan.step) == part:
            raise RuntimeError(f"no {part}")


def _one_each(asked: Any) -> bool:
    return isinstance(asked.choice, Draw) and len(asked.choice.source) == asked.rows


def device_engine(fails: dict[int, str] | None = None, **config: Any) -> tuple[Engine, ToyDevice]:
    plain = toy_engine(**config)
    device = ToyDevice(plain._runner, fails)  # type: ignore[arg-type]
    return Engine(plain.scheduler, device, device=device), device
