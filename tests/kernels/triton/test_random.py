"""Counter-based random numbers are the project's lineages, bit for bit."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode import lineage
from forkdecode_kernels import random as public
from forkdecode_kernels.triton.philox import gumbels, uniforms

WORDS = st.integers(0, 2**64 - 1)


def tensor(words: list[int]) -> torch.Tensor:
    return torch.from_numpy(np.array(words, np.uint64).view(np.int64))


@settings(max_examples=30)
@given(st.lists(st.tuples(WORDS, st.integers(0, 2**40)), min_size=1, max_size=150))
def test_uniforms_are_the_lineages(pairs: list[tuple[int, int]]) -> None:
    keys, positions = zip(*pairs, strict=True)
    expected = lineage.uniform(np.array(keys, np.uint64), np.array(positions, np.uint64))
    for op in (uniforms, public.uniforms):
        np.testing.assert_array_equal(op(tensor(list(keys)), torch.tensor(positions)).numpy(), expected)


@settings(max_examples=20)
@given(st.lists(WORDS, min_size=1, max_size=5), st.integers(1, 60), st.integers(0, 2**31))
def test_gumbels_follow_the_specification(keys: list[int], width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens = torch.from_numpy(rng.integers(0, 262_144, (len(keys), width)))
    positions = torch.from_numpy(rng.integers(0, 100_000, len(keys)))
    ours = gumbels(tensor(keys), positions, tokens)
    spec = public.gumbels(tensor(keys), positions, tokens)
    torch.testing.assert_close(ours, spec, rtol=1e-14, atol=1e-14)
    alone = gumbels(tensor(keys), positions, tokens[:, -1:])
    assert torch.equal(alone, ours[:, -1:])


def test_gumbel_noise_is_gumbel() -> None:
    """Mean 0.5772, variance pi^2 / 6, within five standard errors of 50,000 draws."""
    noise = public.gumbels(torch.tensor([7]), torch.tensor([3]), torch.arange(50_000)[None])[0].numpy()
    assert abs(noise.mean() - np.euler_gamma) < 5 * noise.std() / np.sqrt(len(noise))
    assert abs(noise.var() - np.pi**2 / 6) < 0.15


def test_noise_and_draws_never_share_a_stream() -> None:
    """The uniform of a position is no token's noise there."""
    key, position = tensor([99]), torch.tensor([5])
    word = lineage.philox(np.uint64(99), 5, 0xF2)[..., 0]
    streams = np.arange(1000, dtype=np.uint64) << np.uint64(32) | np.uint64(0xF3)
    assert word not in lineage.philox(np.uint64(99), 5, streams)[..., 0]
    assert public.uniforms(key, position)[0] == (int(word) >> 11) * 2.0**-53
