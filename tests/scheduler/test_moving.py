"""The tables of a step's groups move together; a strategy at fault takes no other group with it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from forkdecode.errors import GroupFailedError
from forkdecode.scheduler.events import GroupFailed, GroupFinished
from forkdecode.types import Beam, Greedy, Sample
from tests.scheduler.engines import assert_idle, decode_alone, request, run, tokens, toy_engine


@pytest.mark.parametrize("parent", [-1, 3, 1 << 20])
def test_parents_that_are_no_rows_fail_their_group_alone(parent: int) -> None:
    engine = toy_engine()
    requests = [
        request("a", range(9), Beam(3), max_tokens=8),
        request("b", range(5), Sample(4, seed=1), max_tokens=8),
        request("c", range(5), Greedy(), max_tokens=8),
    ]
    for what in requests:
        engine.submit(what)
    policy = engine.scheduler.groups["a"].policy
    decide = policy.decide

    def wrong(result: Any, rows: Any, stop: Any) -> Any:
        decision = decide(result, rows, stop)
        if rows.generated != 4:
            return decision
        return dataclasses.replace(decision, parents=np.full_like(decision.parents, parent))

    policy.decide = wrong  # type: ignore[method-assign]
    last = run(engine)
    failed = last["a"]
    assert isinstance(failed, GroupFailed)
    assert isinstance(failed.error, GroupFailedError)
    assert "out of range" in str(failed.error)
    for what in requests[1:]:
        event = last[what.request_id]
        assert isinstance(event, GroupFinished)
        assert tokens(event.candidates) == tokens(decode_alone(what))
    assert_idle(engine)
