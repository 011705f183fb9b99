"""New weights under a running engine: what comes after is a new LLM's, what was before ends as it began."""

from __future__ import annotations

import asyncio
import copy
import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import PreTrainedModel

from forkdecode import (
    LLM,
    AsyncLLM,
    Beam,
    CancelledError,
    DecodeResult,
    EngineClosedError,
    Greedy,
    InvalidRequestError,
    ModelLoadError,
)
from forkdecode.model.runner import Runner
from tests.llm.models import PROMPT, STRATEGIES, TOKENIZER, VOCAB, opened, outcome, tiny_llama

SETTINGS: dict[str, Any] = {"tokenizer": TOKENIZER, "num_blocks": 256, "threads": 1}


def all_results(llm: LLM) -> list[Any]:
    """Of every strategy, and of scores: all that must be equal bit for bit."""
    found: list[Any] = [outcome(llm.decode(PROMPT, s, max_tokens=12)) for s in STRATEGIES.values()]
    return [*found, scored(llm, PROMPT)]


def scored(llm: LLM, prompt: Any) -> list[Any]:
    return [answer.logprobs for answer in llm.score(prompt, [" hello", " world of"]).continuations]


@cache
def of_new(seed: int, call: Callable[[LLM], Any] = all_results, dtype: str = "auto", **config: Any) -> Any:
    with opened(tiny_llama(seed=seed, **config), dtype=dtype) as llm:
        return call(llm)


def one_beam(llm: LLM) -> list[tuple[Any, ...]]:
    return outcome(llm.decode(PROMPT, Beam(width=3), max_tokens=8))


class Held:
    """A request whose first step lasts until it is let go: what is sent meanwhile waits in the inbox."""

    def __init__(self, llm: LLM) -> None:
        self._gate = threading.Event()
        self._inbox = llm._session.engine.thread._loop.inbox
        self.handle = llm.submit(PROMPT, prefix_allowed_tokens_fn=self._allowed, max_tokens=8)

    def _allowed(self, number: int, tokens: Any) -> list[int]:
        assert self._gate.wait(120)
        return list(range(len(VOCAB)))

    def wait_for(self, commands: int) -> None:
        deadline = time.monotonic() + 60
        while self._inbox.qsize() < commands:
            assert time.monotonic() < deadline
            time.sleep(0)

    def tokens(self) -> tuple[int, ...]:
        self._gate.set()
        return self.handle.result(timeout=60).candidates[0].token_ids

    def let_go(self) -> None:
        self._gate.set()


def eight(llm: LLM) -> tuple[int, ...]:
    return llm.decode(PROMPT, max_tokens=8).candidates[0].token_ids


def folder_of(model: PreTrainedModel, path: Path) -> Path:
    model.save_pretrained(path)
    return path


@pytest.mark.parametrize("kind", ["mapping", "model", "folder", "name"])
def test_results_are_those_of_a_new_llm(kind: str, tmp_path: Path) -> None:
    policy = tiny_llama(seed=1)
    folder = folder_of(policy, tmp_path / "policy")
    weights = {"mapping": policy.state_dict(), "model": policy, "folder": folder, "name": str(folder)}[kind]
    with opened(tiny_llama(seed=0)) as llm:
        assert all_results(llm) == of_new(0)
        llm.update_weights(weights)
        assert all_results(llm) == of_new(1)
        llm.update_weights(tiny_llama(seed=0))
        assert all_results(llm) == of_new(0)


def test_a_mappings_tensors_are_copied_and_stay_as_they_are() -> None:
    policy = tiny_llama(seed=1).train().requires_grad_(True)
    before = copy.deepcopy(policy.state_dict())
    with opened(tiny_llama(seed=0)) as llm:
        llm.update_weights(policy.state_dict())
        found = one_beam(llm)
        assert found == of_new(1, one_beam)
        assert policy.training
        assert all(each.requires_grad for each in policy.parameters())
        assert all(torch.equal(before[name], each) for name, each in policy.state_dict().items())
        with torch.no_grad():
            for each in policy.parameters():
                each.zero_()
        assert one_beam(llm) == found


def test_numbers_become_the_engines_dtype() -> None:
    with opened(tiny_llama(seed=0), dtype="bfloat16") as llm:
        for weights in (tiny_llama(seed=1).state_dict(), tiny_llama(seed=1)):
            llm.update_weights(tiny_llama(seed=2))
            llm.update_weights(weights)
            assert all_results(llm) == of_new(1, dtype="bfloat16") != of_new(1)
        assert llm.info.dtype == "bfloat16"


def test_of_tied_weights_one_name_is_enough() -> None:
    policy = tiny_llama(seed=1, tie_word_embeddings=True)
    state = policy.state_dict()
    assert {"lm_head.weight", "model.embed_tokens.weight"} <= set(state)
    with opened(tiny_llama(seed=0, tie_word_embeddings=True)) as llm:
        for name in ("lm_head.weight", "model.embed_tokens.weight"):
            llm.update_weights(tiny_llama(seed=2, tie_word_embeddings=True))
            llm.update_weights({key: value for key, value in state.items() if key != name})
            assert one_beam(llm) == of_new(1, one_beam, tie_word_embeddings=True)
        with pytest.raises(InvalidRequestError, match=r"lm_head\.weight.* differ"):
            llm.update_weights({**state, "lm_head.weight": state["lm_head.weight"] + 1})
        assert one_beam(llm) == of_new(1, one_beam, tie_word_embeddings=True)


def test_a_cached_prefix_is_computed_again() -> None:
    def cached(result: DecodeResult) -> int:
        return result.usage.cached_tokens

    with opened(tiny_llama(seed=0), block_size=4) as llm:
        llm.decode(PROMPT, max_tokens=8)
        assert cached(llm.decode(PROMPT, max_tokens=8)) > 0
        llm.update_weights(tiny_llama(seed=1).state_dict())
        assert llm.stats().cached_blocks == 0
        assert cached(llm.decode(PROMPT, max_tokens=8)) == 0
        assert cached(llm.decode(PROMPT, max_tokens=8)) > 0


def test_nodes_of_trees_stay_and_go_on_under_the_new_weights() -> None:
    with opened(tiny_llama(seed=0), block_size=4) as llm, llm.tree(PROMPT, seed=3) as tree:
        (first,) = tree.decode(tree.root, Greedy(), max_tokens=9)
        before, path = first.cumulative_logprob, [*llm.tokenize(PROMPT), *first.token_ids]
        llm.update_weights(tiny_llama(seed=1).state_dict())
        assert llm.stats().held_nodes > 0
        assert (first.cumulative_logprob, list(first.token_ids)) == (before, path[-len(first.token_ids) :])
        for _ in range(2):  # computed anew, then held
            found = tree.score(first, [" hello", " world of"])
            assert [answer.logprobs for answer in found] == of_new(1, lambda new: scored(new, path))
            (more,) = tree.decode(first, Greedy(), max_tokens=7)
            assert (
                more.token_ids
                == of_new(1, lambda new: new.decode(path, max_tokens=7)).candidates[0].token_ids
            )


def test_what_runs_ends_with_the_old_weights_and_what_comes_waits_for_the_new() -> None:
    with opened(tiny_llama(seed=0)) as llm, ThreadPoolExecutor() as threads:
        running = Held(llm)
        update = threads.submit(llm.update_weights, tiny_llama(seed=1).state_dict())
        running.wait_for(1)
        waiting = [llm.submit(PROMPT, Beam(width=3), max_tokens=8) for _ in range(2)]
        assert running.tokens() == of_new(0, eight) != of_new(1, eight)
        update.result(timeout=60)
        assert [outcome(handle.result(timeout=60)) for handle in waiting] == [of_new(1, one_beam)] * 2


def test_what_waits_behind_an_update_can_be_cancelled() -> None:
    with opened(tiny_llama(seed=0)) as llm, ThreadPoolExecutor() as threads:
        running = Held(llm)
        update = threads.submit(llm.update_weights, tiny_llama(seed=1))
        running.wait_for(1)
        waiting, kept = (llm.submit(PROMPT, Beam(width=3), max_tokens=8) for _ in range(2))
        waiting.cancel()
        running.handle.cancel()
        running.let_go()
        with pytest.raises(CancelledError) as caught:
            waiting.result(timeout=60)
        assert caught.value.partial is not None
        with pytest.raises(CancelledError):
            running.handle.result(timeout=60)
        update.result(timeout=60)
        assert outcome(kept.result(timeout=60)) == of_new(1, one_beam)


def test_a_tree_is_told_in_order_behind_an_update() -> None:
    with (
        opened(tiny_llama(seed=0), block_size=4) as llm,
        ThreadPoolExecutor() as threads,
        llm.tree(PROMPT, seed=1) as tree,
    ):
        (first,) = tree.decode(tree.root, Greedy(), max_tokens=6)
        running = Held(llm)
        update = threads.submit(llm.update_weights, tiny_llama(seed=1))
        running.wait_for(1)
        child = tree.fork(first)
        grown = threads.submit(tree.decode, child, Greedy(), max_tokens=6)
        running.wait_for(3)
        assert running.tokens() == of_new(0, eight)
        (node,) = grown.result(timeout=60)
        update.result(timeout=60)
        path = [*llm.tokenize(PROMPT), *first.token_ids]
        assert node.token_ids == llm.decode(path, max_tokens=6).candidates[0].token_ids


def test_an_engine_that_is_closed_leaves_nobody_waiting() -> None:
    with ThreadPoolExecutor() as threads:
        llm = LLM(tiny_llama(seed=0), **SETTINGS)
        running = Held(llm)
        updates = [threads.submit(llm.update_weights, tiny_llama(seed=1)) for _ in range(2)]
        running.wait_for(1)
        waiting = llm.submit(PROMPT)
        closing = threads.submit(llm.close)
        running.wait_for(3)
        running.let_go()
        closing.result(timeout=60)
        for call in (running.handle.result, waiting.result, *(update.result for update in updates)):
            with pytest.raises(EngineClosedError):
                call(timeout=60)
        with pytest.raises(EngineClosedError):
            llm.update_weights(tiny_llama(seed=1))


def wrong_weights() -> dict[str, tuple[Any, str]]:
    state = tiny_llama(seed=1).state_dict()
    head = "lm_head.weight"
    taken = tiny_llama(seed=1)
    taken.forkdecode_taken = True  # type: ignore[assignment]
    return {
        "a name is missing": ({k: v for k, v in state.items() if k != head}, r"lack lm_head\.weight"),
        "a name too much": ({**state, "more": state[head]}, "have no place for 'more'"),
        "nothing": ({}, "lack "),
        "a shape": ({**state, head: state[head].T}, r"lm_head\.weight is 32x264 instead of 264x32"),
        "integers": ({**state, head: state[head].long()}, r"lm_head\.weight is int64 instead of float32"),
        "8-bit floats": ({**state, head: state[head].to(torch.float8_e4m3fn)}, "is float8_e4m3fn instead"),
        "no tensor": ({**state, head: [1.0]}, "is no tensor"),
        "no memory": ({**state, head: state[head].to("meta")}, "is no plain tensor"),
        "sparse": ({**state, head: state[head].to_sparse()}, "is no plain tensor"),
        "NaN": ({**state, head: state[head] * float("nan")}, r"lm_head\.weight has NaN"),
        "layers": (tiny_llama(seed=1, num_hidden_layers=1), r"lack model\.layers\.1"),
        "vocabulary": (tiny_llama(seed=1, vocab_size=265), "264x32"),
        "positions": (tiny_llama(seed=1, max_position_embeddings=256), "max_positions: 512 is out of range"),
        "a model that was taken": (taken, "has taken this one"),
        "a number": (3, "3 is none"),
        "no folder": ("/no/such/folder", "no file or folder"),
    }


@pytest.mark.parametrize("what", sorted(wrong_weights()))
def test_wrong_weights_are_refused_by_name_and_the_old_ones_serve_on(what: str) -> None:
    weights, message = wrong_weights()[what]
    with opened(tiny_llama(seed=0), block_size=4) as llm:
        before = one_beam(llm), scored(llm, PROMPT)
        with pytest.raises((InvalidRequestError, ModelLoadError), match=message):
            llm.update_weights(weights)
        cached = llm.decode(PROMPT, max_tokens=8).usage.cached_tokens
        assert cached > 0
        assert (one_beam(llm), scored(llm, PROMPT)) == before


def test_what_the_engine_knows_of_a_model_stays_as_it_is() -> None:
    other = tiny_llama(seed=1)
    other.generation_config.eos_token_id = 5
    with opened(tiny_llama(seed=0)) as llm:
        info = llm.info
        with pytest.raises(InvalidRequestError, match="eos_ids of their model"):
            llm.update_weights(other)
        llm.update_weights(tiny_llama(seed=1))
        assert llm.info == info


def test_a_model_whose_first_step_fails_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tiny_llama(seed=0)) as llm:
        before = one_beam(llm)

        def broken(runner: Runner) -> None:
            raise RuntimeError("no such layer")

        with monkeypatch.context() as patch:
            patch.setattr(Runner, "_warm_steps", broken)
            with pytest.raises(ModelLoadError, match="no such layer"):
                llm.update_weights(tiny_llama(seed=1))
        assert one_beam(llm) == before
        llm.update_weights(tiny_llama(seed=1))
        assert one_beam(llm) == of_new(1, one_beam)


def test_many_updates_keep_nothing() -> None:
    states = [tiny_llama(seed=seed, hidden_size=256).state_dict() for seed in range(2)]
    size = sum(each.nbytes for each in states[0].values())
    with opened(tiny_llama(seed=0, hidden_size=256)) as llm:

        def updated(times: int) -> tuple[int, int, int]:
            for i in range(times):
                llm.update_weights(states[i % 2])
                llm.decode(PROMPT, max_tokens=2)
            gc.collect()
            tensors = sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())
            return threading.active_count(), tensors, psutil.Process().memory_info().rss

        first, last = updated(6), updated(24)
        assert last[:2] == first[:2]
        assert last[2] - first[2] < 4 * size


def test_callers_in_many_threads_get_results_of_one_model_each() -> None:
    expected = [of_new(seed, one_beam) for seed in range(3)]
    states = [tiny_llama(seed=seed).state_dict() for seed in range(3)]
    with opened(tiny_llama(seed=0)) as llm, ThreadPoolExecutor(8) as threads:

        def update(seed: int) -> None:
            for _ in range(4):
                llm.update_weights(states[seed])

        updates = [threads.submit(update, seed) for seed in (1, 2)]
        found = [threads.submit(one_beam, llm) for _ in range(60)]
        assert all(each.result(timeout=120) in expected for each in found)
        for each in updates:
            each.result(timeout=120)
        llm.update_weights(states[0])
        assert one_beam(llm) == expected[0]


def test_async_rounds() -> None:
    async def rounds() -> list[Any]:
        async with await AsyncLLM.create(tiny_llama(seed=0), **SETTINGS) as llm:
            found = []
            for seed in (1, 2):
                await llm.update_weights(tiny_llama(seed=seed).state_dict())
                beams = [llm.decode(PROMPT, Beam(width=3), max_tokens=8) for _ in range(3)]
                found += [outcome(result) for result in await asyncio.gather(*beams)]
            with pytest.raises(InvalidRequestError, match="lack"):
                await llm.update_weights({})
            return found

    assert asyncio.run(rounds()) == [of_new(1, one_beam)] * 3 + [of_new(2, one_beam)] * 3
