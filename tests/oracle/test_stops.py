"""Stop strings, stop ids, forced prefixes and allowed ids with beams, against plain loops.

`generate` has no answer here: it tests stop strings on decoded tails and keeps no more candidates for
them, and forced prefixes leave it with placeholders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from forkdecode import Beam, DecodeResult, Options
from tests.oracle.beam_rule import Path, Search
from tests.oracle.engines import Case, Pair, hypotheses, paired
from tests.oracle.stop_rules import match, text
from tests.oracle.test_random_models import random_llama
from tests.oracle.verdict import assert_same

# Few letters, many ways to write a text: stop strings begin, cross and end within tokens all the time.
WORDS = ["a", "b", "c", "é", "ab", "ba", "bc", "ca", "aa", "abc", "bca", "cab", "aab", "éa", "abcab"]
HALVES = ["Ã", "©"]
"""The two bytes of an é, as a byte-level vocabulary writes them."""
EOS = 0


def letters_tokenizer() -> PreTrainedTokenizerFast:
    """EOS, then WORDS, then HALVES."""
    written = [w.replace("é", "".join(HALVES)) for w in WORDS]
    vocab = {token: i for i, token in enumerate(["<|end|>", *written, *HALVES])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")


TEXTS = [b"", *(w.encode() for w in WORDS), b"\xc3", b"\xa9"]
TOKENS = st.integers(0, len(TEXTS) - 1)


@dataclass(frozen=True)
class Stops:
    """A case whose candidates also end by stop strings."""

    case: Case

    @property
    def strings(self) -> list[bytes]:
        return [s.encode() for s in self.case.options.stop]

    def ends(self, path: Path) -> bool:
        return self.reason(path) != "length"

    def reason(self, path: Path) -> str:
        options = self.case.options
        if path[-1] == EOS and not options.ignore_eos:
            return "eos"
        if path[-1] in options.stop_token_ids:
            return "stop"
        late = len(path) >= options.min_tokens
        return "stop" if late and match(TEXTS, path, self.strings) else "length"


@st.composite
def cases(draw: st.DrawFn) -> Stops:
    letters = st.text("abcé", min_size=1, max_size=5)
    most = draw(st.integers(1, 10))
    stop_ids = draw(st.lists(TOKENS, max_size=3, unique=True))
    lasting = TOKENS.filter(lambda t: t != EOS and t not in stop_ids)
    options = Options(
        max_tokens=most,
        min_tokens=draw(st.sampled_from([0, 0, 0, most // 2, most])),
        stop=tuple(draw(st.lists(letters, max_size=4))),
        stop_token_ids=tuple(stop_ids),
        include_stop=draw(st.booleans()),
        ignore_eos=draw(st.booleans()),
        forced_prefix=tuple(draw(st.lists(lasting, max_size=min(3, most)))) if draw(st.booleans()) else (),
    )
    if draw(st.booleans()):
        allowed = draw(st.lists(TOKENS, min_size=2, max_size=10))
        options = replace(options, allowed_token_ids=(*allowed, *options.forced_prefix))
    early = draw(st.sampled_from([False, True, "never"]))
    beam = Beam(
        width=draw(st.sampled_from([1, 2, 4, 8, 30])),
        length_penalty=draw(st.sampled_from([-1.0, 0.0, 1.0, 2.0])),
        early_stopping=early,
        patience=draw(st.sampled_from([0.5, 1.0, 2.0])) if early is True else 1.0,
    )
    ends = frozenset(stop_ids) | (frozenset() if options.ignore_eos else {EOS})
    return Stops(Case(tuple(draw(st.lists(TOKENS, min_size=1, max_size=6))), beam, options, ends))


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    model = random_llama(len(TEXTS), 11, 0.6)
    with paired(model, {EOS}, letters_tokenizer(), block_size=4) as both:
        yield both


def reference(pair: Pair, stops: Stops) -> Search:
    return pair.reference(stops.case, stops.ends)


@given(st.lists(cases(), min_size=8, max_size=8))
@settings(max_examples=50)
def test_equal_plain_loops(pair: Pair, asked: list[Stops]) -> None:
    for stops, result in zip(asked, pair.decode([s.case for s in asked]), strict=True):
        search = partial(reference, pair, stops)
        assert_same(hypotheses(result), search().hypotheses, search, stops.case)
        if isinstance(result, DecodeResult):
            check_texts(stops, result)


def check_texts(stops: Stops, result: DecodeResult) -> None:
    for candidate in result.candidates:
        assert candidate.finish_reason == stops.reason(candidate.token_ids)
        assert candidate.text == text(
            TEXTS,
            candidate.token_ids,
            stops.strings,
            candidate.finish_reason,
            include_stop=stops.case.options.include_stop,
        )


def test_stop_strings_leave_the_beam_its_width(pair: Pair) -> None:
    """The K best end at once: the beam looks further and goes on with those that don't."""
    halves = (16, 17)
    options = Options(
        max_tokens=4,
        stop=("a", "b", "c"),
        logit_bias=dict.fromkeys(halves, -20.0),
        allowed_token_ids=(1, 2, 3, 5, 6, 7, 8, *halves),
    )
    beam = Beam(width=2, length_penalty=8.0, early_stopping="never")
    stops = Stops(Case((4, 4), beam, options, frozenset({EOS})))
    (result,) = pair.decode([stops.case])
    search = reference(pair, stops)
    assert_same(hypotheses(result), search.hypotheses, lambda: search, stops.case)
    assert isinstance(result, DecodeResult)
    assert [len(c.token_ids) for c in result.candidates] == [4, 4]
