"""The memory benchmark: its ideal and its replays against the obvious way, and a run on a tiny model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import memory
from benchmarks.memory_decoder import Answer, Ask, Run
from benchmarks.memory_replay import Counts, contiguous_tokens, ideal_tokens, replay
from benchmarks.memory_trace import TRACES, Decoded
from tests.tiny_model import save_tiny_llama


def decoded(seed: int, prompt: int, steps: int, width: int, vocab: int) -> Decoded:
    """Rows that fork and die at random; the last selection leaves none, as a finished group's does."""
    rng = np.random.default_rng(seed)
    rows, parents, tokens = 1, [], []
    for step in range(steps):
        after = 0 if step == steps - 1 else width
        parents.append(rng.integers(0, rows, after).astype(np.int32))
        tokens.append(rng.integers(0, vocab, after))
        rows = after
    return Decoded(prompt, tuple(parents), tuple(tokens))


CASES = st.builds(
    decoded,
    st.integers(0, 2**31),
    st.integers(1, 20),
    st.integers(2, 12),
    st.integers(1, 5),
    st.sampled_from([2, 50]),
)


@settings(max_examples=60, deadline=None)
@given(CASES)
def test_the_ideal_is_the_number_of_different_prefixes(case: Decoded) -> None:
    rows: list[tuple[int, ...]] = [()]
    expected = []
    for parents, tokens in zip(case.parents, case.tokens, strict=True):
        prefixes = {row[:end] for row in rows for end in range(1, len(row) + 1)}
        expected.append(case.prompt_len + len(prefixes))
        rows = [(*rows[p], t) for p, t in zip(parents.tolist(), tokens.tolist(), strict=True)]
    assert ideal_tokens(case).tolist() == expected


@settings(max_examples=60, deadline=None)
@given(CASES, st.sampled_from([1, 2, 4, 16]))
def test_no_block_size_stores_less_than_the_ideal(case: Decoded, block_size: int) -> None:
    counts = replay(case, block_size)
    stored = counts.unique_blocks * block_size - counts.wasted_slots
    assert stored >= ideal_tokens(case).sum()


def test_forks_of_different_tokens_with_blocks_of_one_token_are_ideal() -> None:
    case = decoded(1, 7, 30, 6, vocab=10**9)
    counts = replay(case, 1)
    assert counts.unique_blocks == ideal_tokens(case).sum()
    assert counts.copies == counts.wasted_slots == 0


# A prompt of 3; then two rows a and b, both of which a's children replace. Blocks of 2 while each step runs:
# pp p.        one row
# pp pa pb     b's half-filled block is a copy
# pp pa c. d.  both continue a
BY_HAND = Decoded(
    3,
    tuple(np.array(p, np.int32) for p in ([0, 0], [0, 0], [])),
    tuple(np.array(t, np.int64) for t in ([5, 6], [7, 8], [])),
)


def test_counts_of_a_case_counted_by_hand() -> None:
    assert replay(BY_HAND, 2) == Counts(
        steps=3,
        unique_blocks=2 + 3 + 4,
        unshared_blocks=2 + 4 + 6,
        wasted_slots=1 + 0 + 2,
        copies=1,
        generated=4,
    )
    assert ideal_tokens(BY_HAND).tolist() == [3, 5, 6]
    assert contiguous_tokens(BY_HAND, reserved=False).tolist() == [8, 10, 12]
    assert contiguous_tokens(BY_HAND, reserved=True).tolist() == [12, 12, 12]


def test_a_row_of_the_table_of_a_case_counted_by_hand() -> None:
    """Blocks of 16: one row, then twice two that share no full block and copy the one there is."""
    usage = SimpleNamespace(
        unique_block_steps=1 + 2 + 2, unshared_block_steps=5, copies=2, generated_tokens=6
    )
    answer = Answer(Ask("beam", 2, 3, 3, 0), BY_HAND, usage, first_step=0)
    found = memory.measured(TRACES["alpaca"], "beam", 2, [answer], block_bytes=1600)
    assert found["saving"] == 0
    assert found["blocks_over_ideal"] == pytest.approx(5 * 16 / 14)
    assert found["waste"] == pytest.approx((13 + 24 + 22) / 80)
    assert found["copies_per_token"] == pytest.approx(2 / 6)
    assert found["copied_bytes_per_token"] == pytest.approx(3200 / 6)
    assert found["contiguous_over_ours"] == pytest.approx(30 / 80)
    assert found["reserved_over_ours"] == pytest.approx(36 / 80)
    single = found["block_sizes"][1]
    assert single["saving"] == pytest.approx(1 - 14 / (3 + 8 + 10))
    assert (single["blocks_over_ideal"], single["waste"], single["copies_per_token"]) == (1, 0, 0)


def test_a_replay_that_counts_otherwise_than_the_engine_stops_the_benchmark() -> None:
    usage = SimpleNamespace(
        steps=3, unique_block_steps=5, unshared_block_steps=5, copies=2, generated_tokens=6
    )
    answer = Answer(Ask("beam", 2, 3, 3, 0), BY_HAND, usage, first_step=0)
    memory.check_replays(Run([answer], [], wasted=59))
    with pytest.raises(SystemExit, match="wasted slots: 59 and 58"):
        memory.check_replays(Run([answer], [], wasted=58))
    usage.copies = 1
    with pytest.raises(SystemExit, match="differ for Ask"):
        memory.check_replays(Run([answer], [], wasted=59))


def test_contiguous_caches_hold_every_row_from_the_start() -> None:
    case = decoded(1, 7, 3, 4, vocab=9)
    assert contiguous_tokens(case, reserved=False).tolist() == [32, 36, 40]
    assert contiguous_tokens(case, reserved=True).tolist() == [40, 40, 40]


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("count", [4, 24, 1000])
def test_lengths_have_the_means_of_the_trace(name: str, count: int) -> None:
    trace = TRACES[name]
    prompts, outputs = trace.lengths(count, seed=3)
    assert prompts.mean() == pytest.approx(trace.prompt_mean, rel=0.03)
    assert outputs.mean() == pytest.approx(trace.output_mean, rel=0.03)
    assert (trace.lengths(count, seed=3)[0] == prompts).all()


@pytest.mark.timeout(120)
def test_a_run_agrees_with_its_replay(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """check_replays() compares the two and stops the benchmark where they differ."""
    model = save_tiny_llama(tmp_path_factory.mktemp("model"), max_position_embeddings=4096)
    file = tmp_path / "memory.jsonl"
    common = ["memory", "--model", str(model), "--trace", "alpaca", "--record", str(file)]
    common += ["--tokens", "8000", "--width"]
    monkeypatch.setattr(sys, "argv", [*common, "4", "--requests", "3"])
    memory.main()
    monkeypatch.setattr(
        sys, "argv", [*common, "2", "--part", "curve", "--kind", "beam", "--requests", "3", "--gap", "9"]
    )
    memory.main()
    sample, beam, curve = (json.loads(line)["result"] for line in file.read_text().splitlines())
    assert sample["requests"] == beam["requests"] == 3
    assert 0 < sample["saving"] < beam["saving"] < 1
    for found in (sample, beam):
        assert found["block_sizes"]["16"]["saving"] == pytest.approx(found["saving"], abs=0.01)
        savings = [found["block_sizes"][str(size)]["saving"] for size in memory.BLOCK_SIZES]
        assert savings == sorted(savings, reverse=True)
        assert 1 <= found["block_sizes"]["1"]["blocks_over_ideal"] < 1.2
    assert len(curve["unique"]) == len(curve["ideal"]) > 40
    held = np.array(curve["unique"][1:-1])
    assert (held <= np.array(curve["unshared"][1:-1])).all()
