"""Sampling without replacement, with nothing left out: all sequences perturbed, the best kept."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from forkdecode import StochasticBeam, lineage
from forkdecode_kernels.reference.random import gumbels
from tests.oracle.beam_rule import Path

Distribution = Callable[[Path], list[float]]
"""Generated tokens -> [V] probabilities of the next one; all zero where nothing is legal."""


@dataclass(frozen=True)
class Leaf:
    """A complete sequence: its log-probability, and the perturbed one."""

    tokens: Path
    logprob: float
    gumbel: float


def perturbed_leaves(
    distribution: Distribution, ends: Callable[[Path], bool], max_tokens: int, seed: int, prompt_len: int
) -> list[Leaf]:
    """All of them, best first. From the root down each node's children get Gumbel noise, conditioned on
    their maximum being the node's own (Kool et al. 2019, section 4.1, equation 14)."""
    found: list[Leaf] = []

    def grow(node: Leaf, name: int) -> None:
        if node.tokens and (ends(node.tokens) or len(node.tokens) == max_tokens):
            found.append(node)
            return
        probs = distribution(node.tokens)
        legal = [t for t, p in enumerate(probs) if p]
        noise = gumbel_noise(name, prompt_len + len(node.tokens), legal)
        raw = {t: node.logprob + math.log(probs[t]) + noise[t] for t in legal}
        for token in legal:
            perturbed = raw[token]
            if node.gumbel < math.inf:
                mass = math.exp(-node.gumbel) - math.exp(-max(raw.values())) + math.exp(-raw[token])
                perturbed = -math.log(mass)
            child = Leaf((*node.tokens, token), node.logprob + math.log(probs[token]), perturbed)
            grow(child, int(lineage.child(name, token)))

    grow(Leaf((), 0.0, math.inf), int(lineage.root(seed)))
    return sorted(found, key=lambda leaf: -leaf.gumbel)


def gumbel_noise(name: int, position: int, tokens: list[int]) -> dict[int, float]:
    """The standard Gumbel variables of a node's tokens."""
    key = torch.tensor([name - (1 << 64) if name >> 63 else name])
    values = gumbels(key, torch.tensor([position]), torch.tensor([tokens])) if tokens else torch.empty(1, 0)
    return dict(zip(tokens, values[0].tolist(), strict=True))


def without_replacement(
    strategy: StochasticBeam,
    distribution: Distribution,
    ends: Callable[[Path], bool],
    max_tokens: int,
    prompt_len: int,
) -> tuple[list[Leaf], float]:
    """The width best, and the smallest gap that decided which they are and how they are ordered."""
    assert strategy.seed is not None
    leaves = perturbed_leaves(distribution, ends, max_tokens, strategy.seed, prompt_len)
    near = leaves[: strategy.width + 1]
    gaps = [a.gumbel - b.gumbel for a, b in itertools.pairwise(near)]
    return leaves[: strategy.width], min(gaps, default=math.inf)
