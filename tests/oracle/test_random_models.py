"""Beams of the engine against `generate` and the plain rule, on random tiny Llamas.

What is left out of the comparison with `generate`, and why:

- A search in which some decision fell by less than 1e-4 may differ (torch.topk breaks ties
  arbitrarily, and the last bits of sums are nobody's). The gap is printed where it matters.
- Placeholders: where a step has fewer legal candidates than it fetches, `generate` goes on with
  rows at -1e9 and may return them. They are dropped from its answer.
- early_stopping=True with fewer than W legal candidates in a step, as a width above the vocabulary
  has in its first: such placeholders fill the pool and end its search. The plain rule alone decides.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from forkdecode import Beam, Options
from forkdecode.types import EarlyStopping
from tests.oracle.beam_rule import Hypothesis, Search
from tests.oracle.engines import Case, hypotheses, paired
from tests.oracle.generation import generate
from tests.oracle.verdict import assert_same


def random_llama(
    vocab: int, seed: int, spread: float, likely: Collection[int] = (), boost: float = 3.0
) -> PreTrainedModel:
    """One layer; pad_token_id None, for a pad id zeroes its embedding and makes logits tie.

    likely: token ids whose logits stand `boost` above the others. Where they end a candidate, hypotheses
    finish early and often, which is what tells the stopping rules apart.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=vocab, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=128,
            initializer_range=spread, tie_word_embeddings=False,
            pad_token_id=None, bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        model = LlamaForCausalLM(config)
    bias = torch.zeros(vocab)
    bias[sorted(likely)] = boost
    model.lm_head.bias = torch.nn.Parameter(bias)
    return model.eval()


@st.composite
def cases(
    draw: st.DrawFn,
    vocab: int,
    eos: frozenset[int],
    likely: frozenset[int],
    widths: st.SearchStrategy[int],
) -> Case:
    """EOS ids of the model, stop ids of the request, both, or neither: 0 to 3 ends in all."""
    tokens = st.integers(0, vocab - 1)
    ignore = draw(st.booleans())
    room = 3 - (0 if ignore else len(eos))
    stops = draw(st.lists(ends_of(vocab, likely), max_size=min(2, room), unique=True))
    most = draw(st.integers(1, 8) | st.integers(9, 24))
    options = Options(
        max_tokens=most,
        min_tokens=draw(st.sampled_from([0, 0, 0, min(2, most), most])),
        stop_token_ids=tuple(stops),
        ignore_eos=ignore,
    )
    beam = Beam(
        width=draw(widths),
        length_penalty=draw(st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0, 2.0])),
        early_stopping=draw(st.sampled_from([False, True, "never"])),
    )
    prompt = tuple(draw(st.lists(tokens, min_size=1, max_size=9)))
    return Case(prompt, beam, options, (frozenset() if ignore else eos) | frozenset(stops))


def ends_of(vocab: int, likely: frozenset[int]) -> st.SearchStrategy[int]:
    """Ids to end by: likely ones as a rule, rare ones sometimes."""
    rare = st.integers(0, vocab - 1)
    often = st.sampled_from(sorted(likely))
    return often | often | rare


@dataclass(frozen=True)
class Batch:
    """A model, and what is asked of it at once."""

    vocab: int
    seed: int
    spread: float
    likely: frozenset[int]
    boost: float
    eos: frozenset[int]
    block_size: int
    cases: tuple[Case, ...]


@st.composite
def batches(draw: st.DrawFn, widths: st.SearchStrategy[int]) -> Batch:
    vocab = draw(st.integers(20, 60))
    likely = draw(st.frozensets(st.integers(0, vocab - 1), min_size=1, max_size=5))
    eos = frozenset(draw(st.lists(ends_of(vocab, likely), max_size=3, unique=True)))
    return Batch(
        vocab=vocab,
        seed=draw(st.integers(0, 10_000)),
        spread=draw(st.sampled_from([0.3, 0.6, 1.0])),
        likely=likely,
        boost=draw(st.sampled_from([3.0, 3.0, 8.0])),
        eos=eos,
        block_size=draw(st.sampled_from([1, 4, 16])),
        cases=tuple(draw(st.lists(cases(vocab, eos, likely, widths), min_size=8, max_size=8))),
    )


def check(batch: Batch) -> int:
    """How many of the cases were compared with `generate` besides the plain rule."""
    compared = 0
    model = random_llama(batch.vocab, batch.seed, batch.spread, batch.likely, batch.boost)
    with paired(model, batch.eos, block_size=batch.block_size) as pair:
        for case, result in zip(batch.cases, pair.decode(batch.cases), strict=True):
            search = pair.reference(case)
            got = hypotheses(result)
            assert_same(got, search.hypotheses, lambda s=search: s, case)
            if generate_is_defined(case, search):
                options = {"min_new_tokens": case.options.min_tokens} if case.options.min_tokens else {}
                want = generate(pair.oracle, case.prompt, case.rule, case.ends, **options)
                assert_same(got, want.hypotheses, lambda s=search: s, case)
                compared += 1
    return compared


def generate_is_defined(case: Case, search: Search) -> bool:
    return case.rule.early_stopping is not True or search.fewest_legal >= case.beam.width


@given(batches(st.integers(1, 6)))
@settings(max_examples=36)
def test_equals_generate(batch: Batch) -> None:
    assert check(batch) == len(batch.cases)


@given(batches(st.integers(7, 90)))
@settings(max_examples=8)
def test_wide_beams_equal_generate(batch: Batch) -> None:
    check(batch)


def test_a_beam_goes_on_below_three_ends_a_row() -> None:
    """The 3 W best candidates all end, and the W behind them win in the end: length pays."""
    ends = frozenset({1, 2, 3})
    beam = Beam(width=3, length_penalty=6.0, early_stopping="never")
    asked = tuple(Case((t,), beam, Options(max_tokens=6), ends) for t in range(4, 12))
    assert check(Batch(30, 1, 0.3, ends, 8.0, ends, 4, asked)) == len(asked)


def test_the_models_tell_the_stopping_rules_apart() -> None:
    """Else the comparisons above would prove nothing about them."""
    likely = {1, 2}
    with paired(random_llama(30, 1, 0.6, likely), likely) as pair:
        found: dict[EarlyStopping, list[list[Hypothesis]]] = {}
        modes: tuple[EarlyStopping, ...] = (False, True, "never")
        for mode in modes:
            beam = Beam(width=4, early_stopping=mode)
            asked = [Case((t,), beam, Options(max_tokens=16), frozenset(likely)) for t in range(3, 30)]
            found[mode] = [hypotheses(result) for result in pair.decode(asked)]
    assert found[False] != found[True]
    assert found[False] != found["never"]
    assert found[True] != found["never"]
