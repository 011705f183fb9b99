"""A node is what an ordinary request of the same path, options and seed gives, whatever else there is."""

from __future__ import annotations

import codecs
import itertools

import pytest

from forkdecode.tree.lineages import decode_seed
from forkdecode.tree_types import Decode, Export, Extend, Fork, Import, NodeInfo, NodePath, Prune, Truncate
from forkdecode.types import Greedy, Options, Sample
from tests.llm.models import EOS_ID, ids
from tests.tree.driven import MAKER, Driven, ordinary

CASES = {
    "greedy": (Greedy(), Options(max_tokens=9)),
    "sample": (Sample(n=3, temperature=0.7), Options(max_tokens=9)),
    "seeded": (Sample(n=2, top_k=40, seed=77), Options(max_tokens=6)),
    "penalties": (
        Sample(n=2, temperature=0.5),
        Options(max_tokens=12, repetition_penalty=1.3, presence_penalty=0.4, no_repeat_ngram_size=2),
    ),
    "few tokens": (
        Sample(n=4),
        Options(max_tokens=20, allowed_token_ids=(*ids("ab\n"), EOS_ID), min_tokens=2, stop=("ab",)),
    ),
    "stop ids": (Sample(n=2), Options(max_tokens=20, allowed_token_ids=ids("abc"), stop_token_ids=ids("c"))),
    "include": (
        Sample(n=3),
        Options(max_tokens=20, allowed_token_ids=ids("ab"), stop="bb", include_stop=True),
    ),
    "forced": (Sample(n=2), Options(max_tokens=8, forced_prefix="so", logprobs=2)),
    "bias": (
        Sample(n=2),
        Options(max_tokens=8, logit_bias={EOS_ID: 4.0}, bad_words=("x",)),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_node_equals_an_ordinary_request_on_its_path(case: str) -> None:
    strategy, options = CASES[case]
    tree = Driven()
    middle = tree.ran(Decode(1, (0,), Sample(n=2), Options(max_tokens=5)))
    forks = tree.accepted(Fork(2, middle[0].node, 2))
    given = tree.accepted(Extend(3, forks[1].node, " and"))
    origins = [0, middle[1].node, forks[0].node, given[0].node]
    made = tree.ran(Decode(4, origins, strategy, options))  # type: ignore[arg-type]
    n = len(made) // len(origins)
    for place, origin in enumerate(origins):
        seed = strategy.seed if isinstance(strategy, Sample) and strategy.seed is not None else 0
        lineage = tree.node(origin).lineage
        expected, texts = ordinary(tree.path(origin), strategy, decode_seed(lineage, seed), options)
        children = made[place * n : place * n + n]
        for child, record, text in zip(children, expected, texts, strict=True):
            assert child.token_ids == record.token_ids
            assert child.cumulative_logprob == record.cumulative_logprob
            assert child.finish_reason == record.finish_reason
            assert child.state == ("finished" if record.finish_reason == "eos" else "stopped")
            _assert_text(tree, origin, child, text)
    tree.check_heard()
    tree.close()


def _whole_text(path: tuple[int, ...]) -> str:
    """All characters that are complete."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return decoder.decode(b"".join(map(MAKER.token_bytes.of, path)))


def _assert_text(tree: Driven, origin: int, child: NodeInfo, text: str) -> None:
    """An ordinary text begins and ends anew within a character; along a path it may go on."""
    before, whole = _whole_text(tree.path(origin)), _whole_text(tree.path(child.node))
    if child.finish_reason in {"length", "eos"}:
        assert before + child.text == whole
    elif child.text != text:
        assert whole[len(before)] == "\ufffd", "the path of the origin ends within a character"
        assert child.text == "\ufffd" + text


COMMANDS = [
    lambda n: Decode(1, (n,), Sample(n=2), Options(max_tokens=6)),
    lambda n: Decode(2, (n,), Sample(n=2), Options(max_tokens=6), seeds=(1,)),
    lambda n: Extend(3, n, " world"),
    lambda n: Fork(4, n, 2),
]


def _by_lineage(tree: Driven) -> dict[int, tuple[object, ...]]:
    infos = tree.session.snapshot().nodes
    return {i.lineage: (tree.path(i.node), i.text, i.finish_reason, i.cumulative_logprob) for i in infos}


def test_the_order_of_commands_and_what_runs_beside_them_change_no_node() -> None:
    found = []
    for order in itertools.permutations(COMMANDS):
        tree = Driven()
        for wait, command in enumerate(order):
            tree.accepted(command(0))
            for _ in range(wait):
                tree.step()
        tree.run()
        stopped = [i.node for i in tree.session.snapshot().nodes if i.state == "stopped"]
        # All in one batch, in this order's numbers.
        tree.ran(Decode(9, tuple(reversed(stopped)), Sample(n=2), Options(max_tokens=4)))
        found.append(_by_lineage(tree))
        tree.close()
    assert all(nodes == found[0] for nodes in found[1:])
    alone = Driven()
    for command in COMMANDS:
        alone.ran(command(0))
    for i, info in enumerate(alone.session.snapshot().nodes):
        if info.state == "stopped":
            alone.ran(Decode(100 + i, (info.node,), Sample(n=2), Options(max_tokens=4)))
    assert _by_lineage(alone) == found[0]
    alone.close()


def test_lineages_of_all_nodes_differ() -> None:
    tree = Driven()
    for command in COMMANDS:
        tree.ran(command(0))
    tree.ran(Fork(10, 0, 2, seeds=(5, 6)))
    tree.ran(Truncate(11, 1, 8))
    tree.ran(Truncate(12, 1, 9))
    tree.ran(Extend(13, 0, " hello"))
    lineages = [info.lineage for info in tree.session.snapshot().nodes]
    assert len(set(lineages)) == len(lineages)


def test_seeds_repeat_draws_and_tell_them_apart() -> None:
    tree = Driven()
    draw = Sample(n=2), Options(max_tokens=6)
    first, again, other = (
        tree.ran(Decode(i, (0,), *draw, seeds=(seed,))) for i, seed in enumerate((3, 3, 4))
    )
    assert [n.token_ids for n in first] == [n.token_ids for n in again]
    assert [n.token_ids for n in first] != [n.token_ids for n in other]
    assert tree.node(0).next_seed == 5
    assert first[0].token_ids != first[1].token_ids
    forks = tree.accepted(Fork(7, 0, 2))
    one, two = (tree.ran(Decode(10 + f.node, (f.node,), *draw)) for f in forks)
    assert one[0].token_ids != two[0].token_ids


def _exported(tree: Driven, *numbers: int) -> tuple[NodePath, ...]:
    [said] = [e for e in tree.send(Export(tree.next_id() + 1000, numbers)) if hasattr(e, "paths")]
    return tuple(NodePath.of_json(path.to_json()) for path in said.paths)


def test_what_is_exported_goes_on_elsewhere_as_it_would_have_here() -> None:
    options = Options(max_tokens=12, allowed_token_ids=(*ids("abcd"), EOS_ID), stop=("ba",))
    tree = Driven()
    level1 = tree.ran(Decode(1, (0,), Sample(n=8), options))
    assert {n.finish_reason for n in level1} >= {"eos", "stop"}
    open1 = [n.node for n in level1 if n.state == "stopped"]
    level2 = tree.ran(Decode(2, (open1[0],), Sample(n=2), Options(max_tokens=7)))
    given = tree.accepted(Extend(3, level2[0].node, "!"))[0]
    everything = [i.node for i in tree.session.snapshot().nodes]
    paths = _exported(tree, *everything)

    elsewhere = Driven(prompt=None)
    made = elsewhere.accepted(Import(1, paths))
    assert [(i.depth, i.start, i.token_ids, i.text, i.lineage, i.state) for i in made] == [
        (i.depth, i.start, i.token_ids, i.text, i.lineage, i.state) for i in map(tree.node, everything)
    ]
    assert _exported(elsewhere, *(i.node for i in made)) == paths
    lone = Driven("something else")
    alone = lone.accepted(Import(1, _exported(tree, given.node)))[0]
    assert lone.path(alone.node) == tree.path(given.node)
    assert alone.parent is None
    assert alone.token_ids == given.token_ids
    command = (given.node,), Sample(n=3, temperature=0.9), Options(max_tokens=9)
    expected = tree.ran(Decode(4, *command))
    for other, number in ((elsewhere, given.node), (lone, alone.node)):
        found = other.ran(Decode(4, (number,), *command[1:]))
        assert [(n.token_ids, n.text, n.lineage, n.cumulative_logprob) for n in found] == [
            (n.token_ids, n.text, n.lineage, n.cumulative_logprob) for n in expected
        ]
    for each in (tree, elsewhere, lone):
        each.close()


def test_a_node_whose_parent_is_gone_goes_on_as_before() -> None:
    one, other = Driven(), Driven()
    for tree in (one, other):
        tree.ran(Decode(1, (0,), Sample(n=1), Options(max_tokens=6)))
        tree.ran(Decode(2, (1,), Sample(n=1), Options(max_tokens=6)))
    before = one.path(2)
    one.accepted(Prune(3, (0, 1), subtree=False))
    assert one.path(2) == before
    assert one.node(2).parent is None
    results = [tree.ran(Decode(4, (2,), Sample(n=2), Options(max_tokens=5))) for tree in (one, other)]
    assert [n.token_ids for n in results[0]] == [n.token_ids for n in results[1]]
    lengths = [len(tree.path(tree.accepted(Truncate(5, 2, 12))[0].node)) for tree in (one, other)]
    assert lengths == [12, 12]
    again = one.accepted(Truncate(6, 3 + len(results[0]), 11))[0]
    assert one.path(again.node) == before[:11]
    one.close()
