"""A list of prompts: what is asked for all of them is resolved once."""

from __future__ import annotations

import pytest

from forkdecode.errors import InvalidRequestError
from forkdecode.types import Greedy, Options, Sample
from tests.tree.driven import MAKER

PROMPTS = [[5], [6, 7], [8]]


@pytest.mark.parametrize("by_keyword", [False, True])
def test_prompts_share_what_is_given_once(by_keyword: bool) -> None:
    bias = dict.fromkeys(range(20), 0.5)
    options, given = (None, {"logit_bias": bias}) if by_keyword else (Options(logit_bias=bias), {})
    made = MAKER.prepare_all(PROMPTS, Sample(n=2), options, given, chat=False, request_id=None)
    requests = [one.request for one in made]
    assert [one.prompt.tolist() for one in requests] == PROMPTS
    for part in ("processors", "options", "eos_ids", "stop_ids"):
        assert len({id(getattr(one, part)) for one in requests}) == 1, part
    assert len({one.request_id for one in requests}) == len({one.seed for one in requests}) == len(PROMPTS)


def test_each_has_what_is_its_own() -> None:
    options = [Options(max_tokens=i) for i in (1, 2, 1)]
    strategies = [Greedy(), Sample(n=2, seed=1), Sample(n=3, seed=2)]
    made = MAKER.prepare_all(PROMPTS, strategies, options, {}, chat=False, request_id=["a", "b", "c"])
    for one, strategy, its_options, name in zip(made, strategies, options, "abc", strict=True):
        request = one.request
        assert (request.strategy, request.options, request.request_id) == (strategy, its_options, name)


def test_an_error_is_of_its_own_request() -> None:
    options = [Options(), Options(stop_token_ids=(10_000,)), Options()]
    with pytest.raises(InvalidRequestError, match=r"stop_token_ids: .*prompt 2 of 3") as caught:
        MAKER.prepare_all(PROMPTS, None, options, {}, chat=False, request_id=["a", "b", "c"])
    assert caught.value.request_id == "b"
