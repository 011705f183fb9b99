"""The policy of score requests, and the tokens that it forces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkdecode.step import SelectionResult
from forkdecode.strategies.forced import ForcedTokens
from forkdecode.strategies.hypotheses import LENGTH
from forkdecode.strategies.policy import GroupRows, StopHits
from forkdecode.strategies.score import ScorePolicy
from forkdecode.types import Continuations

SEQUENCES = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8), min_size=1, max_size=7)


@given(SEQUENCES, st.integers(0, 7))
def test_following_tokens_are_the_sequences_own(sequences: list[list[int]], generated: int) -> None:
    forced = ForcedTokens(sequences)
    live = [i for i, s in enumerate(sequences) if len(s) > generated]
    if not live or (generated == 0 and len(sequences) > 1):
        return
    candidate = np.array(live, np.int32)
    ahead = forced.ahead(candidate, generated)
    assert ahead == min(len(sequences[i]) for i in live) - generated
    want = [sequences[i][generated : generated + ahead] for i in live]
    assert forced.following(candidate, generated, ahead).tolist() == want


def test_rows_fork_before_they_append_several() -> None:
    assert ForcedTokens([[1, 2, 3], [1, 2, 3]]).ahead(np.zeros(1, np.int32), 0) == 1
    assert ForcedTokens([[1, 2, 3]]).ahead(np.zeros(1, np.int32), 0) == 3


@given(SEQUENCES)
def test_every_token_is_asked_for_once_and_summed(sequences: list[list[int]]) -> None:
    """Log-probability of a token in these runs: minus the token, so that sums are exact."""
    policy = ScorePolicy(Continuations(tuple(map(tuple, sequences))))
    rows, steps = GroupRows.prompt(5, 0), 0
    done = False
    while not done:
        choice = policy.choose(rows)
        values = -choice.tokens.astype(np.float32)
        result = SelectionResult(
            0, choice.source, choice.tokens, values, values, np.zeros(len(values), np.float32)
        )
        decision = policy.decide(result, rows, StopHits(np.zeros(len(values), np.uint8)))
        assert (decision.finished.reason == LENGTH).all()
        rows, done, steps = decision.next_rows(rows), decision.done, steps + 1
        assert rows.candidate.tolist() == [i for i, s in enumerate(sequences) if len(s) > steps]
    assert steps == max(map(len, sequences))
    results = policy.results()
    assert results.candidate.tolist() == list(range(len(sequences)))
    assert results.generated.tolist() == [len(s) for s in sequences]
    assert results.cumulative.tolist() == [-sum(s) for s in sequences]
    assert results.score.tolist() == results.cumulative.tolist()


def test_rows_are_bounded_by_the_continuations() -> None:
    policy = ScorePolicy(Continuations(((1, 2), (3,), (4, 5, 6))))
    assert policy.max_rows == 3
    assert policy.streams_candidates
    assert policy.forced.lengths.tolist() == [2, 1, 3]
    assert Continuations(((1, 2), (4, 5, 6))).longest == 3
    with pytest.raises(ValueError):
        Continuations(()).longest  # noqa: B018 - requests have at least one
