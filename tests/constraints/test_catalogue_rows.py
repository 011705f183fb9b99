"""Where a group's rows stand in a catalogue, against walks of a trie of dicts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.allowed import AllowedLists
from forkdecode.constraints.catalogue_build import build_catalogue
from forkdecode.constraints.catalogue_rows import CatalogueConstraint
from forkdecode.errors import GroupFailedError
from tests.constraints.tries import ITEMS, Items, Trie

EOS = np.array([400, 401], np.int64)
FIRST = np.zeros(1, np.int32)


def _listed(allowed: AllowedLists, row: int) -> list[int]:
    return [int(token) for token in allowed.tokens[allowed.start[row] : allowed.stop[row]]]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(ITEMS, st.integers(0, 2**31), st.booleans())
def test_walks_as_the_trie_does(items: Items, seed: int, by_item: bool) -> None:
    """Rows fork and go on at random; each is allowed what its node in the trie has."""
    rng = np.random.default_rng(seed)
    catalogue = build_catalogue(items)
    constraint = CatalogueConstraint(catalogue, "item" if by_item else "eos", EOS)
    rows, nodes = constraint.rows(), [Trie.of(items)]
    while nodes:
        allowed = rows.allowed().get()
        assert isinstance(allowed, AllowedLists)
        assert allowed.tokens is catalogue.tokens
        for row, node in enumerate(nodes):
            assert _listed(allowed, row) == sorted(node.children)
            if by_item:
                assert allowed.ends is not None
                ends = allowed.ends[allowed.start[row] : allowed.stop[row]].tolist()
                assert ends == [node.children[t].item is not None for t in sorted(node.children)]
            else:
                assert allowed.also is not None
                assert bool(allowed.also[row]) == (node.item is not None)
        moves = [(row, token) for row, node in enumerate(nodes) for token in node.children]
        picked = [moves[i] for i in rng.integers(0, len(moves), 4)] if moves else []
        parents = np.array([row for row, _ in picked], np.int32)
        rows = rows.next(parents, np.array([token for _, token in picked], np.int64))
        nodes = [nodes[row].children[token] for row, token in picked]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(ITEMS, st.integers(0, 2**31), st.booleans(), st.integers(0, 7))
def test_items_that_are_too_short_are_not_even_begun(
    items: Items, seed: int, by_item: bool, least: int
) -> None:
    """What is allowed begins an item of `least` tokens or more, and all of these are there."""
    rng = np.random.default_rng(seed)
    constraint = CatalogueConstraint(build_catalogue(items), "item" if by_item else "eos", EOS, least)
    long_enough = Trie.of([item for item in items if len(item) >= least])
    rows, nodes = constraint.rows(), [(long_enough, Trie.of(items))]
    while nodes:
        allowed = rows.allowed().get()
        assert isinstance(allowed, AllowedLists)
        for row, (node, every) in enumerate(nodes):
            tokens = sorted(node.children)
            assert _listed(allowed, row) == tokens
            if by_item:
                assert allowed.ends is not None
                ends = allowed.ends[allowed.start[row] : allowed.stop[row]].tolist()
                assert ends == [every.children[t].item is not None for t in tokens]
            else:
                assert allowed.also is not None
                assert bool(allowed.also[row]) == (node.item is not None)
        moves = [(row, token) for row, (node, _) in enumerate(nodes) for token in node.children]
        picked = [moves[i] for i in rng.integers(0, len(moves), 4)] if moves else []
        parents = np.array([row for row, _ in picked], np.int32)
        rows = rows.next(parents, np.array([token for _, token in picked], np.int64))
        nodes = [(nodes[row][0].children[token], nodes[row][1].children[token]) for row, token in picked]


def test_after_eos_nothing_follows() -> None:
    constraint = CatalogueConstraint(build_catalogue([(1,), (1, 2)]), "eos", EOS)
    rows = constraint.rows().next(FIRST, np.array([1]))
    ended = rows.next(np.array([0, 0, 0], np.int32), np.array([400, 2, 401]))
    allowed = ended.allowed().get()
    assert isinstance(allowed, AllowedLists)
    assert [_listed(allowed, row) for row in range(3)] == [[], [], []]
    assert allowed.also is not None
    assert allowed.also.tolist() == [False, True, False]


def test_what_no_item_continues_with_is_a_fault() -> None:
    catalogue = build_catalogue([(1,), (3, 2)])
    eos, item = (CatalogueConstraint(catalogue, end, EOS) for end in ("eos", "item"))
    after_3 = eos.rows().next(FIRST, np.array([3]))
    ended = eos.rows().next(FIRST, np.array([1])).next(FIRST, EOS[:1])
    for rows, token in ((eos.rows(), 2), (eos.rows(), 400), (after_3, 400), (ended, 400), (item.rows(), 400)):
        with pytest.raises(GroupFailedError, match=str(token)):
            rows.next(FIRST, np.array([token]))


def test_names_what_a_candidate_consists_of() -> None:
    constraint = CatalogueConstraint(build_catalogue([(1,), (1, 2)], ["one", "both"]), "eos", EOS)
    assert constraint.key([1, 400]) == constraint.key([1]) == "one"
    assert constraint.key((1, 2, 401)) == "both"
    assert constraint.key([]) is constraint.key([400]) is constraint.key([1, 2, 3]) is None
