"""How long a caller wants to wait: a client's calls, and a tree's."""

from __future__ import annotations

import pytest

from forkdecode.calls.timeout import check_timeout
from forkdecode.errors import InvalidRequestError


def test_seconds_none_and_centuries() -> None:
    assert check_timeout("timeout", 3) == 3.0
    assert check_timeout("timeout", None) is None
    assert check_timeout("timeout", 1e300) is None  # no clock counts so far


@pytest.mark.parametrize("value", [0, -1.0, "3", float("nan"), True])
def test_what_is_no_time_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"^tree_timeout: ") as refused:
        check_timeout("tree_timeout", value)
    assert refused.value.field == "tree_timeout"
