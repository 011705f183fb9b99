"""A model without weights: it answers a step's selections at once for all groups, in numpy.

Sampling needs nothing of a model but tokens. What beams share depends on how peaked the model is: each
row is given a ladder of log-probabilities at random, from a table made once. Equal for equal seeds.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from forkdecode.step import F32, I32, I64, Draw, SelectionRequest, SelectionResult, StepOutput, StepPlan, TopK

LADDERS, VOCABULARY, BLOCK = 1024, 2048, 1 << 16


def ladders(sharpness: float, length: int, rng: np.random.Generator) -> F32:
    """[LADDERS, length] the best log-probabilities of as many softmaxes, best first. Logits are normal
    with a standard deviation of `sharpness` times a log-normal factor: text has steps that leave no
    doubt and steps that leave everything open."""
    spread = sharpness * np.exp(0.5 * rng.standard_normal((LADDERS, 1)))
    logits = spread * rng.standard_normal((LADDERS, VOCABULARY))
    logits -= np.logaddexp.reduce(logits, axis=1, keepdims=True)
    best: F32 = np.sort(logits, axis=1)[:, : -length - 1 : -1].astype(np.float32)
    return best


class FakeModel:
    """Answers plans of groups of up to `width` rows; beams ask for 2 * width candidates at most.
    sharpness: see `ladders`."""

    def __init__(self, width: int, sharpness: float, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._ladders = ladders(sharpness, 2 * width, self._rng)
        self._random = self._rng.integers(0, VOCABULARY, 2 * BLOCK)
        self._at = 0
        self._zeros = np.zeros(BLOCK, np.float32)

    def execute(self, plan: StepPlan) -> StepOutput:
        results: dict[int, SelectionResult] = {}
        beams: dict[tuple[int, int], list[SelectionRequest]] = defaultdict(list)
        for request in plan.selections:
            choice = request.choice
            if isinstance(choice, Draw):
                results[request.group_id] = self._draw(request.group_id, choice)
            elif isinstance(choice, TopK):
                beams[request.rows, choice.k].append(request)
            else:
                raise TypeError(f"no simulation of {type(choice).__name__}")
        for (rows, k), requests in beams.items():
            self._best(rows, k, requests, results)
        return StepOutput(plan.step, tuple(results[s.group_id] for s in plan.selections))

    def _draw(self, group: int, draw: Draw) -> SelectionResult:
        count = len(draw.source)
        self._at = (self._at + count) % BLOCK
        zeros = self._zeros[:count]
        return SelectionResult(
            group, draw.source, self._random[self._at : self._at + count], zeros, zeros, zeros
        )

    def _best(
        self, rows: int, k: int, requests: list[SelectionRequest], results: dict[int, SelectionResult]
    ) -> None:
        """The k best of R rows with k candidates each, for all groups of this shape."""
        base = np.stack([r.choice.base for r in requests if isinstance(r.choice, TopK)])
        order, scores, logprobs = self._ranked(base, k)
        parents: I32 = (order // k).astype(np.int32)
        columns = zip(requests, parents, order % k, logprobs, scores, strict=True)
        for request, parent, token, logprob, score in columns:
            group = request.group_id
            results[group] = SelectionResult(group, parent, token, logprob, logprob, score)

    def beam_step(self, base: F32, width: int) -> tuple[I32, F32]:
        """Parents [groups, width] and scores of the next rows of beams that no stop ends."""
        k = 2 * width
        order, scores, _ = self._ranked(base, k)
        parents: I32 = (order[:, :width] // k).astype(np.int32)
        return parents, scores[:, :width]

    def _ranked(self, base: F32, k: int) -> tuple[I64, F32, F32]:
        """base [G, R] -> of each group's R * k candidates the k best, their scores and log-probabilities."""
        groups, rows = base.shape
        drawn = self._ladders[self._rng.integers(0, LADDERS, base.shape), :k]
        scores = (base[:, :, None] + drawn).reshape(groups, rows * k)
        order = best_first(scores, k)
        logprobs = np.take_along_axis(drawn.reshape(scores.shape), order, 1)
        return order, np.take_along_axis(scores, order, 1), logprobs


def best_first(scores: F32, k: int) -> I64:
    """[G, N], none above 0 -> [G, k] places of the best, best first, of equals the earlier: as a stable sort
    has it, but in a third of the time. The bits of numbers from 0 on are in their order, so these and the
    place make one number each, and no two are equal."""
    keys = np.abs(scores).view(np.int32).astype(np.int64) << 32 | np.arange(scores.shape[1])
    if k < keys.shape[1]:
        keys = np.partition(keys, k - 1, axis=1)[:, :k]
    keys.sort(axis=1)
    return keys & 0xFFFFFFFF


def forked_share(width: int, sharpness: float, steps: int = 200, groups: int = 32) -> float:
    """Of a beam's rows, how many leave their parent's place in a step: of c children c - 1 do."""
    model = FakeModel(width, sharpness, seed=5)
    base = np.zeros((groups, width), np.float32)
    forked = 0
    for _ in range(steps):
        parents, base = model.beam_step(base, width)
        forked += width * groups - sum(len(np.unique(p)) for p in parents)
    return forked / (width * groups * steps)
