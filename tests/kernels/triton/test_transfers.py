"""Selections on a device, on CPU tensors: what comes out is the CPU's, and a step copies once there and once
back, whatever its groups ask for.

What would be a copy between host and GPU, or wait for it, is counted where torch is asked for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from forkdecode.allowed import Allowed, AllowedBits, AllowedLists, Ready
from forkdecode.sampling.device.select import select_on_device
from forkdecode.sampling.select import select
from forkdecode.step import (
    Choice,
    Draw,
    FinishMask,
    Gather,
    GumbelTopK,
    ProcessorSpec,
    RowTopK,
    SelectionRequest,
    SelectionResult,
    TopK,
)
from forkdecode_kernels.triton import filtered_draw

THERE = {"to", "cuda", "copy_", "tensor", "as_tensor"}
BACK = {"cpu", "item", "tolist", "__bool__", "__int__", "__float__", "__index__"}
WAITS = {"nonzero", "unique", "masked_select", "argwhere"}
VOCAB = 90
BASE = np.array([0.0, -0.5], np.float32)
NO_IDS = np.empty(0, np.int64)


class Copies(TorchFunctionMode):
    """Counts what moves or waits. A tensor that .cpu() has brought is on the host: to read it is free."""

    def __init__(self) -> None:
        super().__init__()
        self.there = self.back = 0
        self.names: Counter[str] = Counter()
        self._here: set[int] = set()
        self._kept: list[torch.Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        result = func(*args, **(kwargs or {}))
        by_bools = name in ("__getitem__", "__setitem__") and _is_bools(args[1])
        if name in THERE and not _only_a_type(name, args, kwargs):
            self.there += 1
            self.names[name] += 1
        elif (name in BACK and id(args[0]) not in self._here) or name in WAITS or by_bools:
            self.back += 1
            self.names[name] += 1
            if isinstance(result, torch.Tensor):
                self._here.add(id(result))
                self._kept.append(result)  # so that its id stays its own
        return result


def _is_bools(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(i, torch.Tensor) and i.dtype == torch.bool for i in parts)


def _only_a_type(name: str, args: Any, kwargs: Any) -> bool:
    where = [*args[1:], *(kwargs or {}).values()]
    return name == "to" and not any(isinstance(a, torch.device | torch.Tensor | str) for a in where)


def request(group: int, choice: Choice, **more: Any) -> SelectionRequest:
    """A group of the two rows 2 * group and 2 * group + 1, each with three generated tokens."""
    made = np.array([[5, 6, 5], [7, 6, 5]]) if more.pop("history", False) else None
    processors, prompt = more.pop("processors", ProcessorSpec()), np.array([4, 5, 6, 80, 200])
    return SelectionRequest(group, 2 * group, 2, choice, processors, prompt, made, 3, **more)


def draw(**settings: float) -> Draw:
    return Draw(np.array([1, 0, 1], np.int32), np.arange(3, dtype=np.uint64), 3, **settings)


def perturbed(**settings: float) -> GumbelTopK:
    first = np.array([-0.4, -1.0])
    return GumbelTopK(3, first, first + 0.1, np.arange(2, dtype=np.uint64), 3, **settings)


CHOICES: dict[str, Choice] = {
    "draw": draw(temperature=0.7, top_p=0.9),
    "greedy": draw(temperature=0.0),
    "typical": draw(typical_p=0.8),
    "beam": TopK(4, BASE, 2),
    "rows": RowTopK(3, BASE),
    "many of a row": RowTopK(60, BASE),
    "perturbed": perturbed(top_k=20),
    "named": Gather(np.array([0, 0, 1], np.int32), np.array([5, 7, 89])),
}
PROCESSORS = {
    "bias and penalties": ProcessorSpec(
        bias_ids=np.array([3, 50]), bias_values=np.array([4, -2], np.float32), repetition_penalty=1.3,
        presence_penalty=0.2, frequency_penalty=0.4,
    ),
    "bans": ProcessorSpec(
        no_repeat_ngram_size=2, bad_words=((8,), (6, 5, 9), (5, 11)), min_tokens=9,
        suppressed_ids=np.array([0, 1]), allowed_token_ids=np.arange(0, 80),
    ),
    "forced": ProcessorSpec(repetition_penalty=1.1, forced_prefix=(1, 2, 3, 17)),
}  # fmt: skip


def allowed_forms() -> dict[str, Allowed]:
    words = np.random.default_rng(3).integers(0, 2**32, (2, 3), dtype=np.uint64).astype(np.uint32)
    tokens = np.array([2, 9, 40, 88, 3, 9], np.int32)
    start, stop = np.array([0, 4]), np.array([4, 6])
    ends = np.array([False, True, False, False, True, False])
    beside = np.array([True, False]), np.array([0, 1])
    return {
        "bits": AllowedBits(words),
        "lists": AllowedLists(tokens, start, stop),
        "lists that end": AllowedLists(tokens, start, stop, ends, *beside),
    }


def everything() -> list[SelectionRequest]:
    """Every kind of choice: as it is, with top lists, processed, constrained; and groups that fail."""
    kinds = list(CHOICES.values())
    made = [(c, {}) for c in kinds]
    made += [(c, {"num_logprobs": k}) for c, k in zip(kinds, [2, 0, 3, 2, 1, 2, 2, 2], strict=True)]
    specs = list(PROCESSORS.values())
    made += [(c, {"processors": specs[i % 3], "history": True}) for i, c in enumerate(kinds)]
    made += [(kinds[3], {"processors": specs[i], "history": True, "num_logprobs": 2}) for i in range(3)]
    forms = list(allowed_forms().values())
    made += [(c, {"allowed": Ready(forms[i % 3])}) for i, c in enumerate(kinds)]
    made += [(kinds[0], {"allowed": Ready(form), "num_logprobs": 2}) for form in forms]
    made += [(kinds[4], {"allowed": Ready(forms[1]), "processors": specs[1], "history": True})]
    made += [(c, {}) for c in kinds if not isinstance(c, Draw)]  # rows of which one is at fault
    made += [(kinds[3], {"processors": ProcessorSpec(bias_ids=np.array([1]), bias_values=BASE[1:])})]
    return [request(i, choice, **more) for i, (choice, more) in enumerate(made)]


def logits_for(requests: list[SelectionRequest], faults: int = 0) -> torch.Tensor:
    """Of the last `faults` groups' second rows, one logit is NaN or +inf."""
    logits = torch.randn(2 * len(requests), VOCAB, generator=torch.Generator().manual_seed(1)) * 2
    logits[len(logits) - 2 * faults + 1 :: 2, 7] = torch.inf
    if faults:
        logits[-1, 7] = torch.nan
    return logits


def assert_alike(ours: SelectionResult, theirs: SelectionResult) -> None:
    assert (ours.error, ours.field, ours.group_id) == (theirs.error, theirs.field, theirs.group_id)
    for name in ("rows", "tokens"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    for name in ("rows", "tokens", "logprobs", "selection_logprobs", "scores"):
        assert getattr(ours, name).dtype == getattr(theirs, name).dtype, name
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=0, atol=3e-6)
    assert (ours.ended is None) == (theirs.ended is None)
    if ours.ended is not None:
        np.testing.assert_array_equal(ours.ended, theirs.ended)
    assert (ours.top is None) == (theirs.top is None)
    if ours.top is not None and theirs.top is not None:
        for name in ("raw_ids", "processed_ids"):
            np.testing.assert_array_equal(getattr(ours.top, name), getattr(theirs.top, name))
        for name in ("raw", "processed"):
            np.testing.assert_allclose(getattr(ours.top, name), getattr(theirs.top, name), rtol=0, atol=3e-6)


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> Iterator[None]:
    """The draws' kernels look at no more than there is."""
    whole = filtered_draw.filtered_draw
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filtered_draw, "filtered_draw", lambda *a, **k: whole(*a, chunk=128, **k))
        yield


@pytest.fixture(scope="module")
def step() -> tuple[list[SelectionRequest], torch.Tensor, tuple[SelectionResult, ...], Copies]:
    requests = everything()
    logits = logits_for(requests, faults=6)
    with Copies() as copies:
        found = select_on_device(logits, requests)
    return requests, logits, found, copies


def test_a_step_of_everything_copies_once_each_way(step: Any) -> None:
    copies = step[3]
    assert (copies.there, copies.back) == (1, 1), copies.names


def test_what_comes_out_is_the_cpus(step: Any) -> None:
    requests, logits, found, _ = step
    for asked, ours, theirs in zip(requests, found, select(logits, requests, threads=1), strict=True):
        try:
            assert_alike(ours, theirs)
        except AssertionError as error:
            raise AssertionError(f"{asked.group_id}: {asked.choice} {asked.processors}") from error


def test_a_group_hangs_on_nobody_beside_it(step: Any) -> None:
    requests, logits, found, _ = step
    for i in (0, 5, 17, 19, 30):
        assert_same(select_on_device(logits, [requests[i]])[0], found[i])


def assert_same(a: SelectionResult, b: SelectionResult) -> None:
    for name in ("rows", "tokens", "logprobs", "selection_logprobs", "scores"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def test_more_candidates_are_another_copy_each_way() -> None:
    """Half of the vocabulary finishes, so that the first four candidates are too few."""
    table = np.zeros((1, VOCAB), np.bool_)
    logits = logits_for([request(0, CHOICES["beam"])])
    table[0, logits.topk(20).indices.flatten().numpy()] = True
    choice = TopK(4, BASE, 2, FinishMask(table, np.zeros(2, np.int64)))
    asked = [request(0, choice)]
    with Copies() as copies:
        found = select_on_device(logits, asked)
    assert_alike(found[0], select(logits, asked, threads=1)[0])
    assert len(found[0].tokens) > 4
    assert copies.there == copies.back > 1


def test_one_wrong_group_fails_alone() -> None:
    wrong = ProcessorSpec(bias_ids=np.array([VOCAB]), bias_values=np.ones(1, np.float32))
    unfit = Ready(AllowedBits(np.ones((1, 3), np.uint32)))
    asked = [
        request(0, CHOICES["beam"]),
        request(1, CHOICES["beam"], processors=wrong),
        request(2, CHOICES["rows"], allowed=unfit),
        replace(request(3, CHOICES["named"]), rows=9),
    ]
    logits = logits_for(asked)
    found = select_on_device(logits, asked)
    theirs = select(logits, asked, threads=1)
    for i in (0, 1, 3):
        assert_alike(found[i], theirs[i])
    assert [r.error is None for r in found] == [True, False, False, False]
    assert found[2].error == "a mask of 2 rows of 90 bits can't be (1, 3)"


def test_the_count_sees_a_look_at_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from forkdecode.sampling.device import select as device

    whole = device.begun

    def with_a_look(jobs: Any, where: torch.device) -> Any:
        values = jobs[0][1].values
        assert bool((values < torch.inf).all())
        assert len(values[values > 0])
        return whole(jobs, where)

    monkeypatch.setattr(device, "begun", with_a_look)
    asked = [request(0, CHOICES["rows"])]
    with Copies() as copies:
        select_on_device(logits_for(asked), asked)
    assert copies.back == 3
