"""Forced prefixes that contradict other options: found wherever bad words begin."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkdecode.errors import InvalidRequestError
from forkdecode.requests.forced_prefix import check_forced
from forkdecode.step import ProcessorSpec

NO_ENDS = np.empty(0, np.int64)
IDS = st.integers(0, 2)


def check(forced: list[int], words: list[list[int]], prompt: list[int]) -> None:
    spec = ProcessorSpec(forced_prefix=tuple(forced), bad_words=tuple(map(tuple, words)))
    check_forced(spec, NO_ENDS, np.array(prompt, np.int64))


@pytest.mark.parametrize(
    ("forced", "words", "said"),
    [
        ([4, 5, 6], [[6]], "token 6 at position 2 is one of bad_words"),
        ([4, 5, 6], [[5, 6], [9]], "token 6 at position 2 completes one of bad_words"),
        ([4, 5], [[8, 9, 4]], "token 4 at position 0 completes one of bad_words"),  # begun in the prompt
    ],
)
def test_the_token_is_named(forced: list[int], words: list[list[int]], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said) as caught:
        check(forced, words, [7, 8, 9])
    assert caught.value.field == "forced_prefix"


@given(
    st.lists(IDS, min_size=1, max_size=5),
    st.lists(st.lists(IDS, min_size=1, max_size=4), max_size=3),
    st.lists(IDS, max_size=4),
)
def test_it_is_refused_where_a_step_would_have_banned_it(
    forced: list[int], words: list[list[int]], prompt: list[int]
) -> None:
    banned = [
        at
        for at, token in enumerate(forced)
        for word in words
        if word[-1] == token and [*prompt, *forced[:at]][len(prompt) + at - len(word) + 1 :] == word[:-1]
        if len(prompt) + at >= len(word) - 1
    ]
    if not banned:
        return check(forced, words, prompt)
    with pytest.raises(InvalidRequestError, match=re.escape(f" at position {min(banned)} ")):
        check(forced, words, prompt)
