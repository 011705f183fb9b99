"""Replay: journals of what an engine really did replay clean, and say what happened."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from forkdecode import (
    LLM,
    Beam,
    BestOf,
    Contrastive,
    DiverseBeam,
    Greedy,
    LengthNormalised,
    Sample,
    StochasticBeam,
)
from forkdecode.constraint_types import FromCatalogue
from forkdecode.engine import start
from forkdecode.engine.core import Engine
from forkdecode.engine.replay import replay
from forkdecode.errors import CapacityError
from forkdecode.scheduler.request import DecodeRequest, NodeRef, Release, Share
from tests.constraints.toy import items_table, random_table
from tests.engine.journals import changed, journaled, records
from tests.engine.replays import broken, busy, nth
from tests.llm.models import TOKENIZER, tiny_llama
from tests.scheduler.engines import VOCAB, request, run

STRATEGIES = st.one_of(
    st.just(Greedy()),
    st.builds(Sample, n=st.integers(1, 4), seed=st.integers(0, 5)),
    st.builds(BestOf, best_of=st.just(4), n=st.integers(1, 4), seed=st.integers(0, 5)),
    st.builds(Beam, width=st.integers(1, 5), early_stopping=st.sampled_from([True, False, "never"])),
    st.sampled_from(
        [
            Beam(5, widths=(2, 5, 3), sibling_penalty=0.5),
            Beam(3, scorer=LengthNormalised()),
            DiverseBeam(4, 2),
            StochasticBeam(3, temperature=0.8, top_p=0.9, seed=4),
            StochasticBeam(5, seed=5),
            DiverseBeam(3, 3, scorer=Contrastive((-2.0, -5.0)), early_stopping="never"),
        ]
    ),
)
SUBMIT = st.tuples(
    st.integers(1, 30), STRATEGIES, st.integers(1, 10), st.integers(0, 2), st.sampled_from([None, 0, 2])
)
NODES = st.integers(0, 5)
ACTION = st.one_of(
    SUBMIT,
    st.tuples(st.just("grow"), NODES, st.integers(1, 3)),
    st.tuples(st.just("share"), NODES, NODES, st.integers(0, 20)),
    st.tuples(st.just("release"), NODES),
    st.tuples(st.just("step"), st.integers(1, 4)),
    st.tuples(st.just("cancel"), st.integers(0, 20)),
    st.tuples(st.just("held"), STRATEGIES, st.integers(0, 9), st.sampled_from(["lists", "bits", "items"])),
)


def held(name: str, strategy: Any, seed: int, form: Any) -> DecodeRequest:
    """A request with a constraint, which is no part of a journal: what came of it is."""
    if form == "items":
        spec = FromCatalogue("items", end="item")
        what = request(name, [3, 4], strategy, eos=[1, 2], max_tokens=8, constraint=spec)
        table = items_table([(5, 6, 7), (5, 6, 8, 9), (4,), (9, 9, 9, 9, 9), (9, 8)], VOCAB)
    else:
        what = request(name, [3, 4], strategy, eos=[1, 2], max_tokens=8)
        table = random_table(seed, VOCAB, form=form, also=(1,), also_states=frozenset({2, 3}))
    return dataclasses.replace(what, constraint=table)


def drive(engine: Engine, actions: list[Any], failing: set[int]) -> None:
    """Random traffic, then steps until nothing is left."""
    engine._runner.fail_at = failing  # type: ignore[attr-defined]
    count = 0
    for action in actions:
        if action[0] == "step":
            for _ in range(action[1]):
                engine.step()
        elif action[0] == "cancel":
            engine.cancel(f"r{action[1] % (count + 1)}")
        elif action[0] == "share":
            engine.tree(Share(NodeRef("t", action[1]), (NodeRef("t", action[2] + 10),), action[3]))
        elif action[0] == "release":
            engine.tree(Release("t", (action[1], action[1] + 10) if action[1] else None))
        elif action[0] == "held":
            engine.submit(held(f"r{count}", *action[1:]))
            count += 1
        elif action[0] == "grow":
            # Every node of a tree has the same path here: what a journal tells does not depend on it.
            what = request(f"r{count}", [3] * 18, Sample(n=action[2], seed=count), max_tokens=6)
            origin, keep = NodeRef("t", action[1] + 10 * (count % 2)), NodeRef("t", 100 * count)
            try:
                engine.submit(dataclasses.replace(what, origin=origin, keep=keep))
                count += 1
            except CapacityError:
                pass
        else:
            length, strategy, max_tokens, priority, logprobs = action
            prompt = [(3 + priority + i // 7) % VOCAB for i in range(length)]
            options: dict[str, Any] = {"max_tokens": max_tokens, "priority": priority, "logprobs": logprobs}
            what = request(f"r{count}", prompt, strategy, eos=[1, 2], **options)
            what = dataclasses.replace(what, stream=length % 2 == 0)
            try:
                engine.submit(what)
                count += 1
            except CapacityError:
                pass
    run(engine, 3000)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    actions=st.lists(ACTION, max_size=25),
    block_size=st.sampled_from([1, 2, 4, 8]),
    mode=st.sampled_from(["auto", "recompute", "swap"]),
    prefix_cache=st.booleans(),
    chunk=st.integers(1, 12),
    failing=st.sets(st.integers(1, 40), max_size=3),
    times=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=5),
)
def test_random_traffic_replays_clean_whatever_the_clock_says(
    tmp_path: Path,
    actions: list[Any],
    block_size: int,
    mode: str,
    prefix_cache: bool,
    chunk: int,
    failing: set[int],
    times: list[float],
) -> None:
    path = tmp_path / "j"
    path.unlink(missing_ok=True)
    blocks = 160 // block_size
    engine = journaled(
        path,
        num_blocks=blocks,
        host_slots=blocks // 2,
        block_size=block_size,
        preemption=mode,
        prefix_cache=prefix_cache,
        max_prefill_tokens=chunk,
        max_step_tokens=2 * chunk,
    )
    drive(engine, actions, failing)
    stats = engine.stats()
    engine.close()
    ticks = itertools.cycle(times)
    found = replay(path, clock=lambda: next(ticks))
    assert found.ok, found.broken
    assert found.unfinished is None
    [summary] = found.runs
    assert (summary.ended, summary.running, summary.waiting) == ("closed", 0, 0)
    assert summary.tokens == stats.generated_tokens
    assert summary.copies == stats.copies
    assert summary.preemptions == stats.preemptions
    assert summary.peak_blocks <= blocks


def test_a_tree_replays_by_its_operations(tmp_path: Path) -> None:
    engine = journaled(tmp_path / "j", num_blocks=30, host_slots=30, preemption="swap", prefix_cache=False)
    node = NodeRef("t", 0)
    for i in range(6):
        what = request(f"r{i}", [3] * 18, Sample(n=3, seed=i), max_tokens=8)
        engine.submit(dataclasses.replace(what, origin=node, keep=NodeRef("t", 10 * i + 10)))
        run(engine)
        engine.tree(Share(node, (NodeRef("t", 10 * i + 9),), 16))
    engine.tree(Release("t", (12, 13)))
    stats = engine.stats()
    assert stats.swapped_nodes > 0
    engine.close()
    kinds = [record[0] for record in records(tmp_path / "j")]
    assert kinds.count("tree") == 7
    found = replay(tmp_path / "j")
    assert found.ok, found.broken

    def forget(found: list[list[Any]]) -> None:
        found.remove(nth(found, "tree", 6))

    changed(tmp_path / "j", forget)
    assert (broken(tmp_path / "j").where, broken(tmp_path / "j").field) == ("stats", "held_nodes")


def test_the_summary_says_what_happened(journal: Path) -> None:
    [summary] = replay(journal).runs
    assert summary.requests == 8
    assert summary.cancels == 1
    assert summary.failed_steps == 1
    assert 0 < summary.peak_blocks <= summary.num_blocks == 40
    assert summary.steps == sum(record[0] == "plan" for record in records(journal))


def test_until_stops_after_that_step(journal: Path) -> None:
    found = replay(journal, until=5)
    assert found.ok
    assert found.runs[0].steps == 5
    assert found.runs[0].ended == "cut off"
    assert found.runs[0].running + found.runs[0].waiting == 8


def test_runs_on_one_file_are_replayed_one_after_the_other(journal: Path) -> None:
    again = busy(journal)
    again.close()
    found = replay(journal)
    assert found.ok
    assert [summary.ended for summary in found.runs] == ["closed", "closed"]
    second = [i for i, record in enumerate(records(journal)) if record[0] == "run"][1]
    changed(journal, lambda found: found.pop(second + 4))
    assert broken(journal).run == 2


def test_a_real_run_with_all_that_requests_can_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "j"
    real = start.build_engine
    monkeypatch.setattr(start, "build_engine", lambda *a, **k: real(*a, **{**k, "journal": path}))

    def equal(found: Any) -> list[float]:
        return [0.0] * len(found)

    prompts = ["hello world, hello", "hello world, hell", "low or hello"]
    with LLM(
        tiny_llama(), tokenizer=TOKENIZER, num_blocks=48, threads=1, block_size=4, swap_memory="1MB"
    ) as llm:
        handles = [
            llm.submit(prompt, strategy, max_tokens=12, **options)
            for prompt in prompts
            for strategy, options in [
                (Greedy(), {"repetition_penalty": 1.3, "logprobs": 2}),
                (Sample(n=3, seed=5), {"stop": ["l", "wo"], "no_repeat_ngram_size": 2}),
                (
                    BestOf(best_of=4, n=2, seed=6, rank_by=lambda found: [0.0] * len(found)),
                    {"stop": ["l", "wo"]},
                ),
                (Beam(width=3), {"stop": ["he", "o"], "min_tokens": 2, "logprobs": 1}),
                (Beam(width=2), {"stop": ["l", "wo"], "bad_words": ["hello"], "logit_bias": {5: 1.0}}),
            ]
        ]
        scores = llm.score(prompts[0], [" world", "hell", "o"], top_logprobs=2)
        assert len(scores.continuations) == 3
        handles[3].cancel()
        for handle in handles[:3] + handles[4:]:
            handle.result()
    found = replay(path)
    assert found.ok, found.broken
    [summary] = found.runs
    assert summary.requests == 16
    assert summary.ended == "closed"
    assert summary.model is not None


def test_a_replay_needs_neither_torch_nor_a_model(journal: Path) -> None:
    import subprocess
    import sys

    program = f"""
import sys
sys.modules["torch"] = sys.modules["transformers"] = sys.modules["numba"] = None
from pathlib import Path
from forkdecode.engine.replay import replay
assert replay(Path({str(journal)!r})).ok
"""
    subprocess.run([sys.executable, "-c", program], check=True)
