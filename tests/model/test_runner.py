"""Swap, zeroing, failures beside others, recompute of a tree, and generation token for token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from forkdecode.step import BlockMoves, Draw, ProcessorSpec, SelectionRequest
from tests.model.driver import Driver, StepBuilder, expected
from tests.models import FAMILIES, VOCAB, tiny_model


def tokens(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, n).tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_generate(family: str) -> None:
    oracle, driver = tiny_model(family), Driver(tiny_model(family))
    prompt = tokens(23, 3)
    want = oracle.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0].tolist()
    group = driver.open(prompt)
    next_token = int(driver.prefill(group, [20, 2]).argmax())
    for _ in range(23):
        driver.fork(group, [0], [next_token])
        next_token = int(driver.decode(group).argmax())
    assert [*group.rows[0], next_token] == want


def test_swapped_blocks_come_back_elsewhere_bit_for_bit() -> None:
    driver = Driver(tiny_model("gemma2"))
    group = driver.open(tokens(30, 1))
    driver.prefill(group)
    driver.fork(group, [0, 0], tokens(2, 2))
    twin = driver.open(tokens(30, 1))
    driver.prefill(twin)
    driver.fork(twin, [0, 0], tokens(2, 2))
    want = driver.decode(twin)
    image, old = group.table.image(), np.unique(group.table.references())
    slots = np.arange(len(old), dtype=np.int32)
    empty = StepBuilder().plan()
    driver.runner.execute(replace(empty, swap_out=BlockMoves(old.astype(np.int32), slots)))
    driver.runner.execute(replace(empty, zero_blocks=old.astype(np.int32)))
    new = np.array([599 - i for i in range(len(old))], np.int32)
    driver.runner.execute(replace(empty, swap_in=BlockMoves(slots, new)))
    del image
    moved = dict(zip(old.tolist(), new.tolist(), strict=True))
    step = StepBuilder()
    step.decode(group, driver.vocab)
    plan = step.plan()
    rows = plan.decodes[0]
    move = np.vectorize(lambda b: moved.get(int(b), int(b)), otypes=[np.int32])
    relocated = replace(rows, trunk=move(rows.trunk), tails=move(rows.tails))
    size = driver.pool.block_size
    plan = replace(
        plan,
        decodes=(relocated,),
        slots=move(plan.slots // size).astype(np.int64) * size + plan.slots % size,
        copies=BlockMoves(move(plan.copies.source), move(plan.copies.target)),
    )
    got = torch.stack([driver._distribution(r) for r in driver.runner.execute(plan).results])
    assert torch.equal(got, want)


def test_recompute_of_a_tree_writes_each_block_once() -> None:
    """Rows of one group recomputed in one step: later segments read what earlier ones write."""
    family = "mistral"
    oracle, driver = tiny_model(family), Driver(tiny_model(family), block_size=4)
    trunk, ends = tokens(16, 1), [tokens(7, 2), tokens(7, 3)]
    blocks = driver.pool.allocate(4 + 2 * 2)
    step = StepBuilder()
    tables = [np.concatenate([blocks[:4], blocks[4 + 2 * r : 6 + 2 * r]]) for r in range(2)]
    for r, (table, end) in enumerate(zip(tables, ends, strict=True)):
        start = 0 if r == 0 else 16
        positions = np.arange(start, 22)
        slots = table[positions // 4].astype(np.int64) * 4 + positions % 4
        step.segment([*trunk, *end], start, 22 - start, table, slots)
    driver.run(step)
    group = driver.open(trunk)
    group.table._set(blocks[:4], np.stack([t[4:] for t in tables]), 22)
    group.rows = [[*trunk, *end] for end in ends]
    got = driver.decode(group)
    assert (got - expected(oracle, group.rows)).abs().max() < 5e-5


def test_a_group_of_nan_fails_alone() -> None:
    model = tiny_model("llama")
    driver = Driver(model)
    good, bad = driver.open(tokens(21, 1)), driver.open(tokens(9, 2))
    driver.prefill(good)
    driver.prefill(bad)
    for group in (good, bad):
        driver.fork(group, [0], tokens(1, 3))
    twin = driver.open(tokens(21, 1))
    driver.prefill(twin)
    driver.fork(twin, [0], tokens(1, 3))
    want = driver.decode(twin)
    poisoned = np.unique(bad.table.references()).astype(np.int32)
    for layer in range(2):
        driver.runner.cache.layer(layer)[:, :, torch.from_numpy(poisoned.astype(np.int64))] = float("nan")
    step = StepBuilder()
    step.decode(bad, driver.vocab)
    step.decode(good, driver.vocab)
    results = driver.runner.execute(step.plan()).results
    assert "non-finite" in (results[0].error or "")
    assert torch.equal(driver._distribution(results[1])[None], want)
    driver.runner.execute(replace(StepBuilder().plan(), zero_blocks=poisoned))
    assert (
        driver.runner.cache.layer(0)[:, :, torch.from_numpy(poisoned.astype(np.int64))].count_nonzero() == 0
    )


def test_logits_in_several_runs_give_the_same_selections(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(tiny_model("gemma2"))
    groups = [driver.open(tokens(4 + i, i)) for i in range(5)]
    for group in groups:
        driver.prefill(group)
        driver.fork(group, [0, 0, 0], tokens(3, 8))
    step = StepBuilder()
    for group in groups:
        step.decode(group, driver.vocab)
    plan = step.plan()
    draws = tuple(
        SelectionRequest(
            i, i * 3, 3, Draw(np.arange(3, dtype=np.int32), np.arange(3, dtype=np.uint64), 9),
            ProcessorSpec(), np.zeros(1, np.int64), None, 0,
        )
        for i in range(5)
    )  # fmt: skip
    plan = replace(plan, selections=draws)
    whole = driver.runner.execute(plan)
    monkeypatch.setattr("forkdecode.model.head.MAX_LOGITS_BYTES", 7 * 4 * VOCAB)
    cut = driver.runner.execute(replace(plan, copies=BlockMoves.none()))
    for a, b in zip(whole.results, cut.results, strict=True):
        assert a.group_id == b.group_id
        assert np.array_equal(a.tokens, b.tokens)
        assert np.array_equal(a.logprobs, b.logprobs)
