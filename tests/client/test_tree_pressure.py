"""Random commands to sessions of a server whose pool is far too small to keep what they hold, with lost
connections at any point, against trees in process with room for all. At the end nothing is left."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from forkdecode import LLM, Client, Sample, TreeLimits
from forkdecode.calls.tree import Node, Tree
from forkdecode.constraint_types import Regex
from forkdecode.errors import InvalidRequestError
from tests.client.test_tree import await_no_trees, lose
from tests.llm.models import settle
from tests.server.servers import Running, running_server, tiny_llm

PROMPTS = ("hello you", "hello world, hello world")
ALL = TreeLimits(max_nodes=60)
NOTHING = TreeLimits(max_nodes=60, idle_ttl=0.0)
"""What runs is kept while it runs, and let go of at the next command."""
PAIRS = Regex("([ab]{2}[xy])*")
COMMANDS = 60
BLOCKS = 32
Change = Callable[[Tree], Any]


@pytest.fixture(scope="module")
def roomy() -> Iterator[LLM]:
    with tiny_llm() as llm:
        yield llm
        settle(llm)


@pytest.fixture(scope="module", params=["swap", "recompute"])
def tight(request: pytest.FixtureRequest) -> Iterator[LLM]:
    """With swap, host memory has room for some of what is swapped out, and the rest is dropped."""
    swap = {"preemption": "swap", "swap_memory": "64KiB"} if request.param == "swap" else {"swap_memory": 0}
    with tiny_llm(num_blocks=BLOCKS, **swap) as llm:
        yield llm


@pytest.fixture(scope="module")
def server(tight: LLM) -> Iterator[Running]:
    with running_server(tight) as running:
        yield running


def kept(node: Node) -> tuple[Any, ...]:
    """All but log-probabilities: how KV came to be may change their last digits."""
    ends = (node.state, node.finish_reason)
    return (node.id, node.depth, node.path_token_ids, node.path_text, node.lineage, *ends)


def change_of(draw: random.Random, tree: Tree) -> Change:
    """A command for this tree, and for one that is the same."""
    some = [node.id for node in tree.nodes if not node.is_finished]
    number = draw.choice(some)
    size, base = tree.node(number).num_tokens, tree.root.num_tokens
    count, length, text = draw.randint(1, 3), draw.randint(1, 6), draw.choice(["a", "ab", " you"])
    cut = draw.randint(min(base, size), size)
    changes: list[Change] = [
        lambda tree: tree.decode(tree.node(number), Sample(count, temperature=2.0), max_tokens=length),
        lambda tree: tree.decode(tree.node(number), Sample(count), max_tokens=length, constraint=PAIRS),
        lambda tree: tree.decode([tree.node(one) for one in some[:3]], max_tokens=length),
        lambda tree: tree.extend(tree.node(number), text),
        lambda tree: tree.fork(tree.node(number), count),
        lambda tree: tree.truncate(tree.node(number), cut),
        lambda tree: [round(score.cumulative_logprob, 2) for score in tree.score(tree.node(number), ["ab"])],
        lambda tree: tree.import_(tree.export(tree.node(number))),
    ]
    if number:
        changes += [
            lambda tree: tree.prune(tree.node(number), subtree=count > 1),
            lambda tree: tree.finish(tree.node(number)),
        ]
    return draw.choice(changes)


def told(change: Change, tree: Tree) -> Any:
    """What a command gives, or what refuses it."""
    try:
        found = change(tree)
    except InvalidRequestError as error:
        return str(error)
    if isinstance(found, list) and found and isinstance(found[0], Node):
        return [kept(node) for node in found]
    return kept(found) if isinstance(found, Node) else found


def begin(tree: Tree, number: int) -> None:
    """A decode that runs while the connection is lost."""
    tree.start(tree.node(number), Sample(2, temperature=2.0), max_tokens=12, ignore_eos=True)


def make_room(here: Tree, there: Tree) -> None:
    """Prunes a branch when there are many nodes."""
    if len(here.nodes) > 40:
        branch = next(node.id for node in here.nodes if node.parent is here.root)
        for tree in (here, there):
            tree.prune(tree.node(branch))


@pytest.mark.parametrize("number", range(3))
def test_the_same_as_with_room_and_nothing_is_left(
    number: int, tight: LLM, server: Running, roomy: LLM
) -> None:
    draw = random.Random(number)
    before = tight.stats()
    with Client(server.address) as client, ExitStack() as stack:
        heres = [stack.enter_context(roomy.tree(p, seed=number, limits=ALL)) for p in PROMPTS]
        limits = (ALL, ALL if number else NOTHING)
        theres = [client.tree(p, seed=number, limits=own) for p, own in zip(PROMPTS, limits, strict=True)]
        for _ in range(COMMANDS):
            which = draw.randrange(2)
            here = heres[which]
            make_room(here, theres[which])
            change = change_of(draw, here)
            assert told(change, theres[which]) == told(change, here)
            if draw.random() < 0.25:
                node = draw.choice([node.id for node in here.nodes if not node.is_finished])
                if draw.random() < 0.5:
                    begin(here, node)
                    begin(theres[which], node)
                lose(theres[which])
                there = theres[which] = client.resume_tree(theres[which].name, theres[which].secret)
                here.wait(here.nodes)
                there.wait(there.nodes)
            assert list(map(kept, theres[which].nodes)) == list(map(kept, here.nodes))
        after = tight.stats()
        assert after.swapped_nodes + after.dropped_nodes > before.swapped_nodes + before.dropped_nodes
        for there in theres:
            begin(there, 0)
        theres[0].close()
        lose(theres[1])
        client.resume_tree(theres[1].name, theres[1].secret).close()
        client.decode("a", max_tokens=1)  # behind all that was sent
    await_no_trees(server)
    settle(tight)
    assert tight.stats().held_nodes == 0
