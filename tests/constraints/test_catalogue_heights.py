"""How deep catalogues go below their nodes, against a trie of dicts."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from forkdecode.constraints.catalogue_build import build_catalogue
from tests.constraints.tries import ITEMS, Items, Trie


def _height(node: Trie) -> int:
    return max((1 + _height(child) for child in node.children.values()), default=0)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(ITEMS)
def test_each_node_knows_how_much_can_follow(items: Items) -> None:
    catalogue = build_catalogue(items)
    found = catalogue.heights()
    assert found is catalogue.heights()
    assert len(found) == catalogue.info.nodes
    for path, node in Trie.of(items).paths():
        at = catalogue.node(path)
        assert at is not None
        assert found[at] == _height(node)


def test_items_may_be_longer_than_a_byte_tells() -> None:
    catalogue = build_catalogue([tuple(range(300)), (5,)])
    assert catalogue.heights().tolist() == [300, 299, 0, *range(298, -1, -1)]


def test_another_catalogue_has_heights_of_its_own() -> None:
    one, other = build_catalogue([(1, 2)]), build_catalogue([(1,), (2,)])
    assert one.heights().tolist() == [2, 1, 0]
    assert replace(one, offsets=other.offsets).heights().tolist() == [1, 0, 0]
