"""The fast CPU attention against the reference, and a group's independence of what runs beside it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode_kernels.attention import attention, plan_attention
from forkdecode_kernels.attention_work import make_work
from forkdecode_kernels.reference.attention import attention as reference
from tests.kernels.attention_cases import I32, Blocks, Rows, Segment, Shape, make_kv, make_rows, poison

POOL = 900
SCALE = 0.3


def run(
    query: torch.Tensor,
    kv: torch.Tensor,
    segments: Sequence[Segment] = (),
    decodes: Sequence[Rows] = (),
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    work = make_work(segments, decodes, query.shape[1], kv.shape[3], kv.shape[2] - 1)
    plan = plan_attention(work, num_heads=query.shape[0], kv=kv, window=window)
    return attention(query, kv, plan, scale=SCALE, window=window, softcap=softcap, sinks=sinks)


def used_blocks(segments: Sequence[Segment], decodes: Sequence[Rows]) -> I32:
    parts = [s.blocks for s in segments] + [x for d in decodes for x in (d.trunk, d.tails.ravel())]
    return np.concatenate(parts)


@st.composite
def work_cases(draw: st.DrawFn) -> tuple[Shape, list[Segment], list[Rows], int, int]:
    """(shape, segments, decode rows, T with padding, seed): any mix that fits the pool."""
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    size = draw(st.sampled_from([1, 2, 4, 16, 128]))
    shape = Shape(kv_heads * draw(st.integers(1, 3)), kv_heads, draw(st.sampled_from([4, 16])), size)
    seed = draw(st.integers(0, 2**31))
    blocks = Blocks(POOL, np.random.default_rng(seed), shuffled=draw(st.booleans()))
    token, segments, decodes = 0, [], []
    for _ in range(draw(st.integers(0, 3))):
        position, count = draw(st.integers(0, 70)), draw(st.integers(1, 70))
        segments.append(Segment(token, count, position, blocks.take(-(-(position + count) // size))))
        token += count
    for _ in range(draw(st.integers(0, 4))):
        rows, trunk = draw(st.integers(1, 4)), draw(st.integers(0, 40 // size + 1))
        context = trunk * size + draw(st.integers(0 if trunk else 1, 24))
        decodes.append(make_rows(blocks, size, token, rows, trunk, context))
        token += rows
    return shape, segments, decodes, token + draw(st.integers(0, 3)) + (token == 0), seed


def inputs_of(
    case: tuple[Shape, list[Segment], list[Rows], int, int], with_sinks: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """query, kv and sinks of a case of `work_cases`; NaN stands in all blocks that nothing of it reads."""
    shape, segments, decodes, tokens, seed = case
    generator = torch.Generator().manual_seed(seed)
    kv = make_kv(shape, POOL, generator)
    query = torch.randn(shape.heads, tokens, shape.dim, generator=generator)
    sinks = torch.randn(shape.heads, generator=generator) if with_sinks else None
    if segments or decodes:
        kv = poison(kv, used_blocks(segments, decodes))
    return query, kv, sinks


@settings(max_examples=100, deadline=None)
@given(
    case=work_cases(),
    window=st.none() | st.integers(1, 50),
    softcap=st.none() | st.just(2.0),
    with_sinks=st.booleans(),
)
def test_equals_reference(
    case: tuple[Shape, list[Segment], list[Rows], int, int],
    window: int | None,
    softcap: float | None,
    with_sinks: bool,
) -> None:
    shape, segments, decodes, tokens, _ = case
    query, kv, sinks = inputs_of(case, with_sinks)
    got = run(query, kv, segments, decodes, window, softcap, sinks)
    work = make_work(segments, decodes, tokens, shape.block_size, POOL)
    want = reference(query, kv, work, scale=SCALE, window=window, softcap=softcap, sinks=sinks)
    torch.testing.assert_close(got, want, atol=2e-5, rtol=2e-5)


def test_a_query_may_have_any_strides() -> None:
    """transformers' modules give a turned [T, H, D]; kernels are compiled for contiguous memory alone."""
    shape, generator = Shape(4, 2, 16, 4), torch.Generator().manual_seed(1)
    kv, query = make_kv(shape, POOL, generator), torch.randn(12, 4, 16, generator=generator).transpose(0, 1)
    blocks, sinks = Blocks(POOL, np.random.default_rng(1)), torch.randn(8, generator=generator)[::2]
    segments, decodes = [Segment(3, 9, 5, blocks.take(4))], [make_rows(blocks, 4, 0, 3, 2, 11)]
    got = run(query, kv, segments, decodes, sinks=sinks)
    assert torch.equal(got, run(query.contiguous(), kv, segments, decodes, sinks=sinks.contiguous()))


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("window", [None, 40, 600])
def test_long_contexts_equal_reference(shuffled: bool, window: int | None) -> None:
    shape = Shape(4, 2, 16, 4)
    generator = torch.Generator().manual_seed(1)
    kv = make_kv(shape, POOL, generator)
    blocks = Blocks(POOL, np.random.default_rng(1), shuffled=shuffled)
    decodes = [make_rows(blocks, 4, 0, 3, 150, 609), make_rows(blocks, 4, 3, 1, 200, 801)]
    segments = [Segment(4, 900, 300, blocks.take(300))]
    query = torch.randn(4, 904, 16, generator=generator)
    sinks = torch.randn(4, generator=generator)
    work = make_work(segments, decodes, 904, 4, POOL)
    want = reference(query, kv, work, scale=SCALE, window=window, softcap=None, sinks=sinks)
    got = run(query, kv, segments, decodes, window, None, sinks)
    torch.testing.assert_close(got, want, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(
    ("dtype", "rows"), [(torch.float32, 2), (torch.float32, 24), (torch.bfloat16, 2), (torch.float16, 2)]
)
@pytest.mark.parametrize("size", [4, 16, 128])
def test_every_trunk_length_equals_reference(dtype: torch.dtype, rows: int, size: int) -> None:
    """Two groups of like length share a batch; their trunks are padded, cut into pieces, or neither."""
    shape = Shape(6, 2, 16, size)
    generator = torch.Generator().manual_seed(9)
    kv = make_kv(shape, POOL, generator, dtype)
    query = torch.randn(6, 2 * rows, 16, generator=generator).to(dtype)
    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    for trunk in range(0, 640 // size, max(1, 8 // size)):
        blocks = Blocks(POOL, np.random.default_rng(trunk))
        lengths = (trunk, trunk + 1)
        decodes = [make_rows(blocks, size, i * rows, rows, n, n * size + 3) for i, n in enumerate(lengths)]
        work = make_work([], decodes, 2 * rows, size, POOL)
        want = reference(query, kv, work, scale=SCALE, window=None, softcap=None, sinks=None)
        torch.testing.assert_close(run(query, kv, [], decodes), want, atol=tolerance, rtol=tolerance)


def test_bf16_error_is_within_twice_plain_torch() -> None:
    shape = Shape(9, 3, 64, 16)
    generator = torch.Generator().manual_seed(3)
    kv64 = make_kv(shape, POOL, generator, torch.float64)
    kv = kv64.bfloat16()
    query = torch.randn(9, 40, 64, generator=generator).bfloat16()
    blocks = Blocks(POOL, np.random.default_rng(0))
    decodes = [make_rows(blocks, 16, i * 4, 4, trunk, trunk * 16 + 21) for i, trunk in enumerate([3, 9, 40])]
    segments = [Segment(12, 28, 600, blocks.take(40))]
    got = run(query, kv, segments, decodes)
    exact, plain = torch.zeros(40, 9, 64, dtype=torch.float64), torch.zeros(40, 9, 64, dtype=torch.bfloat16)
    for token, table, length in _rows_of(segments, decodes):
        for out, dtype in ((exact, torch.float64), (plain, torch.bfloat16)):
            k, v = kv[:, :, torch.from_numpy(table.astype(np.int64))].flatten(2, 3)[:, :, :length].to(dtype)
            q = query[:, token].to(dtype).view(3, 3, 64)
            scores = torch.bmm(q, k.transpose(1, 2)) * SCALE
            out[token] = torch.bmm(torch.softmax(scores, -1), v).view(9, 64)
    ours, theirs = ((x.double() - exact).abs().square().mean().sqrt().item() for x in (got, plain))
    assert ours <= 2 * theirs


def _rows_of(segments: Sequence[Segment], decodes: Sequence[Rows]) -> list[tuple[int, I32, int]]:
    found = [
        (s.token_start + i, s.blocks, s.position + i + 1) for s in segments for i in range(s.token_count)
    ]
    for d in decodes:
        found += [
            (d.token_start + r, np.concatenate([d.trunk, t]), d.context_len) for r, t in enumerate(d.tails)
        ]
    return found


# float16 by torch's products, the others by compiled kernels.
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(autouse=True)
def _set_threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    if "threads" in request.fixturenames:
        torch.set_num_threads(request.getfixturevalue("threads"))
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "trunk"), [(1, 3), (1, 20), (4, 0), (4, 7), (8, 20), (4, 40)])
def test_group_is_bitwise_independent_of_batch_mates(
    dtype: torch.dtype, rows: int, trunk: int, threads: int
) -> None:
    """Alone, among groups of equal shape, among others, and wherever its blocks lie."""
    shape = Shape(9, 3, 64, 16)
    generator = torch.Generator().manual_seed(7)
    kv = make_kv(shape, POOL, generator, dtype)
    context = trunk * 16 + 21
    group = make_rows(Blocks(POOL, np.random.default_rng(0), shuffled=False), 16, 0, rows, trunk, context)
    query = torch.randn(9, rows, 64, generator=generator).to(dtype)
    alone = run(query, kv, [], [group])
    for mates, seed in ((1, 1), (7, 2), (30, 3)):
        rng = np.random.default_rng(seed)
        blocks = Blocks(POOL, rng, shuffled=bool(seed % 2))
        moved = make_rows(blocks, 16, 0, rows, trunk, context)
        other = kv.clone()
        for old, new in zip((group.trunk, group.tails), (moved.trunk, moved.tails), strict=True):
            other[:, :, torch.from_numpy(new.ravel())] = kv[:, :, torch.from_numpy(old.ravel())]
        decodes, token = [moved], rows
        for _ in range(min(mates, (POOL - 200) // (trunk + 3 * rows))):
            same = rng.random() < 0.7
            r, t = (rows, trunk) if same else (int(rng.integers(1, 6)), int(rng.integers(0, 9)))
            decodes.append(make_rows(blocks, 16, token, r, t, t * 16 + (21 if same else 9)))
            token += r
        padded = torch.randn(9, token, 64, generator=generator).to(dtype)
        padded[:, :rows] = query
        assert torch.equal(run(padded, other, [], decodes)[:rows], alone), (mates, seed)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("heads", [3, 9])
def test_prefill_is_bitwise_independent_of_chunking(
    dtype: torch.dtype, window: int | None, heads: int, threads: int
) -> None:
    shape = Shape(heads, 3, 64, 16)
    generator = torch.Generator().manual_seed(8)
    kv = make_kv(shape, POOL, generator, dtype)
    total = 640
    table = Blocks(POOL, np.random.default_rng(0)).take(-(-total // 16))
    query = torch.randn(heads, total, 64, generator=generator).to(dtype)
    whole = run(query, kv, [Segment(0, total, 0, table)], window=window)
    for cuts in ([1, 17, 300, 301, 530], [40, 100, 600, 639]):
        edges = [0, *cuts, total]
        parts = [Segment(a, b - a, a, table) for a, b in itertools.pairwise(edges)]
        assert torch.equal(run(query, kv, parts, window=window), whole)
        for part in parts[:3]:
            stop = part.token_start + part.token_count
            only = Segment(0, part.token_count, part.position, table[: -(-stop // 16)])
            got = run(query[:, part.token_start : stop].contiguous(), kv, [only], window=window)
            assert torch.equal(got, whole[part.token_start : stop])


def test_bad_shapes_are_named() -> None:
    shape = Shape()
    kv = make_kv(shape, 10, torch.Generator())
    rows = make_rows(Blocks(10, np.random.default_rng(0)), 4, 0, 1, 1, 6)
    work = make_work([], [rows], 1, 4, 10)
    with pytest.raises(ValueError, match="num_heads is 3"):
        plan_attention(work, num_heads=3, kv=kv)
    with pytest.raises(ValueError, match="window is 0"):
        plan_attention(work, num_heads=4, kv=kv, window=0)
    plan = plan_attention(work, num_heads=4, kv=kv)
    with pytest.raises(ValueError, match="must be \\[H, T = 1, D\\]"):
        attention(torch.zeros(4, 2, 8), kv, plan, scale=1.0)
    with pytest.raises(ValueError, match="plan was made for None"):
        attention(torch.zeros(4, 1, 8), kv, plan, scale=1.0, window=3)
    with pytest.raises(ValueError, match="sinks"):
        attention(torch.zeros(4, 1, 8), kv, plan, scale=1.0, sinks=torch.zeros(3))
    with pytest.raises(ValueError, match="does not fit"):
        attention(torch.zeros(4, 1, 8, dtype=torch.bfloat16), kv, plan, scale=1.0)
    with pytest.raises(ValueError, match="blocks cover 4 of 9"):
        make_work([Segment(0, 2, 7, np.zeros(1, np.int32))], [], 2, 4, 10)
    with pytest.raises(ValueError, match="8 < 9"):
        make_work([], [Rows(0, np.zeros(1, np.int32), np.zeros((1, 1), np.int32), 9)], 1, 4, 10)
