"""TopN by itself: on tables of probabilities, against all sequences sorted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.errors import InvalidRequestError
from forkdecode.search import TopN
from forkdecode.search.best_first import Look, Seen
from tests.strategies.toy import Markov, markov

Tokens = tuple[int, ...]


@dataclass
class Oracle:
    """Answers looks from a Markov model; token 0 ends. page: children told of at once."""

    model: Markov
    page: int
    looked: list[Tokens] = field(default_factory=list)

    def see(self, look: Look) -> Seen:
        tokens = look.tokens
        if look.token is not None:
            assert tokens not in self.looked, "once is enough"
            self.looked.append(tokens)
            if look.token == 0:
                return Seen(ended="eos")
            if look.last:
                return Seen()
        row = self.model.logprobs[tokens[-1] if tokens else 0].astype(float)
        legal = sorted((-row[t], t) for t in range(len(row)) if row[t] > -math.inf and t not in look.skip)
        children = tuple((t, -cost) for cost, t in legal[: self.page])
        rest = children[-1][1] if len(legal) > self.page else -math.inf
        return Seen(children=children, rest=rest)


def everything(model: Markov, max_tokens: int) -> dict[Tokens, float]:
    found: dict[Tokens, float] = {}
    open_: list[tuple[Tokens, float]] = [((), 0.0)]
    while open_:
        tokens, score = open_.pop()
        row = model.logprobs[tokens[-1] if tokens else 0].astype(float)
        for token, logprob in enumerate(row.tolist()):
            if logprob == -math.inf:
                continue
            if token == 0:
                found[*tokens, 0] = score + logprob
            elif len(tokens) + 1 < max_tokens:
                open_.append(((*tokens, token), score + logprob))
    return found


def complete(policy: TopN, oracle: Oracle, rounds: int = 10_000) -> None:
    for _ in range(rounds):
        looks = policy.ask()
        if not looks:
            return
        policy.tell([oracle.see(look) for look in looks])


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    vocab=st.integers(2, 6),
    max_tokens=st.integers(1, 5),
    n=st.integers(1, 30),
    batch=st.integers(1, 9),
    page=st.integers(1, 6),
    banned=st.sampled_from([0.0, 0.4]),
    rounds=st.sampled_from([1, 3, 10_000]),
)
def test_it_is_the_head_of_all_sequences(
    seed: int, vocab: int, max_tokens: int, n: int, batch: int, page: int, banned: float, rounds: int
) -> None:
    model = markov(seed, vocab, banned=banned)
    truth = sorted(everything(model, max_tokens).items(), key=lambda item: -item[1])
    policy = TopN(n, max_tokens=max_tokens, batch=batch)
    complete(policy, Oracle(model, page), rounds)
    certain = policy.certain
    if rounds == 10_000:
        assert policy.exact
    if policy.exact:
        assert len(certain) == min(n, len(truth))
    # Paths that take the same steps in another order are equally likely: any of them may come first.
    scores = dict(truth)
    assert len({c.token_ids for c in certain}) == len(certain)
    for one, (_, score) in zip(certain, truth, strict=False):
        assert math.isclose(one.score, score, abs_tol=1e-9)
        assert math.isclose(one.score, scores[one.token_ids], abs_tol=1e-9)
    others = {tokens: score for tokens, score in truth if tokens not in {c.token_ids for c in certain}}
    assert all(score <= policy.bound + 1e-9 for score in others.values())
    assert all(c.token_ids in others for c in policy.pending)
    assert len(policy.pending) <= n - len(certain)


def test_one_at_a_time_looks_at_nothing_in_vain() -> None:
    """Uniform-cost search: only what is at least as likely as the last of the answer is looked at."""
    model = markov(3, 5)
    oracle = Oracle(model, 5)
    policy = TopN(4, max_tokens=5, batch=1)
    complete(policy, oracle)
    worst = policy.certain[-1].score
    for tokens in oracle.looked:
        score = sum(float(model.logprobs[a, b]) for a, b in zip((0, *tokens), tokens, strict=False))
        assert score >= worst - 1e-6


def test_what_was_not_looked_at_is_asked_for_again() -> None:
    policy, oracle = TopN(3, max_tokens=4, batch=2), Oracle(markov(4, 4), 4)
    (first,) = policy.ask()
    policy.tell([None])
    assert not policy.exact
    assert policy.ask() == (first,)
    policy.tell([oracle.see(first)])
    complete(policy, oracle)
    assert policy.exact


def test_a_limit_on_looks_holds() -> None:
    policy = TopN(3, batch=8)
    assert policy.ask(0) == ()
    assert not policy.exact
    assert policy.bound == 0.0


@pytest.mark.parametrize("name", ["n", "max_tokens", "batch"])
def test_numbers_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{name}: "):
        TopN(**{"n": 1, name: 0})
