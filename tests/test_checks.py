"""Checks of lists: the quick way and the slow one say the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkdecode.checks import MAX_INT, are_ids, check_float, check_texts, check_token_ids, check_words
from forkdecode.errors import InvalidRequestError

numbers = st.integers(-2, 3) | st.sampled_from([MAX_INT, MAX_INT + 1, 2**64])
items = numbers | st.booleans() | st.floats() | st.none() | st.just("1") | numbers.map(float)


def obvious(values: list[Any], size: int) -> bool:
    """The obvious way."""
    return all(type(value) is int and 0 <= value < size for value in values)


@given(st.lists(items, max_size=4), st.sampled_from([3, MAX_INT + 1]))
def test_are_ids(values: list[Any], size: int) -> None:
    assert are_ids(values, size) is obvious(values, size)


@given(st.lists(items, max_size=4))
def test_token_ids_are_kept_or_refused_by_name(values: list[Any]) -> None:
    if obvious(values, MAX_INT + 1):
        assert check_token_ids("stop_token_ids", values) == tuple(values)
    else:
        with pytest.raises(InvalidRequestError, match=r"^stop_token_ids: "):
            check_token_ids("stop_token_ids", values)


def test_integers_of_numpy_become_plain() -> None:
    found = check_token_ids("stop_token_ids", np.array([1, 2]))
    assert found == (1, 2)
    assert {type(token) for token in found} == {int}


@pytest.mark.parametrize(
    ("bounds", "allowed"),
    [
        ((), "finite numbers"),
        ((0,), "finite numbers from 0"),
        ((0, 2), "finite numbers from 0 to 2"),
        ((float("-inf"), 2), "finite numbers to 2"),
    ],
)
def test_bounds_of_numbers_are_told_where_there_are_any(bounds: tuple[float, ...], allowed: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_float("x", "a", *bounds)
    assert caught.value.limit == allowed


def test_no_more_words_than_may_be() -> None:
    assert check_words("bad_words", ["a", (1,)], 2) == ("a", (1,))
    with pytest.raises(InvalidRequestError, match="bad_words: has 3 entries; allowed: at most 2"):
        check_words("bad_words", ["a"] * 3, 2)


def test_an_empty_text_is_refused_without_a_word_of_the_others() -> None:
    """What a caller writes is in no error, which ends up in a log."""
    with pytest.raises(InvalidRequestError, match=r"^stop: has an empty text") as caught:
        check_texts("stop", ["confidential", ""], 100)
    assert "confidential" not in str(caught.value)
