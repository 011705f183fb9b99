"""What a strategy may ask of its rows' logits. Shapes: R rows, N candidates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Draw:
    """Draw one token for each of N children; child i continues the group's logits row source[i]. Children
    of a row that nothing legal follows get none.

    temperature 0 is argmax (ties to the lower token id). top_k 0, top_p 1, min_p 0 and typical_p 1
    are off. The uniform of child i is `lineage.uniform(lineage[i], position)`.
    """

    source: I32
    lineage: U64
    position: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0


@dataclass(frozen=True, slots=True)
class FinishMask:
    """Which tokens would complete a stop string: table[state[r], token] for logits row r."""

    table: Bools
    state: I64


@dataclass(frozen=True, slots=True)
class TopK:
    """The best `k` continuations over all R rows of the group.

    score = base[r] + processed log-probability, float32; ordered by score, then row, then token;
    candidates at -inf are never listed. With `finishing`, k is doubled until `live` listed
    candidates don't finish or no legal candidate is left out.
    """

    k: int
    base: F32
    live: int
    finishing: FinishMask | None = None
    finishing_ids: I64 | None = None


@dataclass(frozen=True, slots=True)
class Gather:
    """The raw log-probabilities of named tokens: child i is `tokens[i]` after the group's logits row
    source[i]. Processors do not apply."""

    source: I32
    tokens: I64


@dataclass(frozen=True, slots=True)
class RowTopK:
    """The best `k` continuations of each row by itself: row after row, best first, of equals the lower
    token.

    score = base[r] + processed log-probability, float32; candidates at -inf are never listed. Where a stop
    string (`finishing`) or a constraint may end candidates, k is doubled until in each row `live` listed
    ones don't finish, or as many as the constraint leaves, or no legal one is left out; finishing_ids
    are the ids that finish besides.
    """

    k: int
    base: F32
    live: int = 0
    finishing: FinishMask | None = None
    finishing_ids: I64 | None = None


@dataclass(frozen=True, slots=True)
class GumbelTopK:
    """The `k` continuations of the highest perturbed log-probability over all rows of the group: sampling
    without replacement (Kool et al. 2019, "Stochastic beams and where to find them", section 3).

    logprob [R]: each row's log-probability under the distribution drawn from (after processors and the
    filters below, renormalised). gumbel [R]: its perturbed log-probability; inf for the one row that a
    group starts with, which is conditioned on nothing. Noise is Philox(lineage[r], position, token id).
    The result's selection_logprobs are of that distribution, its scores the perturbed log-probabilities;
    ordered by score, then row, then token.
    """

    k: int
    logprob: F64
    gumbel: F64
    lineage: U64
    position: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0


Choice: TypeAlias = Draw | TopK | RowTopK | GumbelTopK | Gather
