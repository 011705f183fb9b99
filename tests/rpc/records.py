"""Hypothesis strategies of requests, events and results."""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import strategies as st

from forkdecode.constraint_types import CatalogueEnd, FromCatalogue, JsonSchema, Lark, Regex
from forkdecode.results import (
    BeamUpdate,
    Candidate,
    CandidateFinished,
    Committed,
    DecodeResult,
    Delta,
    Event,
    Finished,
    FinishReason,
    LiveBeam,
    ScoredContinuation,
    ScoreResult,
    Started,
    TokenLogprob,
    Usage,
)
from forkdecode.rpc.convert_requests import DecodeCall, ScoreCall
from forkdecode.types import (
    MAX_COUNT,
    MAX_SEED,
    Beam,
    BestOf,
    Contrastive,
    DiverseBeam,
    Greedy,
    LengthNormalised,
    Options,
    RankBy,
    Sample,
    StochasticBeam,
)

NAME = "request-1"
texts = st.text(st.characters(codec="utf-8"), max_size=12)
some_text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
token = st.integers(0, 2**31 - 1)
ids = st.lists(token, max_size=5).map(tuple)
some_ids = st.lists(token, min_size=1, max_size=5).map(tuple)
seeds = st.none() | st.integers(0, MAX_SEED)
request_ids = st.none() | some_text
chats = st.lists(st.fixed_dictionaries({"role": texts, "content": texts}), min_size=1, max_size=4)
prompts = some_text | some_ids | chats
reasons = st.sampled_from(get_args(FinishReason))
doubles = st.floats(allow_nan=False)
floats = st.floats(width=32, allow_nan=False)


def between(low: float, high: float, *, open_low: bool = False) -> st.SearchStrategy[float]:
    return st.floats(low, high, exclude_min=open_low)


sampling: dict[str, st.SearchStrategy[Any]] = {
    "temperature": between(0, 1e4, open_low=True),
    "top_k": st.integers(0, 2**31 - 1),
    "top_p": between(0, 1, open_low=True),
    "min_p": between(0, 1),
    "typical_p": between(0, 1, open_low=True),
    "seed": seeds,
}
samples = st.builds(Sample, n=st.integers(1, MAX_COUNT), **sampling)


@st.composite
def best_ofs(draw: st.DrawFn) -> BestOf:
    best_of = draw(st.integers(1, MAX_COUNT))
    n = draw(st.integers(1, best_of))
    settings = {name: draw(values) for name, values in sampling.items()}
    rank_by = draw(st.sampled_from(get_args(RankBy)))
    first = draw(st.none() | st.integers(n, best_of))
    return BestOf(best_of, n, **settings, rank_by=rank_by, first_finished=first)


scorers = st.builds(LengthNormalised, between(-100, 100)) | st.builds(
    Contrastive, st.lists(between(-1e6, 1e6), min_size=1, max_size=4).map(tuple), between(-1e4, 1e4)
)


@st.composite
def endings(draw: st.DrawFn) -> dict[str, Any]:
    """What beams have in common."""
    scorer = draw(st.none() | scorers)
    return {
        "length_penalty": 1.0 if isinstance(scorer, LengthNormalised) else draw(between(-100, 100)),
        "early_stopping": draw(st.sampled_from([True, False, "never"])),
        "scorer": scorer,
    }


@st.composite
def beams(draw: st.DrawFn) -> Beam:
    widths = tuple(draw(st.lists(st.integers(1, MAX_COUNT), max_size=4)))
    width = max(widths) if widths else draw(st.integers(1, MAX_COUNT))
    settings = draw(endings())
    settings["patience"] = draw(between(0.5, 10)) if settings["early_stopping"] is True else 1.0
    pool = Beam(width, **settings, widths=widths).pool_size
    returned = draw(st.none() | st.integers(1, pool))
    return Beam(width, returned, **settings, widths=widths, sibling_penalty=draw(between(0, 1e4)))


@st.composite
def diverse_beams(draw: st.DrawFn) -> DiverseBeam:
    groups, each = draw(st.integers(1, 256)), draw(st.integers(1, 256))
    returned = draw(st.none() | st.integers(1, groups * each))
    return DiverseBeam(groups * each, groups, draw(between(0, 1e4)), returned, **draw(endings()))


stochastic_beams = st.builds(
    StochasticBeam,
    st.integers(1, MAX_COUNT),
    **{**sampling, "temperature": between(0, 1e4, open_low=True)},
)
strategies = st.just(Greedy()) | samples | best_ofs() | beams() | diverse_beams() | stochastic_beams


constraints = (
    st.builds(Regex, some_text)
    | st.builds(JsonSchema, st.dictionaries(texts, some_text, max_size=3))
    | st.builds(Lark, some_text, st.sampled_from(["lark", "gbnf"]))
    | st.builds(FromCatalogue, some_text, st.sampled_from(get_args(CatalogueEnd)))
)


@st.composite
def options(draw: st.DrawFn) -> Options:
    max_tokens = draw(st.integers(1, 2**31 - 1))
    number = between(-100, 100)
    return Options(
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, max_tokens)),
        stop=tuple(draw(st.lists(some_text, max_size=3))),
        stop_token_ids=draw(ids),
        include_stop=draw(st.booleans()),
        ignore_eos=draw(st.booleans()),
        repetition_penalty=draw(between(1e-4, 1e4)),
        presence_penalty=draw(number),
        frequency_penalty=draw(number),
        no_repeat_ngram_size=draw(st.integers(0, 1024)),
        logit_bias=draw(st.dictionaries(token, between(-1e4, 1e4), max_size=4)),
        bad_words=tuple(draw(st.lists(some_text | some_ids, max_size=3))),
        allowed_token_ids=draw(st.none() | some_ids),
        forced_prefix=draw(texts | ids),
        constraint=draw(st.none() | constraints),
        logprobs=draw(st.none() | st.integers(0, 1024)),
        update_every=draw(st.integers(0, 2**31 - 1)),
        update_beams=draw(st.integers(0, MAX_COUNT)),
        priority=draw(st.integers(-(2**31), 2**31 - 1)),
        cache_salt=draw(texts),
    )


calls = st.builds(DecodeCall, prompts, strategies, options(), request_ids, st.booleans())
score_calls = st.builds(
    ScoreCall,
    prompts,
    st.lists(some_text | some_ids, min_size=1, max_size=4).map(tuple),
    st.integers(0, 1024),
    st.integers(-(2**31), 2**31 - 1),
    texts,
    request_ids,
)

tops = st.lists(st.tuples(token, floats), max_size=3).map(tuple)
token_logprobs = st.builds(TokenLogprob, token, floats, floats, tops, tops)


def logprobs_of(tokens: tuple[int, ...]) -> st.SearchStrategy[tuple[TokenLogprob, ...] | None]:
    """None, or one a token; without tokens there is nothing to tell apart."""
    if not tokens:
        return st.none()
    return st.none() | st.tuples(*(token_logprobs for _ in tokens))


@st.composite
def deltas(draw: st.DrawFn, candidate: int) -> Delta:
    tokens = draw(ids)
    return Delta(NAME, candidate, tokens, draw(texts), draw(logprobs_of(tokens)))


@st.composite
def candidates(draw: st.DrawFn) -> Candidate:
    tokens = draw(some_ids)
    numbers = (draw(doubles), draw(doubles), draw(doubles))
    index = draw(st.integers(0, MAX_COUNT))
    item = draw(st.none() | texts)
    return Candidate(index, tokens, draw(texts), draw(reasons), *numbers, draw(logprobs_of(tokens)), item)


count = st.integers(0, 2**63)
seconds = between(0, 1e9)
usages = st.builds(Usage, *[count] * 12, *[seconds] * 4)


@st.composite
def results(draw: st.DrawFn) -> DecodeResult:
    found = tuple(draw(st.lists(candidates(), max_size=3)))
    usage, exhausted = draw(usages), draw(st.booleans())
    return DecodeResult(NAME, draw(some_ids), draw(strategies), draw(seeds), found, usage, exhausted)


@st.composite
def score_results(draw: st.DrawFn) -> ScoreResult:
    scored = []
    for index in range(draw(st.integers(1, 3))):
        tokens = draw(some_ids)
        each = draw(st.tuples(*(token_logprobs for _ in tokens)))
        scored.append(ScoredContinuation(index, tokens, draw(texts), draw(doubles), each))
    return ScoreResult(NAME, draw(some_ids), tuple(scored), draw(usages))


live_beams = st.builds(LiveBeam, st.integers(1, 2**64 - 1), st.integers(0, 2**64 - 1), ids, texts, doubles)
small = st.integers(0, 2**32 - 1)
updates = st.builds(
    BeamUpdate, st.just(NAME), small, st.lists(live_beams, max_size=3).map(tuple), st.integers(0, MAX_COUNT)
)


@st.composite
def steps(draw: st.DrawFn) -> list[Event]:
    """Events of one step, in the order in which a message holds them."""
    events: list[Event] = []
    if draw(st.booleans()):
        events.append(Started(NAME, draw(small), draw(small)))
    for candidate in draw(st.lists(st.integers(0, MAX_COUNT), max_size=4, unique=True)):
        events.append(draw(deltas(candidate)))
    for candidate in draw(st.lists(st.integers(0, MAX_COUNT), max_size=4, unique=True)):
        events.append(CandidateFinished(NAME, candidate, draw(reasons), draw(doubles)))
    if draw(st.booleans()):
        events.append(Committed(NAME, draw(ids), draw(texts)))
    if draw(st.booleans()):
        events.append(draw(updates))
    if draw(st.booleans()):
        events.append(Finished(NAME, draw(results())))
    return events
