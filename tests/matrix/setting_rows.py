"""Rows of the settings that belong to some strategies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from forkdecode import Candidate, Contrastive, CustomScorer, LengthNormalised, Sample
from tests.llm.models import EOS_ID
from tests.matrix.rows import DRAWN, Check, Decoder, Refusal, Row, generated, plain

Drawn = Any
"""A strategy that has the setting."""
OFTEN_EOS = {"ignore_eos": False, "logit_bias": {EOS_ID: 4.0}}
"""Candidates of many lengths."""


def likeliest(llm: Decoder) -> tuple[int, ...]:
    return generated(plain(llm, None))[0]  # type: ignore[arg-type]


def leaves_one(**change: Any) -> Check:
    """At its limit the setting leaves each step one token: the likeliest one."""

    def check(llm: Decoder, strategy: Drawn) -> None:
        assert set(generated(plain(llm, replace(strategy, **change)))) == {likeliest(llm)}
        assert len(set(generated(plain(llm, strategy)))) == 3

    return check


def temperature(llm: Decoder, strategy: Drawn) -> None:
    cold, hot = (generated(plain(llm, replace(strategy, temperature=t))) for t in (0.001, 50.0))
    assert cold[0] == likeliest(llm)
    assert likeliest(llm) not in hot


def typical_p(llm: Decoder, strategy: Drawn) -> None:
    """At its limit one token a step, which need not be the likeliest."""
    assert len(set(generated(plain(llm, replace(strategy, typical_p=1e-6))))) == 1


def seed(llm: Decoder, strategy: Drawn) -> None:
    found = [generated(plain(llm, replace(strategy, seed=s))) for s in (1, 1, 2, None, None)]
    assert found[0] == found[1]
    assert len({tuple(tokens) for tokens in found}) == 4


def n(llm: Decoder, strategy: Drawn) -> None:
    for count in (1, 2, 4):
        assert len(generated(plain(llm, replace(strategy, n=count)))) == count


def best_of(llm: Decoder, strategy: Drawn) -> None:
    """The best of as many samples as Sample draws with the same seed."""
    samples = plain(llm, Sample(n=7, seed=strategy.seed)).candidates
    best = sorted(samples, key=lambda c: -c.cumulative_logprob)[:2]
    assert generated(plain(llm, replace(strategy, best_of=7, n=2))) == [c.token_ids for c in best]


def rank_by(llm: Decoder, strategy: Drawn) -> None:
    def longest(candidates: Sequence[Candidate]) -> list[float]:
        return [float(len(c.token_ids)) for c in candidates]

    keys: dict[Any, Callable[[Candidate], float]] = {
        "cumulative_logprob": lambda c: c.cumulative_logprob,
        "mean_logprob": lambda c: c.cumulative_logprob / len(c.token_ids),
        longest: lambda c: len(c.token_ids),
    }
    orders = []
    for name, key in keys.items():
        found = plain(llm, replace(strategy, best_of=8, n=8, rank_by=name), **OFTEN_EOS).candidates
        assert list(found) == sorted(found, key=key, reverse=True)
        orders.append([c.index for c in found])
    assert orders[0] != orders[1] != orders[2]


def first_finished(llm: Decoder, strategy: Drawn) -> None:
    many = replace(strategy, best_of=8, n=1)
    lengths = [len(c.token_ids) for c in plain(llm, replace(many, n=8), **OFTEN_EOS).candidates]
    first = plain(llm, replace(many, first_finished=1), **OFTEN_EOS).candidates
    assert {len(c.token_ids) for c in first} == {min(lengths)}
    assert max(lengths) > min(lengths)


def width(llm: Decoder, strategy: Drawn) -> None:
    for count in (2, 6):
        found = generated(plain(llm, replace(strategy, width=count)))
        assert len(found) == count


def num_return_sequences(llm: Decoder, strategy: Drawn) -> None:
    every = generated(plain(llm, strategy))
    assert generated(plain(llm, replace(strategy, num_return_sequences=2))) == every[:2]


def length_penalty(llm: Decoder, strategy: Drawn) -> None:
    lengths = []
    for penalty in (-3.0, 0.0, 5.0):
        found = plain(llm, replace(strategy, length_penalty=penalty), **OFTEN_EOS).candidates
        lengths.append(len(found[0].token_ids))
        for c in found:
            assert abs(c.score - c.selection_logprob / len(c.token_ids) ** penalty) <= 1e-5 * abs(c.score)
    assert lengths[0] < lengths[2]


def early_stopping(llm: Decoder, strategy: Drawn) -> None:
    """Length pays, so that stopping at once and never stopping differ."""
    found = [
        generated(plain(llm, replace(strategy, early_stopping=early, length_penalty=3.0), **OFTEN_EOS))
        for early in (True, "never")
    ]
    assert found[0] != found[1]


def patience(llm: Decoder, strategy: Drawn) -> None:
    for factor, pool in ((1.0, 3), (2.0, 6)):
        patient = replace(strategy, patience=factor, early_stopping=True)
        assert len(plain(llm, patient, **OFTEN_EOS).candidates) == pool


def scorer(llm: Decoder, strategy: Drawn) -> None:
    baseline = tuple(-2.0 * i for i in range(1, 13))
    rules: list[tuple[Any, Callable[[float, int], float]]] = [
        (LengthNormalised(alpha=2.0), lambda total, g: total / ((5 + g) / 6) ** 2.0),
        (Contrastive(baseline, weight=0.5), lambda total, g: (total - 0.5 * baseline[g - 1]) / g),
    ]
    for named, rule in rules:
        check_scores(llm, replace(strategy, scorer=named), rule)


def custom_scorer(llm: Decoder, strategy: Drawn) -> None:
    ours = CustomScorer(lambda sums, length, data: sums + data * length, 10.0)
    check_scores(llm, replace(strategy, scorer=ours), lambda total, g: total + 10.0 * g)


def check_scores(llm: Decoder, strategy: Drawn, rule: Callable[[float, int], float]) -> None:
    found = plain(llm, strategy, **OFTEN_EOS).candidates
    assert len(found) == strategy.width
    for c in found:
        assert abs(c.score - rule(c.selection_logprob, len(c.token_ids))) < 1e-4
    assert [c.score for c in found] == sorted((c.score for c in found), reverse=True)


def widths(llm: Decoder, strategy: Drawn) -> None:
    """One beam after the first step: all candidates go on from it."""
    two: dict[str, Any] = {"logit_bias": {65: 100.0, 66: 100.0}, "max_tokens": 2}
    assert {t[0] for t in generated(plain(llm, strategy, **two))} == {65, 66}
    narrow = generated(plain(llm, replace(strategy, widths=(1, 3)), **two))
    assert len(narrow) == 3
    assert len({t[0] for t in narrow}) == 1


def sibling_penalty(llm: Decoder, strategy: Drawn) -> None:
    """When a sibling costs more than anything, each of the first three beams goes on by its best alone."""
    found = generated(plain(llm, replace(strategy, sibling_penalty=1e4)))
    assert len({t[0] for t in found}) == 3


def groups(llm: Decoder, strategy: Drawn) -> None:
    """Groups of one that avoid each other: no first token twice."""
    found = generated(plain(llm, replace(strategy, groups=4, diversity_penalty=1e4)))
    assert len({t[0] for t in found}) == 4


def diversity_penalty(llm: Decoder, strategy: Drawn) -> None:
    """Without it all groups find the same."""
    same = generated(plain(llm, replace(strategy, diversity_penalty=0.0)))
    assert len(set(same)) == strategy.width // strategy.groups
    assert len(set(generated(plain(llm, replace(strategy, diversity_penalty=1e4))))) == strategy.width


SENDS_NO_CODE = Refusal("scorer", "a function cannot be sent")
RANKED = ("Beam", "DiverseBeam")
ROWS = [
    Row("n", n, only=("Sample", "BestOf")),
    Row("best_of", best_of, only=("BestOf",)),
    Row("rank_by", rank_by, only=("BestOf",)),
    Row("first_finished", first_finished, only=("BestOf",)),
    Row("temperature", temperature, only=DRAWN),
    Row("top_k", leaves_one(top_k=1), only=DRAWN),
    Row("top_p", leaves_one(top_p=1e-6), only=DRAWN),
    Row("min_p", leaves_one(min_p=1.0), only=DRAWN),
    Row("typical_p", typical_p, only=DRAWN),
    Row("seed", seed, only=DRAWN),
    Row("width", width, only=(*RANKED, "StochasticBeam")),
    Row("num_return_sequences", num_return_sequences, only=RANKED),
    Row("length_penalty", length_penalty, only=RANKED),
    Row("early_stopping", early_stopping, only=RANKED),
    Row("scorer", scorer, only=RANKED),
    Row("scorer: CustomScorer", custom_scorer, only=RANKED, remote=SENDS_NO_CODE),
    Row("patience", patience, only=("Beam",)),
    Row("widths", widths, only=("Beam",)),
    Row("sibling_penalty", sibling_penalty, only=("Beam",)),
    Row("groups", groups, only=("DiverseBeam",)),
    Row("diversity_penalty", diversity_penalty, only=("DiverseBeam",)),
]
