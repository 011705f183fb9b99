"""What requests with the same strategy and options have in common."""

from __future__ import annotations

from forkdecode import Sample
from forkdecode.strategy_types import FRESH_SEEDS
from tests.llm.models import EOS_ID, opened
from tests.tiny_model import EOS


def test_a_stop_text_that_is_a_special_token_is_its_id() -> None:
    """It has no text, so that it would never be found."""
    with opened() as llm:
        found = llm.decode("hello", stop=["x", EOS], ignore_eos=True, logit_bias={EOS_ID: 1e4}, max_tokens=6)
    [candidate] = found.candidates
    assert (candidate.token_ids, candidate.finish_reason) == ((EOS_ID,), "stop")


def test_a_seed_that_nobody_chose_is_a_whole_number_to_readers_of_doubles() -> None:
    with opened() as llm:
        seeds = {llm.decode("hello", Sample(), max_tokens=1).seed for _ in range(8)}
    assert len(seeds) == 8
    assert all(seed is not None and seed == int(float(seed)) < FRESH_SEEDS for seed in seeds)
