"""The best continuations against a full sort under the kernel's own sums, and these against float64."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode_kernels.calls import alone
from forkdecode_kernels.reference.topk import group_topk
from forkdecode_kernels.topk import RowGroups, gpu_groups, reference_group
from forkdecode_kernels.triton import beam_topk as kernels
from forkdecode_kernels.triton.beam_topk_kernels import tile_sums_kernel
from forkdecode_kernels.triton.packed_order import EMPTY
from forkdecode_kernels.triton.packed_order import unpacked as from_packed

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def run(logits, sizes, ks, base, **options):  # type: ignore[no-untyped-def]
    count = np.array(sizes)
    start = np.cumsum(count) - count
    vocab, normalized = logits.shape[1], options.pop("normalized", False)
    return alone(
        kernels.beam_topk(start, count, np.array(ks), base, vocab, normalized=normalized, **options), logits
    )


def unpacked(found, group, k, vocab):  # type: ignore[no-untyped-def]
    packed = found.packed[group, :k]
    packed = packed[packed != EMPTY]
    return *from_packed(packed, vocab), found.logprobs[group, : len(packed)]


@settings(max_examples=15)
@given(
    st.integers(0, 2**31),
    st.integers(1, 700),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 80)), min_size=1, max_size=3),
    st.sampled_from(DTYPES),
    st.sampled_from([None, 1.0, 0.3]),
    st.booleans(),
)
def test_equals_the_full_sort(
    seed: int,
    vocab: int,
    shape: list[tuple[int, int]],
    dtype: torch.dtype,
    step: float | None,
    masked: bool,
) -> None:
    """Normalised logits: then every score is exact, ties included."""
    generator = torch.Generator().manual_seed(seed)
    sizes, ks = [n for n, _ in shape], [k for _, k in shape]
    logits = torch.randn(sum(sizes), vocab, generator=generator) * 3
    if step is not None:
        logits = (logits * step).round()
    if masked:
        logits[torch.rand(logits.shape, generator=generator) < 0.6] = -torch.inf
    logits = logits.to(dtype)
    base = np.round(np.random.default_rng(seed).normal(size=sum(sizes)) * 2).astype(np.float32)
    found = run(logits, sizes, ks, base, normalized=True, tile=128)
    first = 0
    for g, (n, k) in enumerate(zip(sizes, ks, strict=True)):
        rows = slice(first, first + n)
        expected = group_topk(
            logits[rows].float(), torch.from_numpy(base[rows]), torch.zeros(n, dtype=torch.float64), k
        )
        assert found.valid[g]
        for ours, theirs in zip(unpacked(found, g, k, vocab), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs.numpy())
        first += n


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_softmax_is_as_exact_as_torchs(dtype: torch.dtype) -> None:
    logits = (torch.randn(3, 40_000, generator=torch.Generator().manual_seed(2)) * 4).to(dtype)
    found = run(logits, [1] * 3, [50] * 3, np.zeros(3, np.float32))
    exact, plain = torch.log_softmax(logits.double(), -1), torch.log_softmax(logits.float(), -1).double()
    allowed = 2 * (plain - exact).abs().max()
    for g in range(3):
        _, tokens, scores, logprobs = unpacked(found, g, 50, 40_000)
        assert np.abs(logprobs - exact[g, tokens].numpy()).max() <= allowed
        np.testing.assert_array_equal(scores, logprobs)
        assert set(tokens[:40]) <= set(logits[g].float().topk(50).indices.tolist())


def test_many_rows_and_ties_go_to_the_lower_row_then_token() -> None:
    found = run(torch.zeros(64, 200), [64], [130], np.zeros(64, np.float32), tile=128, capacity=1 << 14)
    rows, tokens, _, _ = unpacked(found, 0, 130, 200)
    np.testing.assert_array_equal(rows * 200 + tokens, np.arange(130))


def test_overflowing_and_narrow_groups_are_exact() -> None:
    """1,200 ties and room for 64; then one row of three tiles, asked for more."""
    found = run(torch.zeros(4, 300), [4], [4], np.zeros(4, np.float32), tile=128, capacity=64)
    rows, tokens, _, _ = unpacked(found, 0, 4, 300)
    assert list(zip(rows, tokens, strict=True)) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    logits = torch.randn(5, 300, generator=torch.Generator().manual_seed(3))
    found = run(logits, [1, 4], [290, 2], np.zeros(5, np.float32), tile=128)
    _, tokens, scores, logprobs = unpacked(found, 0, 290, 300)
    np.testing.assert_array_equal(tokens, torch.sort(logits[0], descending=True).indices[:290].numpy())
    np.testing.assert_array_equal(scores, logprobs)
    assert len(unpacked(found, 1, 2, 300)[0]) == 2


def test_bad_and_empty_rows() -> None:
    logits = torch.randn(8, 333, generator=torch.Generator().manual_seed(0))
    clean = run(logits, [2] * 4, [4] * 4, np.zeros(8, np.float32), tile=128)
    logits[3, 332], logits[5, 0] = float("nan"), float("inf")
    logits[6:] = -torch.inf
    found = run(logits, [2] * 4, [4] * 4, np.zeros(8, np.float32), tile=128)
    assert found.valid.tolist() == [True, False, False, True]
    np.testing.assert_array_equal(found.packed[0], clean.packed[0])
    assert len(unpacked(found, 0, 4, 333)[0]) == 4
    assert len(unpacked(found, 3, 4, 333)[0]) == 0


def test_independent_of_the_batch() -> None:
    logits = torch.randn(24, 1000, generator=torch.Generator().manual_seed(1)).bfloat16()
    base = np.random.default_rng(0).normal(size=24).astype(np.float32)
    together = run(logits, [4] * 6, [8] * 6, base, tile=256)
    for g in (0, 5):
        own = slice(4 * g, 4 * g + 4)
        alone = run(logits[own], [4], [8], base[own], tile=256)
        np.testing.assert_array_equal(alone.packed[0], together.packed[g])
        np.testing.assert_array_equal(alone.logprobs[0], together.logprobs[g])


def test_more_candidates_than_their_numbers_hold_are_refused() -> None:
    one, rows, none = np.ones(1, np.int64), np.array([1 << 14]), np.zeros(1, np.float32)
    with pytest.raises(ValueError, match="16384 rows of 262144 tokens"):
        kernels.beam_topk(one - 1, rows, one, none, 1 << 18, normalized=False)


def test_strided_logits_are_read_where_they_lie() -> None:
    wide = torch.randn(4, 900)
    a = run(wide[:, :700], [4], [5], np.zeros(4, np.float32), tile=256)
    b = run(wide[:, :700].contiguous(), [4], [5], np.zeros(4, np.float32), tile=256)
    np.testing.assert_array_equal(a.packed, b.packed)


def test_the_operation_on_a_gpu_answers_as_the_reference() -> None:
    """Groups out of order, one with a bad row, one with fewer candidates than asked for."""
    logits = torch.randn(9, 500, generator=torch.Generator().manual_seed(4)) * 3
    logits[8] = -torch.inf
    logits[8, :3] = 1.0
    logits[0, 7] = float("nan")
    groups = RowGroups(np.array([4, 0, 8]), np.array([4, 2, 1]), np.array([9, 3, 5]))
    base = np.random.default_rng(1).normal(size=7).astype(np.float32)
    found = gpu_groups(logits, groups, base, False)
    for ours, start, count, k, b in zip(found, (4, 0, 8), (4, 2, 1), (9, 3, 5), (0, 4, 6), strict=True):
        expected = reference_group(logits[start : start + count], base[b : b + count], k, False)
        assert ours.valid == expected.valid == (start != 0)
        np.testing.assert_array_equal(ours.rows, expected.rows)
        np.testing.assert_array_equal(ours.tokens, expected.tokens)
        np.testing.assert_allclose(ours.scores, expected.scores, rtol=0, atol=2e-6)
        np.testing.assert_allclose(ours.logprobs, expected.logprobs, rtol=0, atol=2e-6)


@pytest.mark.parametrize("k", [32, 2048], ids=["by a bound", "the plain way"])
def test_the_largest_vocabulary_and_k(k: int) -> None:
    """262,144 tokens in tiles of the size that ships; the best is the last one. 64 tiles bound 32 of them."""
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(1, 262_144, generator=generator).round(decimals=2).to(torch.float16)
    logits[0, -1] = 9.0
    found = run(logits, [1], [k], np.ones(1, np.float32), normalized=True)
    expected = group_topk(logits.float(), torch.ones(1), torch.zeros(1, dtype=torch.float64), k)
    for ours, theirs in zip(unpacked(found, 0, k, 262_144), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())
    assert expected[1][0] == 262_143


@pytest.mark.parametrize("capacity", [None, 256], ids=["fits", "overflows"])
def test_many_of_many_tiles_by_a_bound(capacity: int | None) -> None:
    """512 tiles bound the 256 best. With room for no more than these the list overflows, for the bound lets
    through more."""
    rows, vocab, k = 8, 64 * 64, 256
    generator = torch.Generator().manual_seed(8)
    logits = torch.randn(rows, vocab, generator=generator).round(decimals=2).to(torch.float16)
    base = torch.randn(rows, generator=generator)
    found = run(logits, [rows], [k], base.numpy(), normalized=True, tile=64, capacity=capacity)
    expected = group_topk(logits.float(), base, torch.zeros(rows, dtype=torch.float64), k)
    for ours, theirs in zip(unpacked(found, 0, k, vocab), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())


class MostTilesByTorch:
    """The sums of a row's tiles: of the first ones by the kernel, of the others by torch, for which the
    interpreter would need as long as for all that follows."""

    def __getitem__(self, grid: tuple[int, int]) -> Callable[..., None]:
        rows, real = grid[0], 32

        def launch(*arrays: Any, TILE: int, num_warps: int, **options: bool) -> None:
            logits, _, best, sums = arrays[:4]
            tile_sums_kernel[(rows, real)](*arrays, TILE=TILE, num_warps=num_warps, **options)
            values = logits.view(rows, -1, TILE)[:, real:]
            best[:, real:] = values.amax(2)
            sums[:, real:] = (values - best[:, real:, None]).exp().sum(2)

        return launch


def test_the_largest_k_of_the_largest_vocabulary_by_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,048 of 262,144 tokens, with many ties, in 4,096 tiles, which are the fewest that bound so many."""
    vocab, k = 262_144, 2048
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(9)).round(decimals=3)
    monkeypatch.setattr(kernels, "tile_sums_kernel", MostTilesByTorch())
    monkeypatch.setattr(kernels, "dense_best", pytest.fail)  # neither too few tiles nor too little room
    found = run(logits, [1], [k], np.zeros(1, np.float32), tile=64)
    exact = torch.log_softmax(logits.double(), -1)[0]
    rows, tokens, scores, logprobs = unpacked(found, 0, k, vocab)
    order = torch.sort(logits[0], descending=True, stable=True).indices[:k].numpy()
    np.testing.assert_array_equal(tokens, order)
    assert not rows.any()
    np.testing.assert_array_equal(scores, logprobs)
    np.testing.assert_allclose(scores, exact[order].numpy(), rtol=0, atol=2e-6)


class Launches:
    """Which variants of a kernel are launched; it does nothing."""

    def __init__(self) -> None:
        self.variants: set[tuple[int, int, int]] = set()

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, CHUNK: int, num_warps: int, **options: Any) -> None:
            self.variants.add((arguments[3], CHUNK, num_warps))

        return launch


WIDTHS = (1, 2, 8, 27, 32, 64, 512, 2048)


def ignored(*_: Any, **__: Any) -> None:
    """A launch of what is not looked at."""


@pytest.mark.parametrize("vocab", [257, 151_936])
def test_no_width_of_a_beam_launches_what_was_not_warmed_up(
    vocab: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be compiled while requests wait."""
    warm, seen = Launches(), Launches()
    monkeypatch.setattr(kernels, "bound_kernel", warm)
    kernels.warm_up(torch.device("cpu"), vocab)
    monkeypatch.setattr(kernels, "bound_kernel", seen)
    monkeypatch.setattr(
        kernels, "collect_kernel", {(width, -(-vocab // kernels.TILE)): ignored for width in WIDTHS}
    )
    tiles = -(-vocab // kernels.TILE)
    inputs: Any = SimpleNamespace(logits=torch.empty(1, vocab), groups=torch.zeros(1, 3, dtype=torch.int32))
    inputs.rows = inputs.owner = inputs.base = torch.zeros(1)
    for width in WIDTHS:
        scores = torch.empty(width, tiles)
        kernels._collected(inputs, scores, scores, width * tiles, tiles, kernels.TILE, 4096)
    assert len(seen.variants) == 2
    assert seen.variants <= warm.variants


def test_the_bound_is_the_same_by_either_shape() -> None:
    """3,000 tiles in groups, the largest of 2,500, taken 1,024 and 16,384 at a time."""
    scores = torch.randn(3000, generator=torch.Generator().manual_seed(1)).round(decimals=2)
    groups = torch.tensor([[0, 2500, 1000], [2500, 400, 1], [2900, 100, 100]], dtype=torch.int32)
    found = []
    for shape in kernels.BOUND_SHAPES:
        found.append(torch.empty(3, dtype=torch.int32))
        kernels._find_bounds(scores, groups, found[-1], 1, shape)
    assert torch.equal(*found)
    keys = scores.view(torch.int32)
    keys = torch.where(keys >= 0, keys, keys ^ 0x7FFFFFFF)
    for (first, count, k), bound in zip(groups.tolist(), found[0].tolist(), strict=True):
        kth = int(keys[first : first + count].sort(descending=True).values[k - 1])
        assert bound <= kth < bound + (1 << (32 - kernels.BOUND_BITS))
