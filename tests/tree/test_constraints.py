"""Constraints along the paths of a tree: on the toy model, with tables of what may follow."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forkdecode.constraint_types import ConstraintSpec, FromCatalogue
from forkdecode.constraints.maker import ConstraintMaker
from forkdecode.errors import InvalidRequestError, NoLegalTokenError, invalid
from forkdecode.tree_types import (
    Decode,
    Done,
    Export,
    Exported,
    Extend,
    Finish,
    Fork,
    Import,
    NodePath,
    NodeStopped,
    Prune,
    TreeLimits,
    Truncate,
)
from forkdecode.types import Greedy, Options, Sample
from tests.constraints.toy import Table, items_table, random_table
from tests.llm.models import EOS_ID, VOCAB, ids
from tests.tree.driven import CrossedPort, Driven, InlinePort

LOOP = FromCatalogue("loop")
OTHER = FromCatalogue("other")
ITEMS = FromCatalogue("items", end="item")
WORDS = FromCatalogue("words")
TABLES: dict[str, Table] = {
    "loop": random_table(3, len(VOCAB), 8, 3, also=(EOS_ID,), also_states=frozenset({5})),
    "other": random_table(4, len(VOCAB), 8, 3),
    "items": items_table([ids("abc"), ids("abd"), ids("b"), ids("cab")], len(VOCAB)),
    "words": items_table(
        [ids(word) for word in ("ab", "abcd", "ace", "bead", "bed", "cafe")], len(VOCAB), EOS_ID
    ),
}


@pytest.fixture(autouse=True)
def tables(monkeypatch: pytest.MonkeyPatch) -> dict[str, Table]:
    """What the names stand for in a test; it may exchange them."""
    known = dict(TABLES)

    def of(_: ConstraintMaker, spec: ConstraintSpec, *more: object, **others: object) -> Table:
        assert isinstance(spec, FromCatalogue)
        if spec.name not in known:
            raise invalid("constraint", f"{spec.name} is not known", "known names")
        return known[spec.name]

    monkeypatch.setattr(ConstraintMaker, "of", of)
    return known


def under(constraint: ConstraintSpec | None, max_tokens: int = 4, **more: object) -> Options:
    return Options(max_tokens=max_tokens, constraint=constraint, **more)  # type: ignore[arg-type]


class Held(Driven):
    """A session whose nodes are asked what follows."""

    def on(self, node: int, options: Options, strategy: Greedy | Sample | None = None) -> int:
        """The first child of a decode."""
        return self.ran(Decode(self.next_id(), (node,), strategy or Greedy(), options))[0].node

    def after(self, node: int, start: int) -> tuple[int, ...]:
        """The path's tokens after the first `start`."""
        return self.path(node)[start:]

    def base(self, node: int) -> int:
        """How many tokens truncation leaves."""
        info = self.node(node)
        return info.start or len(info.token_ids) if info.parent is None else self.base(info.parent)

    def extended(self, node: int, tokens: tuple[int, ...]) -> int:
        return self.ran(Extend(self.next_id(), node, tokens))[0].node

    def truncated(self, node: int, length: int) -> int:
        return self.ran(Truncate(self.next_id(), node, length))[0].node

    def exported(self, *nodes: int) -> tuple[NodePath, ...]:
        number = self.next_id()
        self.send(Export(number, nodes))
        return self.said(Exported, number)[0].paths


def moves(table: Table, tokens: tuple[int, ...]) -> list[int]:
    """Tokens that may follow `tokens`, EOS left out."""
    state = 0
    for token in tokens:
        state = int(table.moves[state, token])
    return [int(token) for token in np.flatnonzero(table.moves[state] >= 0)]


P = len(Driven("hello world").path(0))


@pytest.mark.parametrize("pieces", [(12,), (1,) * 12, (5, 7), (3, 1, 4, 1, 3)])
def test_greedy_in_pieces_is_greedy_at_once(pieces: tuple[int, ...]) -> None:
    tree = Held()
    whole = tree.on(0, under(LOOP, 12))
    node = 0
    for length in pieces:
        node = tree.on(node, under(LOOP, length))
    assert tree.path(node) == tree.path(whole)
    assert len(tree.path(node)) == P + 12
    assert TABLES["loop"].accepts(tree.after(node, P))
    free = tree.on(0, under(None, 12))
    assert tree.path(free) != tree.path(whole)
    tree.close()


def exact(table: Table, prompt: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    """The probability of every text that the table allows, under the toy model's masked logits."""
    runner = InlinePort().runner
    found: dict[tuple[int, ...], float] = {}
    left: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while left:
        text, mass = left.pop()
        state = 0
        for token in text:
            state = int(table.moves[state, token])
        may = moves(table, text) + [EOS_ID] * (state in table.also_states)
        logits = runner.logits(np.array(prompt + text, np.int64)).astype(np.float64)[may]
        for token, weight in zip(may, np.exp(logits) / np.exp(logits).sum(), strict=True):
            if token == EOS_ID:
                found[(*text, token)] = mass * weight
            else:
                left.append(((*text, token), mass * weight))
    return found


@pytest.mark.parametrize("first", [1, 2])
def test_samples_in_pieces_are_distributed_as_the_texts(first: int) -> None:
    tree = Held()
    n = 150
    expected = exact(TABLES["words"], tree.path(0))
    assert sum(expected.values()) == pytest.approx(1)
    tree.accepted(Decode(tree.next_id(), (0,), Sample(n=n), under(WORDS, first)))
    tree.run()
    begun = {info.node: info for info in tree.session.snapshot().nodes if info.node}
    going = tuple(number for number, info in begun.items() if info.state == "stopped")
    tree.accepted(Decode(tree.next_id(), going, Sample(), under(WORDS, 8)))
    tree.run()
    counts: Counter[tuple[int, ...]] = Counter()
    for info in tree.session.snapshot().nodes:
        if info.state == "finished":
            counts[(begun[info.parent].token_ids if info.parent else ()) + info.token_ids] += 1
    assert counts.total() == n
    assert set(counts) <= set(expected)
    statistic = sum((counts[text] - n * p) ** 2 / (n * p) for text, p in expected.items())
    assert statistic < 20.5, "chi-square of 5 degrees of freedom, 0.1 %"
    tree.close()


def test_what_is_decoded_after_the_end_begins_anew() -> None:
    tree = Held()
    node, texts = 0, []
    for _ in range(3):
        start = len(tree.path(node))
        node = tree.on(node, under(ITEMS, 5))
        assert tree.node(node).finish_reason == "stop"
        texts.append(tree.after(node, start))
    assert set(texts) <= {ids("abc"), ids("abd"), ids("b"), ids("cab")}
    word = tree.on(node, under(WORDS, 8))
    assert tree.node(word).finish_reason == "eos"
    again = tree.extended(word, ids(" "))
    assert len(tree.after(tree.on(again, under(WORDS, 8)), len(tree.path(again)))) > 1
    tree.close()


def test_a_stop_and_a_step_leave_it_unfinished() -> None:
    tree = Held()
    whole = tree.after(tree.on(0, under(LOOP, 8)), P)
    letters = {token: text for text, token in VOCAB.items()}
    at = next(i for i, token in enumerate(whole) if len(letters[token]) == 1 and letters[token].isascii())
    for options, step in (
        (under(LOOP, 8, stop=(letters[whole[at]],)), ()),
        (under(LOOP, 8), (letters[whole[at]],)),
    ):
        child = tree.ran(Decode(tree.next_id(), (0,), Greedy(), options, step))[0]
        assert child.finish_reason == ("step" if step else "stop")
        on = tree.on(child.node, under(LOOP, 8 - len(child.token_ids)))
        assert tree.after(on, P) == whole
    tree.close()


def test_another_one_or_none_ends_it() -> None:
    tree = Held()
    begun = tree.on(0, under(LOOP, 3))
    other = tree.on(begun, under(OTHER, 3))
    assert TABLES["other"].accepts(tree.after(other, P + 3))
    free = tree.on(begun, under(None, 1))
    for node in (other, free):
        anew = tree.on(node, under(LOOP, 6))
        assert TABLES["loop"].accepts(tree.after(anew, len(tree.path(node))))
    tree.close()


def test_given_tokens_go_on_with_it_or_end_it() -> None:
    tree = Held()
    begun = tree.on(0, under(LOOP, 3))
    allowed = moves(TABLES["loop"], tree.after(begun, P))
    child = tree.extended(begun, (allowed[-1],))
    assert TABLES["loop"].accepts(tree.after(tree.on(child, under(LOOP, 5)), P))
    foreign = next(token for token in VOCAB.values() if token not in allowed and token != EOS_ID)
    ended = tree.extended(begun, (foreign,))
    anew = tree.after(tree.on(ended, under(LOOP, 5)), P + 4)
    assert TABLES["loop"].accepts(anew)
    assert not TABLES["loop"].accepts(tree.after(ended, P))
    back = tree.truncated(ended, P + 3)
    assert tree.after(tree.on(back, under(LOOP, 5)), P) == tree.after(tree.on(begun, under(LOOP, 5)), P)
    tree.close()


@pytest.mark.parametrize("pruned", [False, True])
def test_back_to_a_place_after_its_beginning_it_goes_on(pruned: bool) -> None:
    tree = Held()
    given = tree.extended(0, ids("abc"))
    start = P + 3
    first = tree.on(given, under(LOOP, 4))
    last = tree.on(first, under(LOOP, 4))
    whole = tree.after(last, start)
    if pruned:
        tree.accepted(Prune(tree.next_id(), (given, first), subtree=False))
    for length in range(P, start + 9):
        cut = tree.truncated(last, length)
        found = tree.after(tree.on(cut, under(LOOP, start + 8 - length + 1)), min(start, length))
        if length < start:
            assert TABLES["loop"].accepts(tree.after(cut, P)[length - P :] + found)
        else:
            assert found[:8] == whole
            assert TABLES["loop"].accepts(found)
    tree.close()


def test_forks_go_on_with_it() -> None:
    tree = Held()
    begun = tree.on(0, under(LOOP, 3))
    forks = tree.ran(Fork(tree.next_id(), begun, 3))
    for fork in forks:
        for child in tree.ran(Decode(tree.next_id(), (fork.node,), Sample(n=4), under(LOOP, 5))):
            assert TABLES["loop"].accepts(tree.after(child.node, P))
    tree.close()


@pytest.mark.parametrize("alone", [False, True])
def test_what_is_imported_goes_on_with_it(alone: bool) -> None:
    tree = Held()
    first = tree.on(0, under(LOOP, 3))
    second = tree.on(first, under(LOOP, 2))
    fork = tree.ran(Fork(tree.next_id(), second))[0].node
    expected = tree.after(tree.on(fork, under(LOOP, 6)), P)
    paths = tree.exported(*((fork,) if alone else (0, first, second, fork)))
    assert paths[-1].constraint == LOOP
    assert paths[-1].constraint_start == P
    assert all(NodePath.of_json(path.to_json()) == path for path in paths)
    tree.close()
    other = Held("another prompt")
    made = other.accepted(Import(other.next_id(), paths))[-1].node
    assert other.after(other.on(made, under(LOOP, 6)), P) == expected
    back = other.truncated(made, P + 2) if not alone else made
    assert other.after(other.on(back, under(LOOP, 9)), P)[:5] == expected[:5]
    other.close()


def test_an_imported_path_that_it_does_not_allow_is_refused_when_it_is_decoded() -> None:
    tree = Held()
    path = tree.exported(tree.on(0, under(LOOP, 3)))[0]
    foreign = next(token for token in VOCAB.values() if token not in moves(TABLES["loop"], ()))
    wrong = dataclasses.replace(
        path, token_ids=(*path.token_ids[:P], foreign, *path.token_ids[P + 1 :]), text=""
    )
    made = tree.accepted(Import(tree.next_id(), (wrong,)))[0].node
    error = tree.refused(Decode(tree.next_id(), (made,), Greedy(), under(LOOP)))
    assert isinstance(error, InvalidRequestError)
    assert error.field == "constraint"
    assert TABLES["other"].accepts(tree.after(tree.on(made, under(OTHER)), P + 3))
    tree.close()


def test_a_catalogue_that_was_exchanged(tables: dict[str, Table]) -> None:
    """What still begins an item goes on, what does not is refused; of one that is gone nothing does."""
    tree = Held()
    options = under(FromCatalogue("new"), 2)
    tables["new"] = items_table([ids("abcd"), ids("abef")], len(VOCAB), EOS_ID)
    begun = tree.on(0, options)
    tables["new"] = items_table([ids("abca"), ids("cc")], len(VOCAB), EOS_ID)
    assert tree.after(tree.on(begun, options), P) == ids("abca")
    tables["new"] = items_table([ids("cc")], len(VOCAB), EOS_ID)
    error = tree.refused(Decode(tree.next_id(), (begun,), Greedy(), options))
    assert isinstance(error, InvalidRequestError)
    assert error.field == "constraint"
    assert "'new'" not in str(error.limit)
    del tables["new"]
    assert tree.refused(Decode(tree.next_id(), (begun,), Greedy(), options)).field == "constraint"
    child = tree.extended(begun, ids("c"))
    tables["new"] = items_table([ids("cd")], len(VOCAB), EOS_ID)
    assert tree.after(tree.on(child, options), P + 3) == ids("cd")
    tree.close()


@pytest.mark.parametrize("port", [InlinePort, CrossedPort])
def test_a_child_that_nothing_follows_fails_alone(port: type[InlinePort], tables: dict[str, Table]) -> None:
    moves = np.full((2, len(VOCAB)), -1, np.int64)
    moves[0, ids("abcd")] = [0, 0, 0, 1]  # nothing follows a d
    tables["dead ends"] = Table(moves)
    tree = Held(port=port())
    options = under(FromCatalogue("dead ends"))
    made = tree.ran(Decode(tree.next_id(), (0,), Sample(n=8), options))
    failed = {info.node for info in made if info.finish_reason == "failed"}
    assert 0 < len(failed) < 8
    for info in made:
        assert info.finish_reason == ("failed" if info.node in failed else "length")
        assert (info.token_ids[-1:] == ids("d")) or info.node not in failed
        (stopped,) = tree.said(NodeStopped, info.node)
        assert isinstance(stopped.error, NoLegalTokenError) is (info.node in failed)
    (done,) = tree.said(Done)
    assert done.error is None
    assert tree.port.stats().held_nodes == tree.session.held_nodes == 9 - len(failed)
    assert tree.port.stats().used_blocks <= tree.session.blocks
    tree.check_heard()
    for number in failed:  # its path may go on without the constraint
        assert len(tree.after(tree.on(number, under(None, 2)), P)) == len(tree.after(number, P)) + 2
    tree.close()


def test_a_forced_prefix_is_of_what_goes_on() -> None:
    tree = Held()
    begun = tree.on(0, under(WORDS, 1))
    assert tree.after(begun, P) in {ids("a"), ids("b"), ids("c")}
    rest = {"a": "b", "b": "e", "c": "a"}["abc"[[ids(x) for x in "abc"].index(tree.after(begun, P))]]
    assert tree.after(tree.on(begun, under(WORDS, 8, forced_prefix=rest)), P)[:2][1:] == ids(rest)
    error = tree.refused(Decode(tree.next_id(), (begun,), Greedy(), under(WORDS, 8, forced_prefix="cafe")))
    assert error.field == "forced_prefix"
    tree.close()


def test_a_finished_node_that_is_extended_begins_anew_unless_it_was_only_said_to_be() -> None:
    tree = Held()
    begun = tree.on(0, under(LOOP, 3))
    tree.accepted(Finish(tree.next_id(), (begun,)))
    child = tree.extended(begun, (moves(TABLES["loop"], tree.after(begun, P))[0],))
    assert TABLES["loop"].accepts(tree.after(tree.on(child, under(LOOP, 5)), P))
    tree.close()


STEPS = st.lists(
    st.tuples(
        st.integers(0, 10**6),
        st.sampled_from(["decode", "fork", "truncate", "extend", "import"]),
        st.integers(1, 4),
    ),
    min_size=1,
    max_size=14,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(STEPS, st.booleans())
def test_whatever_happens_to_paths_the_tokens_since_the_beginning_are_allowed(
    steps: list[tuple[int, str, int]], tight: bool
) -> None:
    """tight: hardly any KV stays, so that nearly all is computed again."""
    limits = TreeLimits(max_blocks=48 if tight else None)
    tree = Held(port=InlinePort(num_blocks=64 if tight else 4096, host_slots=4 * tight), limits=limits)
    table = TABLES["loop"]
    nodes = [tree.on(0, under(LOOP, 2))]
    for pick, verb, size in steps:
        node = nodes[pick % len(nodes)]
        if verb == "decode" and tree.node(node).state != "finished":
            made = tree.ran(Decode(tree.next_id(), (node,), Sample(n=2), under(LOOP, size)))
            nodes += [child.node for child in made]
        elif verb == "fork":
            nodes.append(tree.ran(Fork(tree.next_id(), node))[0].node)
        elif verb == "truncate":
            base = tree.base(node)
            nodes.append(tree.truncated(node, base + pick % (len(tree.path(node)) - base + 1)))
        elif verb == "extend" and tree.node(node).state != "finished":
            may = moves(table, tree.after(node, P))
            nodes.append(tree.extended(node, (may[pick % len(may)],)))
        elif verb == "import":
            nodes.append(tree.accepted(Import(tree.next_id(), tree.exported(node)))[0].node)
        assert table.accepts(tree.after(nodes[-1], P))
    tree.check_heard()
    tree.close()
