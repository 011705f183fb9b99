"""The memory benchmark: its ideal and its replays against the obvious way, and a run on a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import memory, memory_rows
from benchmarks.memory_decoder import Answer, Ask, Run
from benchmarks.memory_replay import Counts, contiguous_tokens, ideal_tokens, replay
from benchmarks.memory_samples import Samples
from benchmarks.memory_trace import TRACES, Decoded, paired
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
    assert contiguous_tokens(BY_HAND, reserved=False).tolist() == [6, 8, 10]
    assert contiguous_tokens(BY_HAND, reserved=True).tolist() == [10, 10, 10]


def test_a_row_of_the_table_of_a_case_counted_by_hand() -> None:
    """Blocks of 16: one row, then twice two that share no full block and copy the one there is."""
    usage = SimpleNamespace(
        unique_block_steps=1 + 2 + 2, unshared_block_steps=5, copies=2, generated_tokens=6
    )
    answer = Answer(Ask("beam", 2, 3, 3, 0), BY_HAND, usage, first_step=0)
    found = memory_rows.measured(TRACES["alpaca"], "beam", 2, [answer], block_bytes=1600)
    assert found["saving"] == 0
    assert found["blocks_over_ideal"] == pytest.approx(5 * 16 / 14)
    assert found["waste"] == pytest.approx((13 + 24 + 22) / 80)
    assert found["copies_per_token"] == pytest.approx(2 / 6)
    assert found["copied_bytes_per_token"] == pytest.approx(3200 / 6)
    assert found["contiguous_over_ours"] == pytest.approx(24 / 80)
    assert found["reserved_over_ours"] == pytest.approx(30 / 80)
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
    assert contiguous_tokens(case, reserved=False).tolist() == [28, 32, 36]
    assert contiguous_tokens(case, reserved=True).tolist() == [36, 36, 36]


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("count", [4, 24, 1000])
def test_lengths_have_the_means_of_the_trace(name: str, count: int) -> None:
    trace = TRACES[name]
    prompts, outputs = trace.lengths(count, seed=3)
    assert prompts.mean() == pytest.approx(trace.prompt_mean, rel=0.03)
    assert outputs.mean() == pytest.approx(trace.output_mean, rel=0.03)
    assert (trace.lengths(count, seed=3)[0] == prompts).all()


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("count", [6, 24])
def test_few_requests_are_paired_as_many_would_be(name: str, count: int) -> None:
    """Prompts are read in each step of their output: what that comes to is no matter of luck."""
    trace = TRACES[name]
    for seed in range(3):
        prompts, outputs = trace.pairs(count, seed)
        assert (prompts * outputs).mean() == pytest.approx(prompts.mean() * outputs.mean(), rel=2e-3)
        drawn = trace.lengths(count, seed)
        assert (prompts == drawn[0]).all()
        assert sorted(outputs) == sorted(drawn[1])
        assert (trace.pairs(count, seed)[1] == outputs).all()
    assert (trace.pairs(count, 0)[1] != trace.pairs(count, 1)[1]).any()


def test_the_pairing_nearest_to_the_product_of_the_means_is_taken() -> None:
    """Means of 4 and 4; the product has a mean of 7, 10 or 31, by which output the prompt of 10 has."""
    order = paired(np.array([1, 1, 10]), np.array([1, 2, 9]), np.random.default_rng(0))
    assert order[2] == 2


def sampled(prompt: int, output: int, width: int) -> Decoded:
    """Rows as samples fork: once, behind the prompt; they draw no token alike."""
    fork, stay, end = (np.array(rows, np.int32) for rows in ([0] * width, range(width), ()))
    parents = (*[fork] * (output > 1), *[stay] * (output - 2), end)
    return Decoded(prompt, parents, tuple(np.arange(len(rows)) for rows in parents))


LENGTHS = st.tuples(st.integers(1, 40), st.integers(1, 40))


@settings(max_examples=60, deadline=None)
@given(st.lists(LENGTHS, min_size=1, max_size=3), st.integers(2, 5), st.sampled_from([1, 3, 16]))
def test_samples_are_counted_as_the_block_table_has_them(
    lengths: list[tuple[int, int]], width: int, block_size: int
) -> None:
    prompts, outputs = np.array(lengths).T
    samples = Samples(width, prompts, outputs)
    trees = [sampled(prompt, output, width) for prompt, output in lengths]
    counts = [replay(tree, block_size) for tree in trees]
    assert samples.counts(block_size) == sum(counts[1:], counts[0])
    assert samples.ideal_tokens() == sum(ideal_tokens(tree).sum() for tree in trees)
    for reserved in (False, True) if min(outputs) > 1 else ():
        expected = sum(contiguous_tokens(tree, reserved=reserved).sum() for tree in trees)
        assert samples.contiguous_tokens(reserved=reserved) == expected


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
        savings = [found["block_sizes"][str(size)]["saving"] for size in memory_rows.BLOCK_SIZES]
        assert savings == sorted(savings, reverse=True)
        assert 1 <= found["block_sizes"]["1"]["blocks_over_ideal"] < 1.2
    without_model = memory.samples_of(TRACES["alpaca"], 4, 3, [0]).counts(16)
    saving = 1 - without_model.unique_blocks / without_model.unshared_blocks
    assert sample["block_sizes"]["16"]["saving"] == pytest.approx(saving)
    assert sample["copies_per_token"] * sample["generated_tokens"] == pytest.approx(without_model.copies)
    assert len(curve["unique"]) == len(curve["ideal"]) > 40
    held = np.array(curve["unique"][1:-1])
    assert (held <= np.array(curve["unshared"][1:-1])).all()


def test_samples_of_many_requests_are_recorded_by_seed_and_by_variation(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_tiny_llama(tmp_path_factory.mktemp("model"), max_position_embeddings=4096)
    file = tmp_path / "memory.jsonl"
    command = ["memory", "--model", str(model), "--part", "samples", "--requests", "40", "--seeds", "2"]
    monkeypatch.setattr(sys, "argv", [*command, "--width", "2", "4", "--record", str(file)])
    memory.main()
    rows = [json.loads(line)["result"] for line in file.read_text().splitlines()]
    assert [(r["trace"], r["width"]) for r in rows] == [
        ("alpaca", 2), ("alpaca", 4), ("sharegpt", 2), ("sharegpt", 4)
    ]  # fmt: skip
    for row in rows:
        assert (row["kind"], row["requests"], row["seeds"]) == ("sample", 80, [0, 1])
        low, high = sorted(row["saving_by_seed"])
        assert low < row["saving"] < high
        alike, saving, unlike = row["saving_by_variation"].values()
        assert alike > saving == row["saving"] > unlike


def test_the_peak_of_a_process_is_what_it_had_meanwhile() -> None:
    """In one of its own: another may give memory back meanwhile."""
    lines = (
        "import numpy as np",
        "from benchmarks.memory_transformers import peak_of",
        "print(*peak_of(lambda: int(np.ones(8 << 20).sum())))",
    )
    run = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    found, peak = map(int, run.stdout.split())
    assert found == 8 << 20
    assert 60 << 20 < peak < 100 << 20
