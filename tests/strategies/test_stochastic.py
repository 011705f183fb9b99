"""Stochastic beams against what sampling without replacement gives, and step by step."""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode import lineage
from forkdecode.errors import GroupFailedError
from forkdecode.step import GumbelTopK, SelectionResult
from forkdecode.strategies.factory import make_policy
from forkdecode.strategies.hypotheses import EOS, LENGTH, LIVE, STOP
from forkdecode.strategies.policy import GroupRows, StopHits
from forkdecode.strategies.stochastic import StochasticBeamPolicy
from forkdecode.types import Options, StochasticBeam
from forkdecode_kernels.reference.perturbed import log1mexp
from tests.strategies.toy import Markov, Run, markov, run

Tokens = tuple[int, ...]


def search(model: Markov, width: int, max_tokens: int, seed: int = 0, temperature: float = 1.0) -> Run:
    strategy = StochasticBeam(width, temperature)
    policy = make_policy(strategy, Options(max_tokens=max_tokens), np.array(model.eos, np.int64))
    return run(policy, model, max_tokens, seed=seed)


def sequences(model: Markov, max_tokens: int, temperature: float = 1.0) -> dict[Tokens, float]:
    """Every sequence and its probability."""
    wide = np.exp(model.logprobs.astype(np.float64) / temperature)
    table = wide / wide.sum(-1, keepdims=True)
    found: dict[Tokens, float] = {}
    open_: list[tuple[Tokens, float]] = [((), 1.0)]
    while open_:
        tokens, p = open_.pop()
        last = tokens[-1] if tokens else 0
        for token in range(model.vocab):
            chance, longer = p * float(table[last, token]), (*tokens, token)
            if not chance:
                continue
            if len(longer) == max_tokens or model.reason(last, token) != LIVE:
                found[longer] = chance
            else:
                open_.append((longer, chance))
    return found


def gumbel_of(model: Markov, tokens: Tokens, seed: int) -> float:
    """The perturbed log-probability of one sequence, from the root down, in plain words: each prefix's G is
    the largest of its children's, so a child's is its own noise, cut off there."""
    phi, best, key = 0.0, math.inf, lineage.root(seed)
    last = 0
    for position, token in enumerate(tokens, 1):
        own = model.logprobs[last].astype(np.float64)
        every = np.flatnonzero(own > -np.inf)
        stream = (every.astype(np.uint64) << np.uint64(32)) | np.uint64(0xF3)
        words = lineage.philox(key, position, stream)[..., 0]
        noise = -np.log(-np.log(((words >> np.uint64(12)) + 0.5) * 2.0**-52))
        g = phi + own[every] + noise
        at = int(np.flatnonzero(every == token)[0])
        if math.isfinite(best):
            v = best - g[at] + float(log1mexp(np.array(g[at] - g.max())))
            best = best - max(0.0, v) - math.log1p(math.exp(-abs(v)))
        else:
            best = float(g[at])
        phi += float(own[token])
        key = np.uint64(lineage.child(key, token))
        last = token
    return best


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    model_seed=st.integers(0, 10_000),
    seed=st.integers(0, 10_000),
    vocab=st.integers(2, 4),
    width=st.integers(1, 9),
    max_tokens=st.integers(1, 3),
    eos=st.lists(st.integers(0, 3), max_size=2, unique=True),
    stops=st.booleans(),
)
def test_it_is_the_best_of_all_sequences_by_perturbed_log_probability(
    model_seed: int, seed: int, vocab: int, width: int, max_tokens: int, eos: list[int], stops: bool
) -> None:
    """Without a beam: the noise of every sequence there is, and a sort."""
    pairs = [(0, 1), (1, 1)] if stops else []
    model = markov(model_seed, vocab, eos=[e for e in eos if e < vocab], pairs=pairs)
    everything = sequences(model, max_tokens)
    noisy = {tokens: gumbel_of(model, tokens, seed) for tokens in everything}
    best = sorted(noisy, key=lambda t: -noisy[t])[:width]
    found = search(model, width, max_tokens, seed)
    assert [r[0] for r in found.results] == best
    np.testing.assert_allclose([r[1] for r in found.results], [noisy[t] for t in best], rtol=1e-5)
    assert found.batch is not None
    np.testing.assert_allclose(found.batch.selection, np.log([everything[t] for t in best]), rtol=1e-5)
    ends = {EOS, STOP, LENGTH}
    assert {r[2] for r in found.results} <= ends


def test_a_temperature_shapes_what_is_sampled_and_not_the_raw_sums() -> None:
    model = markov(3, 4, eos=[0])
    found = search(model, 5, 3, temperature=2.0)
    flat, raw = sequences(model, 3, 2.0), sequences(model, 3)
    assert found.batch is not None
    tokens = [r[0] for r in found.results]
    np.testing.assert_allclose(np.exp(found.batch.selection), [flat[t] for t in tokens], rtol=1e-5)
    np.testing.assert_allclose(np.exp(found.batch.cumulative), [raw[t] for t in tokens], rtol=1e-5)


def ordered_probability(p: list[float]) -> float:
    """Of drawing sequences of these probabilities in this order, without replacement."""
    chance, left = 1.0, 1.0
    for one in p:
        chance *= one / left
        left -= one
    return chance


RUNS = 1500


@cache
def drawn() -> tuple[Markov, list[list[Tokens]]]:
    """The first three sequences of many seeds."""
    model = markov(11, 3, eos=[0])
    return model, [[r[0] for r in search(model, 3, 3, seed).results] for seed in range(RUNS)]


@pytest.mark.parametrize("k", [1, 2])
def test_orders_have_the_probabilities_of_drawing_one_by_one(k: int) -> None:
    """Pearson's chi-square over ordered k-tuples; rare ones together."""
    model, runs = drawn()
    p = sequences(model, 3)
    expected = {
        order: RUNS * ordered_probability([p[t] for t in order]) for order in itertools.permutations(p, k)
    }
    assert math.isclose(sum(expected.values()), RUNS)
    counts = dict.fromkeys(expected, 0)
    for found in runs:
        counts[tuple(found[:k])] += 1
    rare = [order for order, mean in expected.items() if mean < 8]
    cells = [(counts[o], mean) for o, mean in expected.items() if mean >= 8]
    if rare:
        cells.append((sum(counts[o] for o in rare), sum(expected[o] for o in rare)))
    chi_square = sum((seen - mean) ** 2 / mean for seen, mean in cells)
    freedom = len(cells) - 1
    assert freedom > 8
    # Wilson and Hilferty's normal approximation; 3.1 is one in a thousand, and the seeds are fixed.
    z = ((chi_square / freedom) ** (1 / 3) - 1 + 2 / (9 * freedom)) / math.sqrt(2 / (9 * freedom))
    assert abs(z) < 3.1


def test_inclusion_probabilities_are_those_of_drawing_without_replacement() -> None:
    model, runs = drawn()
    p = sequences(model, 3)
    wanted = dict.fromkeys(p, 0.0)
    for order in itertools.permutations(p, 3):
        chance = ordered_probability([p[t] for t in order])
        for tokens in order:
            wanted[tokens] += chance
    assert math.isclose(sum(wanted.values()), 3)
    for tokens, q in wanted.items():
        seen = sum(tokens in found for found in runs)
        assert abs(seen - RUNS * q) < 3.9 * math.sqrt(RUNS * q * (1 - q)) + 1e-9


def test_a_narrower_beam_is_the_head_of_a_wider_one() -> None:
    model = markov(5, 4, eos=[1])
    whole = search(model, 500, 3, seed=9).results
    assert len(whole) == len(sequences(model, 3))
    for width in (1, 2, 7):
        assert search(model, width, 3, seed=9).results == whole[:width]


def test_seeds_repeat_and_differ() -> None:
    model = markov(6, 5, eos=[1])
    assert search(model, 3, 4, seed=1).results == search(model, 3, 4, seed=1).results
    assert len({tuple(r[0] for r in search(model, 3, 4, seed=s).results) for s in range(20)}) > 10


def test_lineages_descend_with_the_tokens() -> None:
    found = search(markov(7, 5), 4, 4, seed=3)
    for rows, tokens in zip(found.rows[1:], found.tokens, strict=False):
        expected = lineage.descend(lineage.root(3), np.array(tokens, np.int64))
        np.testing.assert_array_equal(rows.lineage, expected)


def test_fewer_sequences_than_the_width_are_all_of_them_and_said_so() -> None:
    policy = StochasticBeamPolicy(StochasticBeam(50))
    assert not policy.exhausted
    run(policy, markov(8, 3), 2)
    assert len(policy.results()) == 9
    assert policy.exhausted
    full = StochasticBeamPolicy(StochasticBeam(9))
    run(full, markov(8, 3), 2)
    assert not full.exhausted


def answered(scores: list[float], rows: list[int], tokens: list[int]) -> SelectionResult:
    logprobs = np.full(len(scores), -1.0, np.float32)
    return SelectionResult(
        0,
        np.array(rows, np.int32),
        np.array(tokens, np.int64),
        logprobs,
        logprobs,
        np.array(scores, np.float32),
    )


def hits(*reasons: int) -> StopHits:
    return StopHits(np.array(reasons, np.uint8))


def test_a_finished_sequence_that_falls_behind_is_dropped() -> None:
    policy = StochasticBeamPolicy(StochasticBeam(2))
    rows = GroupRows.prompt(1, 0)
    policy.choose(rows)
    first = policy.decide(answered([-1.0, -4.0], [0, 0], [5, 6]), rows, hits(LIVE, EOS))
    assert policy.results().score.tolist() == [-4.0]
    rows = first.next_rows(rows)
    choice: Any = policy.choose(rows)
    assert isinstance(choice, GumbelTopK)
    assert choice.gumbel.tolist() == [-1.0]
    assert choice.logprob.tolist() == [-1.0]
    second = policy.decide(answered([-1.0, -2.0], [0, 0], [3, 4]), rows, hits(LIVE, LIVE))
    assert len(policy.results()) == 0
    assert second.picks.tolist() == [0, 1]
    assert not second.done


def test_of_equals_the_finished_stays() -> None:
    policy = StochasticBeamPolicy(StochasticBeam(2))
    rows = GroupRows.prompt(1, 0)
    first = policy.decide(answered([-1.0, -2.0], [0, 0], [5, 6]), rows, hits(LIVE, EOS))
    second = policy.decide(answered([-1.0, -2.0], [0, 0], [3, 4]), first.next_rows(rows), hits(EOS, LIVE))
    assert second.done
    assert policy.results().token.tolist() == [3, 6]


def test_nothing_legal_at_all_fails_and_later_ends_with_what_there_is() -> None:
    none = answered([], [], [])
    policy = StochasticBeamPolicy(StochasticBeam(2))
    rows = GroupRows.prompt(1, 0)
    with pytest.raises(GroupFailedError, match="no legal token at generated token 1"):
        policy.decide(none, rows, hits())
    first = policy.decide(answered([-1.0, -2.0], [0, 0], [5, 6]), rows, hits(LIVE, EOS))
    second = policy.decide(none, first.next_rows(rows), hits())
    assert second.done
    assert policy.exhausted
    assert policy.results().token.tolist() == [6]
