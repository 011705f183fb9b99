"""What a runner says of the bytes that its attention has read, by hand. Blocks of 4 tokens; Llama's two
layers have 4 query and 2 kv heads of 8, float32."""

from __future__ import annotations

import pytest

from tests.model.driver import Driver, Group, StepBuilder
from tests.models import WINDOW, tiny_model

LAYERS, HEADS, DIM = 2, 4, 8
TOKEN = 2 * 2 * DIM * 4
"""Bytes of a layer."""
PART = HEADS * (DIM + 1) * 4 * 2
"""Bytes of a query's partial result in a layer, written and read."""


def prefilled(driver: Driver, tokens: int, count: int) -> int:
    """Of a step that computes the first `count` tokens of a prompt."""
    step = StepBuilder()
    step.prefill(driver.open(range(tokens)), count)
    return told(driver, step)


def decoded(driver: Driver, *groups: Group) -> int:
    step = StepBuilder()
    for group in groups:
        step.decode(group, 1)
    return told(driver, step)


def told(driver: Driver, step: StepBuilder) -> int:
    found = driver.runner.execute(step.plan()).attention_bytes
    assert found is not None
    return found


def forked(driver: Driver, prompt: int, rows: int) -> Group:
    """`rows` rows that have each gone on by a token, which is not computed yet."""
    group = driver.open(range(prompt))
    driver.prefill(group)
    driver.fork(group, [0] * rows, list(range(rows)))
    return group


@pytest.mark.parametrize("attention", ["auto", "nodes"])
@pytest.mark.parametrize("decoder", ["auto", "generic"])
def test_one_row_and_a_chunk_read_their_context(decoder: str, attention: str) -> None:
    driver = Driver(tiny_model("llama"), decoder=decoder, attention=attention)  # type: ignore[arg-type]
    for _ in range(2):  # node lists go another way once the kinds of layers are known
        assert prefilled(driver, 10, 9) == LAYERS * 9 * TOKEN
        assert decoded(driver, forked(driver, 9, 1)) == LAYERS * 10 * TOKEN


@pytest.mark.parametrize("decoder", ["auto", "generic"])
@pytest.mark.parametrize(("rows", "tokens"), [(5, 8 + 5 * 3), (4, 4 * 11)])
def test_a_cpu_reads_what_all_rows_share_once_from_nine_query_rows_on(
    decoder: str, rows: int, tokens: int
) -> None:
    driver = Driver(tiny_model("llama"), decoder=decoder)  # type: ignore[arg-type]
    assert decoded(driver, forked(driver, 10, rows)) == LAYERS * tokens * TOKEN
    beside = decoded(driver, forked(driver, 10, rows), forked(driver, 5, 2))
    assert beside == LAYERS * (tokens + 2 * 6) * TOKEN


def test_node_lists_read_each_node_once_and_move_parts() -> None:
    """Each row has a part of the two blocks that all share, and one of its own 3 tokens."""
    driver = Driver(tiny_model("llama"), attention="nodes")
    for rows in (5, 2):
        found = decoded(driver, forked(driver, 10, rows))
        assert found == LAYERS * ((8 + rows * 3) * TOKEN + 2 * rows * PART)


def test_node_lists_read_for_each_row_what_is_too_short_to_be_a_node() -> None:
    """Two rows behind two blocks that fill a third each; then three, of which two go on from one: the 4
    tokens that these share would cost more in parts than they save."""
    driver = Driver(tiny_model("llama"), attention="nodes")
    group = forked(driver, 8, 2)
    for _ in range(3):
        decoded(driver, group)
        driver.fork(group, [0, 1], [1, 2])
    decoded(driver, group)
    driver.fork(group, [0, 0, 1], [1, 2, 3])
    assert decoded(driver, group) == LAYERS * ((8 + 3 * 5) * TOKEN + 6 * PART)


def test_slices_of_a_step_read_each_what_it_lists() -> None:
    """With memory for one part at a time, no two rows read together."""
    driver = Driver(tiny_model("llama"), attention="nodes")
    group = forked(driver, 10, 5)
    assert driver.runner._planners is not None
    driver.runner._planners._part_bytes = 1
    assert decoded(driver, group) == LAYERS * 5 * 11 * TOKEN


def test_layers_with_a_window_read_from_the_first_block_that_it_sees() -> None:
    """Gemma's layers: one sees 20 tokens, the other all."""
    assert WINDOW == 20
    for attention in ("auto", "nodes"):
        driver = Driver(tiny_model("gemma2"), decoder="generic", attention=attention)
        token = 2 * driver.runner.cache.layer(0)[0, :, 0, 0].numel() * 4
        assert decoded(driver, forked(driver, 29, 1)) == (30 + 22) * token
