"""Whatever a group may choose by is known on a host and on a device, and what is not fails alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, get_args

import torch

from forkdecode.sampling.device.select import _KINDS
from forkdecode.sampling.kinds import KINDS
from forkdecode.sampling.select import select
from forkdecode.step import Choice
from tests.sampling.requests import children, request


def test_every_choice_is_of_a_kind() -> None:
    assert set(KINDS) == set(_KINDS) == set(get_args(Choice))


def test_a_choice_of_no_kind_is_its_groups_fault_alone() -> None:
    @dataclass(frozen=True)
    class Other:
        num_candidates: int = 1

    known = request(children(2, 2), 2)
    strange: Any = Other()
    results = select(torch.zeros(2, 8), [replace(known, choice=strange), known])
    assert results[0].error is not None
    assert "Other is not known here" in results[0].error
    assert results[1].error is None
