"""What refuses a command, and by what name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from forkdecode.errors import InvalidRequestError
from forkdecode.tree_types import (
    Decode,
    Export,
    Extend,
    Fork,
    Import,
    NodePath,
    Pin,
    Prune,
    ScoreNodes,
    TreeLimits,
    Truncate,
)
from forkdecode.types import BestOf, Greedy, Options, Sample
from tests.llm.models import VOCAB, ids
from tests.tree.driven import MAX_POSITIONS, Driven
from tests.tree.session_options import ENDS, SHORT


def _path(**changes: Any) -> NodePath:
    plain: dict[str, Any] = {"model": "toy", "node": 0, "parent": None, "token_ids": ids("hell")}
    return NodePath(**(plain | {"start": 0, "text": "hell", "lineage": 1} | changes))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "unknown node": (lambda: Decode(9, (99,)), "nodes"),
    "unknown among others": (lambda: Prune(9, (0, 99)), "nodes"),
    "pruned": (lambda: Fork(9, 3), "node"),
    "generating": (lambda: Decode(9, (0, 4)), "nodes"),
    "fork of a generating node": (lambda: Fork(9, 4), "node"),
    "extension of a generating node": (lambda: Extend(9, 4, "a"), "node"),
    "truncation of a generating node": (lambda: Truncate(9, 4, 3), "node"),
    "score of a generating node": (lambda: ScoreNodes(9, (4,), ("a",)), "nodes"),
    "export of a generating node": (lambda: Export(9, (4,)), "nodes"),
    "ended by EOS": (lambda: Decode(9, (2,)), "nodes"),
    "running command id": (lambda: Fork(4, 0), "command_id"),
    "no position left": (lambda: Decode(9, (1,), Greedy(), Options(max_tokens=MAX_POSITIONS)), "max_tokens"),
    "options of beams": (lambda: Decode(9, (0,), Greedy(), Options(update_every=2)), "update_every"),
    "foreign token": (lambda: Extend(9, 0, (len(VOCAB),)), "continuation"),
    "too long": (lambda: Extend(9, 0, (1,) * MAX_POSITIONS), "continuation"),
    "into the prompt": (lambda: Truncate(9, 1, 4), "num_tokens"),
    "beyond the end": (lambda: Truncate(9, 1, 10), "num_tokens"),
    "no own tokens": (lambda: ScoreNodes(9, (0,)), "continuations"),
    "foreign continuation": (lambda: ScoreNodes(9, (0,), ((999,),)), "continuations"),
    "other model": (lambda: Import(9, (_path(model="other"),)), "paths"),
    "other text": (lambda: Import(9, (_path(text="help"),)), "paths"),
    "foreign path": (lambda: Import(9, (_path(token_ids=(1, 999), text=""),)), "paths"),
    "twice": (lambda: Import(9, (_path(), _path())), "paths"),
    "no such parent": (lambda: Import(9, (_path(parent=7),), ((7, 99),)), "parents"),
    "parent that is generated": (lambda: Import(9, (_path(parent=7),), ((7, 4),)), "parents"),
    "no child of a parent that was imported before": (
        lambda: Import(9, (_path(parent=7),), ((7, 0),)),
        "paths",
    ),
    "no child of its parent": (
        lambda: Import(9, (_path(), _path(node=1, parent=0, token_ids=(5, 6), start=1, text=""))),
        "paths",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_command_names_the_field_and_changes_nothing(case: str) -> None:
    tree = Driven()
    tree.ran(Decode(1, (0,), Greedy(), SHORT))
    tree.ran(Decode(2, (0,), Greedy(), ENDS))
    tree.accepted(Fork(3, 0))
    tree.accepted(Prune(3, (3,)))
    tree.accepted(Decode(4, (0,), Sample(n=2), SHORT))
    make, field = REFUSED[case]
    error = tree.refused(make())
    assert isinstance(error, InvalidRequestError)
    assert error.field == field
    assert error.limit
    assert field in str(error)
    tree.run()
    assert [tree.node(number).state for number in (4, 5)] == ["stopped", "stopped"]
    tree.close()


def test_pruned_nodes_are_told_from_those_that_never_were() -> None:
    tree = Driven()
    tree.accepted(Fork(1, 0))
    tree.accepted(Prune(2, (1,)))
    assert "node: 1 has been pruned" in str(tree.refused(Fork(3, 1)))
    assert "node: 2 is not in this tree" in str(tree.refused(Fork(3, 2)))
    tree.close()


MALFORMED: dict[str, tuple[Callable[[], Any], str]] = {
    "command id": (lambda: Fork(-1, 0), "command_id"),
    "node": (lambda: Fork(1, -1), "node"),
    "no nodes": (lambda: Decode(1, ()), "nodes"),
    "node twice": (lambda: Decode(1, (0, 0)), "nodes"),
    "no forks": (lambda: Fork(1, 0, 0), "n"),
    "seeds": (lambda: Fork(1, 0, 2, seeds=(1,)), "seeds"),
    "seed": (lambda: Fork(1, 0, 1, seeds=(-1,)), "seeds"),
    "two seeds": (lambda: Decode(1, (0,), Sample(seed=1), seeds=(1,)), "seeds"),
    "seeds of nodes": (lambda: Decode(1, (0, 1), Sample(), seeds=(1,)), "seeds"),
    "ranked": (lambda: Decode(1, (0,), BestOf()), "strategy"),
    "options": (lambda: Decode(1, (0,), Greedy(), {}), "options"),  # type: ignore[arg-type]
    "salt": (lambda: Decode(1, (0,), Greedy(), Options(cache_salt="a")), "cache_salt"),
    "step": (lambda: Decode(1, (0,), step=("",)), "step"),
    "stops together": (lambda: Decode(1, (0,), Greedy(), Options(stop=("a" * 3000,)), ("b" * 3000,)), "step"),
    "nothing given": (lambda: Extend(1, 0, ""), "continuation"),
    "empty continuation": (lambda: ScoreNodes(1, (0,), ("",)), "continuations"),
    "subtree": (lambda: Prune(1, (0,), 1), "subtree"),  # type: ignore[arg-type]
    "length": (lambda: Truncate(1, 0, 0), "num_tokens"),
    "ttl": (lambda: Pin(1, (0,), -1.0), "ttl"),
    "no paths": (lambda: Import(1, ()), "paths"),
    "paths": (lambda: Import(1, ({},)), "paths"),  # type: ignore[arg-type]
    "parents": (lambda: Import(1, (_path(),), ((1, -1),)), "parents"),
    "no pair of parents": (lambda: Import(1, (_path(),), ((1,),)), "parents"),  # type: ignore[arg-type]
    "two parents": (lambda: Import(1, (_path(),), ((1, 1), (1, 2))), "parents"),
    "item": (lambda: _path(item=3), "item"),
    "lineage": (lambda: _path(lineage=2**64), "lineage"),
    "start": (lambda: _path(start=9), "start"),
    "logprobs": (lambda: _path(logprobs=(-0.5, -0.5)), "logprobs"),
    "reason": (lambda: _path(finish_reason="why"), "finish_reason"),
    "unknown field": (lambda: NodePath.of_json({**_path().to_json(), "colour": 1}), "colour"),
    "missing field": (lambda: NodePath.of_json({"model": "toy"}), "paths"),
    "limits": (lambda: TreeLimits(max_nodes=0), "max_nodes"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_command_is_not_even_made(case: str) -> None:
    make, field = MALFORMED[case]
    with pytest.raises(InvalidRequestError) as caught:
        make()
    assert caught.value.field == field
