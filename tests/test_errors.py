"""Errors of several callers."""

from __future__ import annotations

import pytest

from forkdecode import errors
from forkdecode.errors import ForkdecodeError, own
from forkdecode.kv.block_pool import OutOfBlocksError

KINDS = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ForkdecodeError)
]


@pytest.mark.parametrize("kind", KINDS)
def test_each_has_one_of_its_own(kind: type[ForkdecodeError]) -> None:
    error = kind("too many", field="n", limit="1 to 9", request_id="first", retry_after=2.0)
    error.__cause__ = LookupError("why")
    theirs = own(error, "second")
    assert theirs is not error
    assert type(theirs) is kind
    assert (str(theirs), theirs.args, theirs.__cause__) == ("too many", ("too many",), error.__cause__)
    assert vars(theirs) == vars(error) | {"request_id": "second"}
    assert error.request_id == "first"


def test_of_one_that_is_made_otherwise() -> None:
    theirs = own(OutOfBlocksError(5, 3), "r")
    assert (str(theirs), theirs.needed) == ("5 KV blocks are needed and 3 are available", 5)
