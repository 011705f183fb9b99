"""What is evicted, and when, changes no node: the same commands with KV given up at every point in turn."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from forkdecode.engine.port import Job
from forkdecode.tree_types import (
    Decode,
    Extend,
    Fork,
    NodeInfo,
    NodeScored,
    Prune,
    ScoreNodes,
    TreeLimits,
    Truncate,
)
from forkdecode.types import Greedy, Options, Sample
from tests.tree.driven import MAKER, Driven, InlinePort

COMMANDS: tuple[Callable[[], Any], ...] = (
    lambda: Decode(1, (0,), Sample(n=3), Options(max_tokens=5, ignore_eos=True)),
    lambda: Extend(2, 1, " world, hello"),
    lambda: Fork(3, 2, 2),
    lambda: Decode(4, (4, 5, 6), Sample(n=2), Options(max_tokens=6, ignore_eos=True)),
    lambda: Truncate(5, 8, 14),
    lambda: Prune(6, (9,)),
    lambda: ScoreNodes(7, (7, 10), ("ab", " hello")),
    lambda: Decode(8, (7, 13, 3), Greedy(), Options(max_tokens=4, repetition_penalty=1.3, ignore_eos=True)),
)
TOLD = tuple[tuple[NodeInfo, ...], list[list[float]]]


def idle(tree: Driven) -> None:
    """The session gives up all that does not run."""
    tree.now += 100.0
    tree.session.expire()


def hog(tree: Driven) -> None:
    """A request beside it that needs nearly all of the pool."""
    options = Options(max_tokens=8, ignore_eos=True)
    prompt = list(range(1, 41))
    made = MAKER.prepare(prompt, Sample(n=8), options, {}, chat=False, request_id="hog")
    tree.port.submit([Job(made.request, lambda event: None)])


def run(evict: Callable[[Driven], None], point: int, port: InlinePort) -> tuple[TOLD, int]:
    """What becomes of the commands when KV goes before the step or command that is number `point`; how many
    of these there are."""
    tree = Driven("hello world", port, TreeLimits(idle_ttl=50.0), seed=2)
    places = itertools.count()

    def pass_by() -> int:
        place = next(places)
        if place == point:
            evict(tree)
        return place

    for make in COMMANDS:
        pass_by()
        tree.accepted(make())
        pass_by()
        while tree.step():
            pass_by()
    tree.run()
    scores = [[round(one.cumulative_logprob, 4) for one in e.continuations] for e in tree.said(NodeScored)]
    told = tree.session.snapshot().nodes, scores
    count = pass_by()
    tree.close()
    return told, count


@pytest.mark.parametrize("evict", [idle, hog])
@pytest.mark.parametrize("host", [0, 12])
def test_at_every_point(evict: Callable[[Driven], None], host: int) -> None:
    """At every other point without host memory, at those between with some."""
    alone = InlinePort()
    expected, count = run(lambda tree: None, -1, alone)
    assert len(expected[0]) == 16
    gone = 0
    for point in range(host > 0, count, 2):
        port = InlinePort(34, host, prefix_cache=point % 4 < 2)
        told, _ = run(evict, point, port)
        assert told == expected
        stats = port.stats()
        gone += stats.dropped_nodes + stats.swapped_nodes
        gone += evict is idle and port.runner.computed > alone.runner.computed
    assert gone > 3
