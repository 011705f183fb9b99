"""Requests with the mean lengths of two public traces, and what of them was decoded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from forkdecode.step import I32, I64

VARIATION = 0.9
"""Standard deviation over mean of the log-normal lengths."""
PAIRINGS = 1000
"""Of how many the best is taken."""


@dataclass(frozen=True)
class Trace:
    """Mean lengths in tokens, as the PagedAttention paper (Kwon et al. 2023, section 6.1) gives them.
    variation: standard deviation over mean of the outputs."""

    name: str
    prompt_mean: float
    output_mean: float
    variation: float = VARIATION

    def lengths(self, count: int, seed: int) -> tuple[I64, I64]:
        """Prompt and output lengths [count] each, independent of each other, at least 1."""
        rng = np.random.default_rng(seed)
        prompts = stratified(self.prompt_mean, count, rng, VARIATION)
        return prompts, stratified(self.output_mean, count, rng, self.variation)

    def pairs(self, count: int, seed: int) -> tuple[I64, I64]:
        """The same lengths where `count` is small: which prompt has which output is not left to one draw,
        see `paired`."""
        prompts, outputs = self.lengths(count, seed)
        return prompts, paired(prompts, outputs, np.random.default_rng([seed, PAIRINGS]))


TRACES = {t.name: t for t in (Trace("alpaca", 19.31, 58.45), Trace("sharegpt", 161.31, 337.99))}

PAPER = {
    ("alpaca", "sample"): (6.1, 9.8),
    ("alpaca", "beam"): (37.6, 55.2),
    ("sharegpt", "sample"): (16.2, 30.5),
    ("sharegpt", "beam"): (44.3, 66.3),
}
"""Per cent saved for n or width 2 to 6, block size 16 (section 6.3; OPT-13B)."""


def stratified(mean: float, count: int, rng: np.random.Generator, variation: float = VARIATION) -> I64:
    """[count] log-normal lengths: the middles of `count` equally likely parts, shuffled, scaled to the
    mean, so that a few requests have the mean and the spread of many."""
    sigma = math.sqrt(math.log(1 + variation**2))
    normal = NormalDist()
    values = np.array([math.exp(sigma * normal.inv_cdf((i + 0.5) / count)) for i in range(count)])
    values *= mean / values.mean()
    lengths: I64 = np.maximum(1, np.rint(rng.permutation(values))).astype(np.int64)
    return lengths


def paired(prompts: I64, outputs: I64, rng: np.random.Generator) -> I64:
    """`outputs` in the order, of PAIRINGS drawn ones, in which the mean of prompt * output is nearest to the
    product of the means, as independent lengths of many requests have it.

    Samples save the prompt's blocks in each step of the output, so that this mean is what their saving goes
    by. Of one draw of 24 its standard deviation is a sixth of it."""
    product = prompts.mean() * outputs.mean()
    orders = (rng.permutation(outputs) for _ in range(PAIRINGS))
    return min(orders, key=lambda order: abs(float((prompts * order).mean()) - product))


def pairing(prompts: I64, outputs: I64) -> float:
    """The mean of prompt * output over the product of the means; independent lengths of many have 1."""
    return float((prompts * outputs).mean() / (prompts.mean() * outputs.mean()))


@dataclass(frozen=True)
class Decoded:
    """What one request decoded: selection i made row r continue parents[i][r] with tokens[i][r]."""

    prompt_len: int
    parents: tuple[I32, ...]
    tokens: tuple[I64, ...]
