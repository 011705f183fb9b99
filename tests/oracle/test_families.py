"""Greedy search and beams of the ten families against `generate`, prompts beyond the sliding windows."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from forkdecode import Beam, Options
from tests.models import FAMILIES, VOCAB, WINDOW, tiny_model
from tests.oracle.engines import Case, hypotheses, paired
from tests.oracle.generation import generate
from tests.oracle.verdict import assert_same

EOS = frozenset({7, 30, 44})
PROMPTS = tuple(
    tuple(np.random.default_rng(length).integers(0, VOCAB, length).tolist())
    for length in (1, 9, WINDOW, 3 * WINDOW + 5)
)
CASES = (
    *(Case(p, Beam(width=1), Options(max_tokens=16), EOS, greedy=True) for p in PROMPTS),
    *(Case(p, Beam(width=4), Options(max_tokens=16, ignore_eos=True)) for p in PROMPTS),
    *(Case(p, Beam(width=3, early_stopping="never"), Options(max_tokens=12), EOS) for p in PROMPTS),
)


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_generate(family: str) -> None:
    with paired(tiny_model(family), EOS, block_size=8) as pair:
        for case, result in zip(CASES, pair.decode(CASES), strict=True):
            want = generate(pair.oracle, case.prompt, case.rule, case.ends)
            got = hypotheses(result)
            assert_same(got, want.hypotheses, partial(pair.reference, case), (family, case))


def test_a_window_of_one_token() -> None:
    """As the model's forward has it. transformers' cache for such a layer drops nothing (a slice from -0)
    while its mask counts one key, so `generate` is right without its cache alone."""
    config = FAMILIES["mistral"]()
    config.sliding_window = 1
    few = (CASES[1], CASES[5])
    with paired(tiny_model("mistral", config=config), EOS, block_size=8) as pair:
        for case, result in zip(few, pair.decode(few), strict=True):
            want = generate(pair.oracle, case.prompt, case.rule, case.ends, use_cache=False)
            got = hypotheses(result)
            assert_same(got, want.hypotheses, partial(pair.reference, case), case)
