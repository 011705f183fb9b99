"""A runner that works from node lists, as on a GPU, here by their reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.utils.generic import ModelOutput

from forkdecode.model.attention import StepAttention
from forkdecode.model.node_plans import Planners, StaticLists, rounded_up
from forkdecode.model.runner import Runner
from forkdecode.model.static_step import MAX_GRAPH_ROWS, GraphedDecoder, bucket
from forkdecode.model.step_shape import StepShape
from forkdecode.step import DecodeRows
from forkdecode_kernels.node_list import NodeCapacity, NodeListPart, list_bytes
from forkdecode_kernels.staged import StagedMemory
from tests.model.driver import Driver, Group, StepBuilder
from tests.models import VOCAB, tiny_model

CPU = torch.device("cpu")


def tokens(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, n).tolist()


def walked(driver: Driver) -> list[torch.Tensor]:
    """What two groups see in steps that prefill, fork, prune and grow them."""
    one, other = driver.open(tokens(37, 1)), driver.open(tokens(9, 2))
    seen = [driver.prefill(one, [20, 16]), driver.prefill(other)]
    driver.fork(one, [0] * 3, tokens(3, 3))
    driver.fork(other, [0] * 20, tokens(20, 4))
    for step in range(6):
        seen.append(driver.decode(one, other))
        driver.fork(one, [2, 0, 0], tokens(3, 10 + step))
        driver.fork(other, list(range(20)), tokens(20, 20 + step))
    return seen


@pytest.mark.parametrize(
    ("family", "decoder", "block_size"),
    [
        ("llama", "auto", 1),
        ("llama", "auto", 4),
        ("llama", "generic", 128),
        ("gemma2", "generic", 4),
        ("mistral", "auto", 1),
    ],
)
def test_node_lists_give_what_the_cpu_gives(family: str, decoder: str, block_size: int) -> None:
    results = []
    for attention in ("auto", "nodes"):
        driver = Driver(
            tiny_model(family),
            block_size=block_size,
            num_blocks=2400 // block_size + 100,
            decoder=decoder,  # type: ignore[arg-type]
            attention=attention,  # type: ignore[arg-type]
        )
        results.append(walked(driver))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


class Recorder:
    """Stands in for CUDA graphs: runs the work again, into the output of the first time."""

    def __init__(self, *, wrong: bool = False, fails: bool = False) -> None:
        self.captured = self.replayed = 0
        self._wrong = wrong
        self._fails = fails

    def __call__(self, work):  # type: ignore[no-untyped-def]
        if self._fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.captured += 1
        output: ModelOutput = work()

        def replay() -> None:
            self.replayed += 1
            output["last_hidden_state"].copy_(work()["last_hidden_state"] + float(self._wrong))

        return replay, output


def graphed(recorder: Recorder, family: str = "llama") -> Driver:
    """A driver whose decode steps are run by what `recorder` captures."""
    driver = Driver(tiny_model(family), decoder="generic", attention="nodes")
    runner: Runner = driver.runner
    assert runner._planners is not None
    runner._graphed = GraphedDecoder(
        runner._decoder, runner.cache, runner._windows, runner._planners, recorder
    )
    return driver


class TestGraphs:
    def test_steps_that_stay_in_place_give_the_same(self) -> None:
        recorder = Recorder()
        plain = Driver(tiny_model("llama"), decoder="generic", attention="nodes")
        for ours, theirs in zip(walked(graphed(recorder)), walked(plain), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        assert 1 <= recorder.captured < recorder.replayed

    def test_a_grown_plan_is_captured_anew_and_others_are_kept(self) -> None:
        recorder = Recorder()
        driver = graphed(recorder)
        group = driver.open(tokens(3, 1))
        driver.prefill(group)
        for step in range(40):
            driver.fork(group, [0], tokens(1, step))
            driver.decode(group)
        assert recorder.captured <= 6  # the blocks' room doubles
        assert recorder.replayed == 41

    @pytest.mark.parametrize("fault", ["wrong", "fails"])
    def test_a_capture_that_does_not_repeat_is_given_up(self, fault: str) -> None:
        recorder = Recorder(**{fault: True})  # type: ignore[arg-type]
        plain = Driver(tiny_model("llama"), decoder="generic", attention="nodes")
        for ours, theirs in zip(walked(graphed(recorder)), walked(plain), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        assert recorder.captured <= 1

    def test_a_row_of_nan_turns_nothing_off(self) -> None:
        recorder = Recorder()
        driver = graphed(recorder)
        decoder = driver.runner._graphed
        assert decoder is not None
        whole = decoder._decoder

        def poisoned(ids: torch.Tensor, places: torch.Tensor, step: StepAttention) -> ModelOutput:
            output = whole(ids, places, step)
            output["last_hidden_state"][0, 0] = torch.nan
            return output

        decoder._decoder = poisoned
        group = driver.open(tokens(9, 1))
        prompt, last = StepBuilder(), StepBuilder()
        prompt.prefill(group, 8)
        driver.run(prompt)
        last.decode(group, driver.vocab)
        driver.runner.execute(last.plan())
        assert recorder.captured == 1
        assert decoder._steps

    def test_rows_are_padded_by_a_third_at_most(self) -> None:
        for rows in range(1, MAX_GRAPH_ROWS + 1):
            size = bucket(rows)
            assert rows <= size
            assert size - rows < max(16, size / 3)
        assert len({bucket(rows) for rows in range(1, MAX_GRAPH_ROWS + 1)}) == 12


class TestOneCopy:
    @pytest.fixture
    def sent(self, monkeypatch: pytest.MonkeyPatch) -> list[StagedMemory]:
        """Each copy of a step's memory to the device."""
        copies: list[StagedMemory] = []
        send = StagedMemory.send

        def counted(memory: StagedMemory) -> None:
            copies.append(memory)
            send(memory)

        monkeypatch.setattr(StagedMemory, "send", counted)
        return copies

    def test_a_step_in_place_is_sent_by_one(self, sent: list[StagedMemory]) -> None:
        recorder = Recorder()
        driver = graphed(recorder, "gemma2")  # two kinds of layers, with a window and without
        group = driver.open(tokens(9, 1))
        driver.prefill(group)
        driver.fork(group, [0] * 3, tokens(3, 2))
        driver.decode(group)
        replayed = recorder.replayed
        sent.clear()
        driver.fork(group, [0, 1, 2], tokens(3, 3))
        driver.decode(group)
        assert (len(sent), recorder.replayed - replayed) == (1, 1)

    def test_so_is_one_with_a_prompt(self, sent: list[StagedMemory]) -> None:
        driver = Driver(tiny_model("gemma2"), decoder="generic", attention="nodes")
        driver.prefill(driver.open(tokens(9, 1)))
        sent.clear()
        driver.prefill(driver.open(tokens(20, 2)), [12, 7])
        assert len(sent) == 3  # two chunks, and the last token


def test_warm_up_leaves_the_cache_and_knows_the_layers() -> None:
    driver = Driver(tiny_model("gemma2"), attention="nodes")
    runner: Runner = driver.runner
    runner.warm_up()
    assert not any(runner.cache.layer(i).any() for i in range(2))
    assert runner._planners is not None
    assert len(runner._planners.plan_all(StepShape((), (), 16))) == 2
    fresh = Driver(tiny_model("gemma2"), attention="nodes")
    for ours, theirs in zip(walked(driver), walked(fresh), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


class TestStaticLists:
    def shape(self, rows: int, columns: int) -> StepShape:
        tails = np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)
        return StepShape(
            (), [DecodeRows(0, np.arange(500, 504, dtype=np.int32), tails, 4 * (4 + columns))], 16
        )

    def test_are_written_again_while_the_list_fits(self) -> None:
        planners, kv = Planners(4, CPU), torch.zeros(2, 2, 600, 4, 8)
        key, steps = (4, 2, 8, None), [self.shape(5, 3), self.shape(7, 3), self.shape(16, 30)]
        planners.plan(key, 4, steps[0])
        first, second, large = [planners.plan_all(step) for step in steps]
        capacity = rounded_up(NodeCapacity.of(first[key]))
        memory = StagedMemory([list_bytes(capacity)], CPU)
        lists = StaticLists({key: NodeListPart(capacity, memory.parts[0])})
        nodes = lists.plan(4, kv, None)
        assert lists.fit(first)
        assert lists.fit(second)
        lists.write(second)
        assert lists.plan(4, kv, None) is nodes
        assert int(nodes.counts[:2, 0].sum()) == len(second[key].small_items) + len(second[key].large_items)
        assert not lists.fit(large)

    def test_room_covers_what_there_is(self) -> None:
        exact = NodeCapacity(0, 5, 9, 16, 16, 3, 10, 6)
        assert rounded_up(exact) == NodeCapacity(0, 8, 16, 16, 16, 16, 16, 8)


def test_a_group_has_the_same_bits_beside_others() -> None:
    alone = Driver(tiny_model("llama"), attention="nodes")
    beside = Driver(tiny_model("llama"), attention="nodes")
    seen = []
    for driver, mates in ((alone, 0), (beside, 3)):
        group = driver.open(tokens(70, 1))
        others: list[Group] = [driver.open(tokens(30 + i, 2 + i)) for i in range(mates)]
        for mate in others:
            driver.prefill(mate)
            driver.fork(mate, [0, 0], tokens(2, 9))
        driver.prefill(group)
        driver.fork(group, [0] * 4, tokens(4, 3))
        seen.append(driver.decode(group, *others)[:4])
    assert torch.equal(*seen)


def test_splits_are_fixed_only_where_nothing_may_depend_on_the_batch() -> None:
    """A long trunk of many rows is one part a row, unless every plan splits at the same tokens."""
    trunk, tails = np.arange(256, dtype=np.int32), np.arange(256, 320, dtype=np.int32)[:, None]
    shape = StepShape((), [DecodeRows(0, trunk, tails, 4 * 256 + 1)], 64)
    parts = {
        invariant: Planners(4, CPU, batch_invariant=invariant).plan((4, 2, 8, None), 4, shape).num_parts
        for invariant in (True, False)
    }
    assert parts[True] == 64 * 5
    assert parts[False] < parts[True]


def test_a_kv_head_of_many_query_heads_keeps_several_processors_busy() -> None:
    """128 query heads for one kv head are four programs, each on 32 of them: a trunk is cut into fewer parts."""
    shape = StepShape((), [DecodeRows(0, np.arange(160, dtype=np.int32), np.zeros((1, 0), np.int32), 640)], 1)
    planners = Planners(4, CPU, batch_invariant=False)
    planners._processors = 1
    few, many = (planners.plan((heads, 1, 8, None), 4, shape) for heads in (32, 128))
    assert (few.num_parts, many.num_parts) == (2, 0)


def test_steps_may_be_split_as_far_as_a_gpu_needs() -> None:
    even, fixed = (Driver(tiny_model("gemma2"), attention="nodes") for _ in range(2))
    even.runner._planners = Planners(even.runner.cache.block_size, CPU, batch_invariant=False)
    for ours, theirs in zip(walked(even), walked(fixed), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
