"""How many tokens attention on a CPU reads, by hand. Blocks of 4 tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from forkdecode_kernels.attention import plan_attention
from forkdecode_kernels.attention_reads import tokens_read
from forkdecode_kernels.attention_work import make_work
from tests.kernels.attention_cases import Blocks, Rows, Segment, make_rows

KV_HEADS, SIZE, BLOCKS = 2, 4, 300


def rows(count: int, start: int = 0) -> Rows:
    """With two blocks in common and 3 tokens each behind them."""
    return make_rows(Blocks(BLOCKS, np.random.default_rng(0)), SIZE, start, count, 2, 11)


def segment(position: int, count: int, start: int = 0) -> Segment:
    return Segment(start, count, position, np.arange(-(-(position + count) // SIZE), dtype=np.int32))


def read(
    segments: list[Segment],
    decodes: list[Rows],
    *,
    group: int = 2,
    window: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> int:
    count = sum(s.token_count for s in segments) + sum(len(d.tails) for d in decodes)
    work = make_work(segments, decodes, count, SIZE, BLOCKS)
    kv = torch.empty(2, KV_HEADS, BLOCKS + 1, SIZE, 8, dtype=dtype)
    plan = plan_attention(work, num_heads=group * KV_HEADS, kv=kv, window=window)
    return tokens_read(plan, group)


@pytest.mark.parametrize(
    ("count", "group", "tokens"),
    [
        (1, 2, 11),
        (3, 3, 8 + 3 * 3),  # 9 query rows read the trunk together
        (4, 2, 4 * 11),  # 8 each for itself
        (48, 2, 8 + 48 * 3),
        (100, 2, 8 + 8 + 4 * 8 + 100 * 3),  # 48 rows together, 48 more, and 4 alone
    ],
)
def test_rows_read_their_trunk_together_from_nine_query_rows_on(count: int, group: int, tokens: int) -> None:
    assert read([], [rows(count)], group=group) == tokens


@pytest.mark.parametrize(
    ("window", "tokens"),
    [
        (11, 8 + 9),
        (8, 8 + 9),  # the query at position 10 sees from 3 on: its block is read whole
        (7, 4 + 9),  # from 4 on, the second block
        (3, 9),  # from 8 on: tails alone
        (1, 9),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_window_reads_from_the_first_block_that_it_sees(
    window: int, tokens: int, dtype: torch.dtype
) -> None:
    assert read([], [rows(3)], group=3, window=window, dtype=dtype) == tokens


def test_products_read_a_trunk_once_for_any_rows() -> None:
    for count in (1, 2, 100):
        assert read([], [rows(count)], dtype=torch.float16) == 8 + count * 3


def test_a_segment_reads_its_context_once_whatever_its_tiles() -> None:
    assert read([segment(5, 6)], []) == 11
    assert read([segment(0, 700)], []) == 700
    assert read([segment(8, 6)], [], window=3) == 14 - 4  # the first of them, at 8, sees from 6 on
    assert read([segment(5, 6)], [], dtype=torch.float16) == 11


def test_what_is_in_a_step_is_added_up() -> None:
    assert read([segment(5, 6)], [rows(3, 6), rows(5, 9)]) == 11 + 3 * 11 + 8 + 5 * 3


def test_the_reference_reads_all_for_each_query() -> None:
    work = make_work([segment(5, 6)], [rows(3, 6)], 9, SIZE, BLOCKS)
    assert tokens_read(work, 2) == 6 + 7 + 8 + 9 + 10 + 11 + 3 * 11
