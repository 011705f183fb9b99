"""A runner that works from node lists, as on a GPU, here by their reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.utils.generic import ModelOutput

from forkdecode.model import graphed as graphing
from forkdecode.model.attention import StepAttention
from forkdecode.model.graphed import FIRST_REST, MAX_GRAPH_TOKENS, GraphedDecoder, bucket
from forkdecode.model.node_plans import Planners, StaticLists, roomy
from forkdecode.model.runner import Runner
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

    def __init__(
        self,
        *,
        wrong: bool = False,
        fails: bool = False,
        short: int = 0,
        off: float = 0.0,
        keeps: bool = False,
    ) -> None:
        self.captured = self.replayed = 0
        self._fails = fails
        self._short = short
        self._off = 1.0 if wrong else off
        self._keeps = keeps

    def __call__(self, work):  # type: ignore[no-untyped-def]
        if self._fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        if self._short:
            self._short -= 1
            try:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 512.00 MiB.")
            finally:
                raise RuntimeError("operation failed due to a previous error during capture")
        self.captured += 1
        output: ModelOutput = work()

        def replay() -> None:
            self.replayed += 1
            if not self._keeps:
                output["last_hidden_state"].copy_(work()["last_hidden_state"] + self._off)

        return replay, output


def graphed(recorder: Recorder, family: str = "llama", num_blocks: int = 600) -> Driver:
    """A driver whose steps are run by what `recorder` captures."""
    driver = Driver(tiny_model(family), decoder="generic", attention="nodes", num_blocks=num_blocks)
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

    def test_memory_that_is_short_while_graphs_are_captured_ends_no_start(self) -> None:
        class Short(Recorder):
            def __call__(self, work):  # type: ignore[no-untyped-def]
                replay, output = super().__call__(work)

                def short() -> None:
                    raise torch.OutOfMemoryError("CUDA out of memory.")

                return (short if self.captured > 1 else replay), output

        runner = graphed(Short()).runner
        runner.warm_up(32)
        assert runner._graphed is not None
        assert not runner._graphed._steps

    @pytest.mark.parametrize("rows", [1, 4])
    def test_a_request_that_grows_is_captured_once_or_twice(self, rows: int) -> None:
        recorder = Recorder()
        driver = graphed(recorder)
        group = driver.open(tokens(3, 1))
        driver.prefill(group)
        for step in range(30):
            parents = [0] * rows if step == 0 else list(range(rows))
            if rows > 1 and step and step % 7 == 0:
                parents = [0, 0, 1, 2]
            driver.fork(group, parents, tokens(rows, step))
            driver.decode(group)
        assert recorder.captured <= 2
        assert recorder.replayed == 31

    def test_a_prompt_beside_rows_is_run_by_a_graph_too(self) -> None:
        recorder, seen = Recorder(), []
        plain = Driver(tiny_model("llama"), decoder="generic", attention="nodes")
        for driver in (graphed(recorder), plain):
            group, other = driver.open(tokens(9, 1)), driver.open(tokens(30, 2))
            driver.prefill(group)
            for count in (12, 11):
                driver.fork(group, [0, 0], tokens(2, count))
                step = StepBuilder()
                step.decode(group, driver.vocab)
                step.prefill(other, count)
                seen.append(driver.run(step))
        assert (recorder.captured, recorder.replayed) == (2, 3)  # of a row alone, and of a prompt beside two
        for ours, theirs in zip(seen[:2], seen[2:], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)

    def test_memory_that_is_short_once_is_no_reason_to_give_up(self) -> None:
        recorder = Recorder(short=1)
        driver = graphed(recorder)
        group = driver.open(tokens(3, 1))
        driver.prefill(group)
        for step in range(FIRST_REST + 2):
            driver.fork(group, [0], tokens(1, step))
            driver.decode(group)
        assert recorder.captured == 1
        assert recorder.replayed >= 1

    @pytest.mark.parametrize(
        "error",
        [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("CUDA error: out of memory")],
        ids=["torch", "driver"],
    )
    def test_a_step_that_lacks_memory_is_run_once_more_without_graphs(
        self, monkeypatch: pytest.MonkeyPatch, error: RuntimeError
    ) -> None:
        recorder = Recorder()
        driver = graphed(recorder)
        group = driver.open(tokens(9, 1))
        driver.prefill(group)
        runner = driver.runner
        whole, failed = runner._decoder, []

        def short(ids: torch.Tensor, places: torch.Tensor, step: StepAttention) -> ModelOutput:
            if not failed:
                failed.append(len(ids))
                raise error
            return whole(ids, places, step)

        runner._decoder = short  # type: ignore[assignment]
        graphs = runner._graphed
        assert graphs is not None
        assert graphs._steps
        monkeypatch.setattr(graphing, "MAX_GRAPH_TOKENS", 16)
        step = StepBuilder()
        step.prefill(driver.open(tokens(20, 2)), 17)
        driver.run(step)
        assert failed
        assert not graphs._steps

    def test_other_last_bits_are_no_reason_to_give_up(self) -> None:
        recorder = Recorder(off=1e-6)
        driver = graphed(recorder)
        driver.prefill(driver.open(tokens(9, 1)))
        assert recorder.captured == 1
        assert driver.runner._graphed is not None
        assert driver.runner._graphed._works

    def test_after_warming_up_a_request_captures_nothing(self) -> None:
        recorder = Recorder()
        driver = graphed(recorder, num_blocks=32)
        driver.runner.warm_up(32)
        captured, group = recorder.captured, driver.open(tokens(9, 1))
        assert captured == 5  # two sizes, rows alone and beside a prompt, and the trial's prompt
        assert not any(driver.runner.cache.layer(i).any() for i in range(2))
        driver.prefill(group, [8])
        for count in (3, 20):
            driver.fork(group, [0] * count, tokens(count, count))
            driver.decode(group)
        assert recorder.captured == captured

    def test_a_graph_that_keeps_its_first_step_is_found_out_before_any_request(self) -> None:
        driver = graphed(Recorder(keeps=True), num_blocks=8)
        driver.runner.warm_up(16)
        assert driver.runner._graphed is not None
        assert not driver.runner._graphed._works

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
        for rows in range(1, MAX_GRAPH_TOKENS + 1):
            size = bucket(rows)
            assert rows <= size
            assert size - rows < max(16, size / 3)
        assert len({bucket(rows) for rows in range(1, MAX_GRAPH_TOKENS + 1)}) == 16


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
        key, steps = (4, 2, 8, None), [self.shape(5, 3), self.shape(7, 3), self.shape(16, 300)]
        planners.plan(key, 4, steps[0])
        first, second, large = [planners.plan_all(step) for step in steps]
        capacity = planners.room(key, first[key])
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
        assert roomy(exact, 10**9, causal=False) == NodeCapacity(0, 64, 4096, 16, 16, 16, 1024, 1024)
        rows = NodeCapacity(65, 0, 5000, 16, 16, 3, 1025, 1025)
        assert roomy(rows, 2000, causal=False) == NodeCapacity(256, 0, 16384, 16, 16, 16, 4096, 2000)
        assert roomy(rows, 2000, causal=True).large_items == 64


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
    """128 query heads for one kv head are four programs, each on 32 of them: a trunk has fewer parts."""
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
