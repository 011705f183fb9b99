"""Random models, prompts and options for hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from forkdecode import Beam, Contrastive, CustomScorer, DiverseBeam, LengthNormalised, Options
from tests.oracle.markov import Markov, markov

MOST_SEQUENCES = 1500
"""That a model may have, where all of them are enumerated."""
FILTERS = {
    # No round shares: sums of probabilities must not equal them.
    "temperature": st.sampled_from([0.3, 0.7, 1.0, 1.0, 2.5]),
    "top_k": st.sampled_from([0, 0, 1, 2, 3]),
    "top_p": st.sampled_from([1.0, 1.0, 0.913, 0.537]),
    "min_p": st.sampled_from([0.0, 0.0, 0.0213, 0.317]),
    "typical_p": st.sampled_from([1.0, 1.0, 0.953, 0.431]),
    "seed": st.integers(0, 2**64 - 1),
}


@st.composite
def models(draw: st.DrawFn, *, vocab: int | None = None) -> Markov:
    """2 to 6 tokens, 0 to 3 of them EOS ids, likely ones as a rule; never all of them."""
    size = draw(st.integers(2, 6)) if vocab is None else vocab
    eos = draw(st.lists(st.integers(0, size - 1), max_size=min(3, size - 1), unique=True))
    return markov(draw(st.integers(0, 10**6)), size, eos, likely_ends=draw(st.sampled_from([0.0, 1.0, 3.0])))


def prompts(vocab: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, vocab - 1), min_size=1, max_size=7).map(tuple)


def depth_of(vocab: int) -> int:
    """How many tokens a sequence may have, 6 at most, so that there are few enough of them."""
    return max(d for d in range(1, 7) if vocab**d <= MOST_SEQUENCES)


@st.composite
def plain_options(draw: st.DrawFn, model: Markov, most: int = 6) -> Options:
    """Ends and lengths alone."""
    longest = draw(st.integers(1, most))
    return Options(
        max_tokens=longest,
        min_tokens=draw(st.sampled_from([0, 0, longest // 2, longest])),
        stop_token_ids=tuple(draw(st.lists(tokens_of(model), max_size=2, unique=True))),
        ignore_eos=draw(st.booleans()),
    )


def tokens_of(model: Markov) -> st.SearchStrategy[int]:
    return st.integers(0, model.vocab - 1)


@st.composite
def options(draw: st.DrawFn, model: Markov, most: int = 6) -> Options:
    """Of all that changes logits, a few at a time."""
    plain = draw(plain_options(model, most))
    chosen = {name: draw(values) for name, values in _changes(model).items() if draw(st.integers(0, 3)) == 0}
    prefix = draw(_prefixes(model, plain, chosen))
    return Options(
        max_tokens=plain.max_tokens,
        min_tokens=plain.min_tokens,
        stop_token_ids=plain.stop_token_ids,
        ignore_eos=plain.ignore_eos,
        forced_prefix=prefix,
        **chosen,
    )


def _changes(model: Markov) -> dict[str, st.SearchStrategy[Any]]:
    tokens = tokens_of(model)
    word = st.lists(tokens, min_size=1, max_size=3).map(tuple)
    return {
        "repetition_penalty": st.sampled_from([0.5, 1.3, 3.0]),
        "presence_penalty": st.sampled_from([-1.0, 0.7, 4.0]),
        "frequency_penalty": st.sampled_from([-1.0, 0.7, 4.0]),
        "no_repeat_ngram_size": st.integers(1, 3),
        "logit_bias": st.dictionaries(tokens, st.floats(-4, 4, width=16), max_size=3),
        "bad_words": st.lists(word, min_size=1, max_size=3).map(tuple),
        "allowed_token_ids": st.lists(tokens, min_size=1, max_size=model.vocab, unique=True).map(tuple),
    }


@st.composite
def _prefixes(draw: st.DrawFn, model: Markov, plain: Options, chosen: dict[str, Any]) -> tuple[int, ...]:
    """A forced prefix that the other options allow; none as a rule."""
    if draw(st.integers(0, 3)):
        return ()
    ends = set(plain.stop_token_ids) | (set() if plain.ignore_eos else model.eos)
    banned = {word[-1] for word in chosen.get("bad_words", ())}
    allowed: Sequence[int] = chosen.get("allowed_token_ids", range(model.vocab))
    usable = [t for t in allowed if t not in ends and t not in banned]
    if not usable:
        return ()
    return tuple(draw(st.lists(st.sampled_from(usable), max_size=min(3, plain.max_tokens))))


SCORERS = st.one_of(
    st.builds(LengthNormalised, alpha=st.sampled_from([0.0, 0.6, 2.0])),
    st.builds(
        Contrastive,
        baseline=st.lists(st.floats(-8, 0, width=16), min_size=1, max_size=6).map(tuple),
        weight=st.sampled_from([-0.5, 0.5, 1.0]),
    ),
    st.just(CustomScorer(lambda sums, length, data: sums + data * length, 0.7)),
)


@st.composite
def beams(draw: st.DrawFn, widths: st.SearchStrategy[int], *, more: bool = False) -> Beam:
    """All of what makes a beam search end, and what it ranks by; and with `more` widths that change,
    ranks among siblings, and scorers."""
    early = draw(st.sampled_from([False, True, "never"]))
    chosen: dict[str, Any] = {
        "width": draw(widths),
        "length_penalty": draw(st.sampled_from([-2.0, -0.5, 0.0, 0.5, 1.0, 2.0])),
        "early_stopping": early,
        "patience": draw(st.sampled_from([0.3, 0.5, 1.0, 1.5, 2.0])) if early is True else 1.0,
    }
    if more:
        chosen |= draw(scorers(early))
        chosen["sibling_penalty"] = draw(st.sampled_from([0.0, 0.0, 0.3, 2.0]))
        steps = tuple(draw(st.lists(st.integers(1, chosen["width"]), max_size=6)))
        chosen["widths"] = steps and (*steps[:-1], chosen["width"], *steps[-1:])
    return Beam(**chosen)


@st.composite
def scorers(draw: st.DrawFn, early: object) -> dict[str, Any]:
    """A scorer that such an end allows, as a rule none."""
    scorer = draw(st.none() | SCORERS)
    if scorer is None or (early == "never" and isinstance(scorer, CustomScorer)):
        return {}
    return (
        {"scorer": scorer} if isinstance(scorer, Contrastive) else {"scorer": scorer, "length_penalty": 1.0}
    )


@st.composite
def diverse_beams(draw: st.DrawFn) -> DiverseBeam:
    early = draw(st.sampled_from([False, True, "never"]))
    groups, each = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    chosen: dict[str, Any] = {
        "width": max(2, groups * each) if groups == 1 else groups * each,
        "groups": groups,
        "diversity_penalty": draw(st.sampled_from([0.0, 0.3, 1.7, 50.0])),
        "length_penalty": draw(st.sampled_from([-1.0, 0.0, 1.0, 2.0])),
        "early_stopping": early,
        "num_return_sequences": draw(st.none() | st.integers(1, groups * each)),
    }
    return DiverseBeam(**(chosen | draw(scorers(early))))
