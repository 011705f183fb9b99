"""Replay: clean journals replay clean, and whatever is wrong in one is found where it is."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
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
from forkdecode.engine.replay import Replayed, replay
from forkdecode.errors import CapacityError, InvalidRequestError
from forkdecode.kv import block_table, table_batch
from forkdecode.kv.copy_on_write import NO_COPIES, copy_on_write
from forkdecode.sampling.select import select
from forkdecode.scheduler.preemption import Preemptor
from forkdecode.scheduler.request import DecodeRequest, NodeRef, Release, Share
from forkdecode.step import StepOutput, StepPlan
from tests.constraints.toy import items_table, random_table
from tests.engine.journals import changed, journaled, records, rewrite
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


def busy(path: Path, mode: str = "recompute") -> Engine:
    """Traffic with copies, preemptions, a cancel and a failed step; the engine is not closed yet."""
    engine = journaled(path, num_blocks=40, host_slots=40, preemption=mode, max_prefill_tokens=8)
    for i in range(4):
        engine.submit(request(f"beam{i}", range(3, 14 + i), Beam(width=3), max_tokens=12))
        engine.submit(request(f"sample{i}", range(3, 10 + i), Sample(n=4, seed=i), max_tokens=12))
    engine._runner.fail_at = {9}  # type: ignore[attr-defined]
    for _ in range(6):
        engine.step()
    engine.cancel("sample1")
    run(engine)
    return engine


@pytest.fixture(params=["recompute", "swap"])
def journal(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    engine = busy(tmp_path / "j", request.param)
    stats = engine.stats()
    assert min(stats.copies, stats.preemptions, stats.failed_groups - 1) > 0
    assert (stats.swapped_blocks > 0) == (request.param == "swap")
    engine.close()
    return tmp_path / "j"


def broken(path: Path, **how: Any) -> Any:
    found = replay(path, **how)
    assert not found.ok
    return found.broken


def nth(found: list[list[Any]], kind: str, n: int) -> list[Any]:
    return [record for record in found if record[0] == kind][n]


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


def with_plan(path: Path, step: int, change: Callable[[dict[str, Any]], None]) -> None:
    def apply(found: list[list[Any]]) -> None:
        record = nth(found, "plan", step - 1)
        assert record[1] == step
        change(record[3])

    changed(path, apply)


def plans(path: Path) -> list[tuple[int, dict[str, Any]]]:
    return [
        (record[1], record[3]) for record in records(path) if record[0] == "plan" and record[3] is not None
    ]


def test_a_flipped_block_in_a_table_is_located(journal: Path) -> None:
    step, image = next((s, p) for s, p in plans(journal) if len(p["decodes"]) > 1)
    tails = image["decodes"][1]["tails"]
    row, column = len(tails) - 1, tails.shape[1] - 1
    wrong = int(tails[row, column]) ^ 1

    def flip(plan: dict[str, Any]) -> None:
        plan["decodes"][1]["tails"][row, column] = wrong

    with_plan(journal, step, flip)
    found = broken(journal)
    assert (found.run, found.step, found.where) == (1, step, "plan")
    assert found.field == f"decodes[1].tails[{row}, {column}]"
    assert (found.expected, found.got) == (wrong, tails[row, column])
    owner = image["selections"][1]["group_id"]
    names = [record[1].request_id for record in records(journal) if record[0] == "add"]
    assert names[owner - 1] in found.requests


@pytest.mark.parametrize("part", ["slots", "positions", "token_ids"])
def test_a_flipped_number_of_a_token_names_its_request(journal: Path, part: str) -> None:
    step, image = next((s, p) for s, p in plans(journal) if len(p["decodes"]) > 1)
    at = image["decodes"][1]["token_start"]

    def flip(plan: dict[str, Any]) -> None:
        plan[part][at] ^= 1

    with_plan(journal, step, flip)
    found = broken(journal)
    assert (found.step, found.where, found.field) == (step, "plan", f"{part}[{at}]")
    names = [record[1].request_id for record in records(journal) if record[0] == "add"]
    assert found.requests == (names[image["selections"][1]["group_id"] - 1],)


def test_a_missing_copy_is_located(journal: Path) -> None:
    step = next(s for s, p in plans(journal) if len(p["copies"]["source"]))

    def drop(plan: dict[str, Any]) -> None:
        plan["copies"] = {name: blocks[:-1] for name, blocks in plan["copies"].items()}

    with_plan(journal, step, drop)
    found = broken(journal)
    assert (found.step, found.where) == (step, "plan")
    assert found.field.startswith("copies.source[")
    assert found.expected is None
    assert found.requests


def test_a_corrupted_decision_shows_in_the_next_plan(journal: Path) -> None:
    step, image = next((s, p) for s, p in plans(journal) if p["decodes"] and s not in (8, 9))
    number = sum(1 for s, _ in plans(journal) if s <= step)
    token: list[int] = []

    def change(found: list[list[Any]]) -> None:
        outputs = [record for record in found if record[0] in ("output", "error")]
        output = outputs[number - 1][1]
        token.append(int(output.results[0].tokens[0]))
        output.results[0].tokens[0] = (token[0] + 1) % VOCAB

    changed(journal, change)
    found = broken(journal)
    assert found.step in (step, step + 1, step + 2)
    assert found.where in ("plan", "events")
    names = [record[1].request_id for record in records(journal) if record[0] == "add"]
    assert names[image["selections"][0]["group_id"] - 1] in found.requests


def test_events_that_did_not_happen_are_named(journal: Path) -> None:
    def rename(found: list[list[Any]]) -> None:
        last = next(record for record in found if record[0] == "events" and record[1])
        kind, name, *rest = last[1][0]
        last[1] = [
            ("CandidateEnded" if kind != "CandidateEnded" else "GroupStarted", name, *rest),
            *last[1][1:],
        ]

    changed(journal, rename)
    found = broken(journal)
    assert found.where == "events"
    assert found.field == "events[0][0]"
    assert len(found.requests) == 1


def test_counters_at_the_end_are_compared(journal: Path) -> None:
    def change(found: list[list[Any]]) -> None:
        stats = nth(found, "end", 0)
        stats[1] = dataclasses.replace(stats[1], copies=stats[1].copies + 1)

    changed(journal, change)
    found = broken(journal)
    assert (found.where, found.field) == ("stats", "copies")
    assert found.expected == found.got + 1


def test_a_lost_record_is_named(journal: Path) -> None:
    changed(journal, lambda found: found.remove(nth(found, "plan", 3)))
    found = broken(journal)
    assert (found.where, found.step) == ("journal", 3)
    changed(journal, lambda found: found.remove(nth(found, "output", 0)))
    assert broken(journal).where == "journal"


def test_a_request_that_was_never_recorded_is_missed(journal: Path) -> None:
    changed(journal, lambda found: found.remove(nth(found, "add", 0)))
    assert broken(journal).step == 1


def test_a_truncated_file_replays_as_far_as_it_goes(journal: Path) -> None:
    whole = journal.read_bytes()
    steps = replay(journal).runs[0].steps
    for size in (len(whole) - 1, len(whole) // 2, len(whole) // 3):
        journal.write_bytes(whole[:size])
        found = replay(journal)
        assert found.ok
        assert found.runs[0].ended == "cut off"
        assert found.runs[0].steps <= steps
        assert found.unfinished is not None
        assert "cut off" in found.unfinished


def test_damage_in_the_middle_is_a_break(journal: Path) -> None:
    broken_bytes = bytearray(journal.read_bytes())
    broken_bytes[len(broken_bytes) // 2] ^= 0xFF
    journal.write_bytes(broken_bytes)
    found = broken(journal)
    assert found.where == "file"
    assert "is damaged" in found.got


def test_another_version_is_named(journal: Path) -> None:
    def age(found: list[list[Any]]) -> None:
        found[0][1:3] = [b"12345678", "0.0.7"]

    changed(journal, age)
    with pytest.raises(InvalidRequestError, match=r"journal: forkdecode 0\.0\.7 wrote it"):
        replay(journal)


GARBAGE: list[list[Any]] = [
    [],
    ["plan"],
    ["plan", 1, 0.0, {"copies": 3}],
    ["nonsense", 1],
    ["add", None, None],
    ["add", 7, "x"],
    ["like", 7, None],
    ["cancel", 7],
    ["events", 3],
    ["output", 5],
    ["error", 1],
    ["tokens", b"x", 3, True],
    ["died"],
    ["run"],
    ["end", 5],
]


def test_garbage_in_whole_records_is_a_break_not_a_crash(journal: Path) -> None:
    good = records(journal)
    for bad in GARBAGE:
        rewrite(journal, [*good[:-1], bad])
        assert broken(journal).where in ("journal", "file", "request"), bad


def test_runs_on_one_file_are_replayed_one_after_the_other(journal: Path) -> None:
    again = busy(journal)
    again.close()
    found = replay(journal)
    assert found.ok
    assert [summary.ended for summary in found.runs] == ["closed", "closed"]
    second = [i for i, record in enumerate(records(journal)) if record[0] == "run"][1]
    changed(journal, lambda found: found.pop(second + 4))
    assert broken(journal).run == 2


# -- faults of the engine ---------------------------------------------------------------------------


def no_copies(monkeypatch: pytest.MonkeyPatch, after: int = 0) -> None:
    """Rows write to blocks that others hold too: the fault that copy-on-write is there to prevent."""
    real, calls = copy_on_write, itertools.count()

    def forgetful(*args: Any) -> Any:
        return real(*args) if next(calls) < after else NO_COPIES

    for module in (block_table, table_batch):
        monkeypatch.setattr(module, "copy_on_write", forgetful)


def test_a_fault_of_this_version_is_located_in_a_good_journal(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a fix is tested with: the record is right, the scheduler is not."""
    step = next(s for s, p in plans(journal) if len(p["copies"]["source"]))
    no_copies(monkeypatch)
    found = broken(journal)
    assert (found.step, found.where) == (step, "plan")
    assert found.field.startswith("copies")
    assert found.requests


def blind(engine: Engine) -> None:
    """The toy model would notice that something is wrong; a real one doesn't."""

    def execute(plan: StepPlan) -> StepOutput:
        logits = torch.randn(
            len(plan.logits_index), VOCAB, generator=torch.Generator().manual_seed(plan.step)
        )
        return StepOutput(plan.step, tuple(select(logits, plan.selections)))

    runner: Any = engine._runner
    runner.execute = execute


def recorded_with_fault(path: Path) -> None:
    engine = journaled(path)
    engine.submit(request("a", range(3, 9), Sample(n=3, seed=1), max_tokens=8))
    engine.submit(request("b", range(3, 10), Greedy(), max_tokens=8))
    blind(engine)
    while engine.has_work:
        engine.step()
    engine.close()


def test_a_fault_that_was_recorded_breaks_a_rule_where_it_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a bug report is: record and replay have the same fault, and agree."""
    no_copies(monkeypatch)
    recorded_with_fault(tmp_path / "j")
    found = broken(tmp_path / "j")
    assert found.where == "rules"
    assert "a" in found.requests
    step = next(s for s, p in plans(tmp_path / "j") if any(len(d["tails"]) == 3 for d in p["decodes"]))
    assert found.step == step


def test_a_swap_that_mixes_up_blocks_is_found_by_what_rows_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All counts are right, the contents are not."""
    real = Preemptor.resume

    def mixing(self: Preemptor, group: Any, cached: Any, moves: Any) -> int:
        before = len(moves.swap_in)
        tokens = real(self, group, cached, moves)
        for i in range(before, len(moves.swap_in)):
            move = moves.swap_in[i]
            moves.swap_in[i] = dataclasses.replace(move, target=np.roll(move.target, 1))
        return tokens

    monkeypatch.setattr(Preemptor, "resume", mixing)
    engine = journaled(tmp_path / "j", num_blocks=40, host_slots=40, preemption="swap")
    blind(engine)
    for i in range(4):
        engine.submit(request(f"r{i}", range(3, 14 + i), Sample(n=4, seed=i), max_tokens=20))
    while engine.has_work:
        engine.step()
    assert engine.stats().swapped_blocks
    engine.close()
    step = next(s for s, p in plans(tmp_path / "j") if len(p["swap_in"]["target"]))
    found = broken(tmp_path / "j")
    assert (found.step, found.where) == (step, "rules")
    assert "reads" in found.got
    assert "should be" in found.got
    assert len(found.requests) == 1


def test_an_engine_that_died_is_a_break_at_the_step_that_killed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = journaled(tmp_path / "j")
    engine.submit(request("a", [3, 4], Beam(width=2), max_tokens=5))
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(engine.scheduler, "commit", lambda output: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.step()
    engine.close()
    found = broken(tmp_path / "j")
    assert (found.step, found.where, found.field) == (2, "died", "commit")
    assert "ZeroDivisionError" in found.got
    assert "the replay goes on" in found.got
    with monkeypatch.context() as patch:
        patch.setattr("forkdecode.scheduler.scheduler.commit_selection", lambda *a: 1 / 0)
        assert broken(tmp_path / "j").where == "events"  # here it fails a group only, and a step earlier


# -- a model ----------------------------------------------------------------------------------------


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


def test_what_is_said_of_a_break_is_one_line(journal: Path) -> None:
    step, _ = next((s, p) for s, p in plans(journal) if p["decodes"])

    def flip(plan: dict[str, Any]) -> None:
        plan["decodes"][0]["context_len"] += 1

    with_plan(journal, step, flip)
    found: Replayed = replay(journal)
    text = str(found.broken)
    assert text.startswith(f"run 1, step {step}, plan: decodes[0].context_len: expected ")
    assert "; requests: " in text
    assert "\n" not in text
