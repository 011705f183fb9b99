"""Catalogues against a trie of dicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.constraints.catalogue import RANK_BLOCK, ROOT_TOKEN, Catalogue, Keys
from forkdecode.constraints.catalogue_build import CatalogueBuilder, build_catalogue
from forkdecode.errors import InvalidRequestError
from tests.constraints.tries import HUGE, ITEMS, Items, Trie, first_of


@settings(max_examples=150, deadline=None, derandomize=True)
@given(ITEMS)
def test_is_the_trie_of_its_items(items: Items) -> None:
    catalogue, trie = build_catalogue(items), Trie.of(items)
    catalogue.check()
    nodes = dict(trie.paths())
    info = catalogue.info
    assert info.nodes == len(nodes)
    assert catalogue.tokens[0] == ROOT_TOKEN
    for path, node in nodes.items():
        at = catalogue.node(path)
        assert at is not None
        start, stop = catalogue.offsets[at], catalogue.offsets[at + 1]
        assert catalogue.tokens[start:stop].tolist() == sorted(node.children)
        assert bool(catalogue.complete[at]) == (node.item is not None)
        assert catalogue.key(path) == (None if node.item is None else str(node.item))
    complete = [(path, node) for path, node in nodes.items() if node.item is not None]
    lengths = [len(path) for path, _ in complete]
    assert (info.items, info.shortest, info.depth) == (len(complete), min(lengths), max(lengths))
    assert info.prefixes == sum(1 for _, node in complete if node.children)
    assert info.duplicates == len(items) - len(complete)
    assert info.highest == max(max(item) for item in items)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(ITEMS, st.lists(st.one_of(st.none(), st.text(max_size=6)), min_size=30, max_size=30))
def test_the_first_of_equal_items_gives_the_key(items: Items, names: list[str | None]) -> None:
    keys = names[: len(items)]
    catalogue = build_catalogue(items, keys)
    catalogue.check()
    for item, number in first_of(items).items():
        name = keys[number]
        assert catalogue.key(item) == (str(number) if name is None else name)


def test_what_is_no_item_has_no_key() -> None:
    catalogue = build_catalogue([(1, 2), (1, 2, 3), (5,)], ["a", "b", "c"])
    assert [catalogue.key(path) for path in ((1, 2), (1, 2, 3), (5,))] == ["a", "b", "c"]
    for path in ((), (1,), (1, 2, 3, 4), (6,), (HUGE,), (-1,), (5, 5)):
        assert catalogue.item(path) is None
        assert catalogue.key(path) is None
    assert (len(catalogue), catalogue.info.prefixes) == (3, 1)


def test_the_order_of_items_is_of_no_effect() -> None:
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 9, (400, 3))
    names = [",".join(map(str, row)) for row in rows.tolist()]
    shuffled = rng.permutation(len(rows))
    one = build_catalogue(rows.tolist(), names)
    other = build_catalogue(rows[shuffled].tolist(), [names[i] for i in shuffled])
    assert one.info.digest == other.info.digest
    assert build_catalogue(rows, names).info == one.info


def test_rows_of_an_array_are_items() -> None:
    rows = np.array([[3, 1], [3, 0], [0, 7]], np.int64)
    made = build_catalogue(rows)
    assert made.info == build_catalogue(rows.tolist()).info
    assert [made.key(row) for row in rows.tolist()] == ["0", "1", "2"]


def test_items_are_counted_beyond_a_block() -> None:
    rows = np.array([[i // 100, i % 100] for i in range(10 * RANK_BLOCK)])
    catalogue = build_catalogue(rows, (f"item {i}" for i in range(len(rows))))
    for number in (0, 1, RANK_BLOCK - 1, RANK_BLOCK, 3 * RANK_BLOCK + 7, len(rows) - 1):
        assert catalogue.key(rows[number].tolist()) == f"item {number}"


@pytest.mark.parametrize("items", [[(1,), (2,), (3,)], np.array([[1], [2], [3]])], ids=["lists", "rows"])
def test_integers_are_keys(items: Any) -> None:
    keys = build_catalogue(items, [10**12, np.int64(7), "a"]).keys
    assert [keys[i] for i in range(3)] == [str(10**12), "7", "a"]


def test_keys_may_begin_late() -> None:
    builder = CatalogueBuilder(first=1)
    builder.add([7])
    builder.add([8], "eight")
    builder.add([9])
    catalogue = builder.build()
    assert [catalogue.key([token]) for token in (7, 8, 9)] == ["1", "eight", "3"]


def test_says_which_of_some_tokens_it_holds() -> None:
    catalogue = build_catalogue([(1, 2), (3, 9)])
    assert catalogue.holds_any([0, 9, 4, 1]) == [9, 1]
    assert catalogue.holds_any([0, HUGE]) == []


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "no items": (lambda: build_catalogue([]), "items"),
    "an empty item": (lambda: build_catalogue([(1,), ()]), r"items\[1\]: is empty"),
    "a negative token": (lambda: build_catalogue([(1,), (2, -3)]), r"items\[1\]: -3"),
    "a huge token": (lambda: build_catalogue([(2**31,)]), r"items\[0\]"),
    "a fraction": (lambda: build_catalogue([(1.5,)]), r"items\[0\]: 1.5"),  # type: ignore[list-item]
    "a text": (lambda: build_catalogue(["ab"]), r"items\[0\]: 'ab' is not a list"),  # type: ignore[list-item]
    "a number of items": (lambda: build_catalogue(5), "items: 5 is no collection"),  # type: ignore[arg-type]
    "nothing": (lambda: build_catalogue(None), "items: None is no collection"),  # type: ignore[arg-type]
    "a text of items": (lambda: build_catalogue("ab"), "items: 'ab' is no coll"),  # type: ignore[arg-type]
    "a text of keys": (lambda: build_catalogue([(1,)], "a"), "keys: 'a' is no collection"),
    "a number of keys": (lambda: build_catalogue([(1,)], 5), "keys: 5 is no coll"),  # type: ignore[arg-type]
    "a set": (lambda: build_catalogue([{1, 2}]), r"items\[0\]"),  # type: ignore[list-item]
    "too few keys": (lambda: build_catalogue([(1,), (2,)], ["a"]), "keys"),
    "too many keys": (lambda: build_catalogue([(1,)], ["a", "b"]), "keys"),
    "a key that is no text": (lambda: build_catalogue([(1,)], [3.0]), "keys: 3.0"),  # type: ignore[list-item]
    "a truth for a key": (lambda: build_catalogue([(1,)], [True]), "keys: True"),
    "a flat array": (lambda: build_catalogue(np.arange(4)), "items"),
    "an array of fractions": (lambda: build_catalogue(np.ones((2, 2))), "items"),
    "an array without columns": (lambda: build_catalogue(np.ones((2, 0), int)), "items"),
    "an array of negatives": (lambda: build_catalogue(-np.ones((2, 2), int)), "items"),
    "too few keys of rows": (lambda: build_catalogue(np.ones((2, 1), int), ["a"]), "keys"),
}


@pytest.mark.parametrize("name", WRONG)
def test_refuses_what_is_no_item(name: str) -> None:
    make, message = WRONG[name]
    with pytest.raises(InvalidRequestError, match=message):
        make()


WRONG_ITEMS: list[Any] = [[], [3, -1], [4, "x"], [5, 2**31]]


def test_a_wrong_item_leaves_the_builder_as_it_was() -> None:
    builder = CatalogueBuilder()
    builder.add([1, 2], "a")
    for wrong in WRONG_ITEMS:
        with pytest.raises(InvalidRequestError):
            builder.add(wrong)
    with pytest.raises(InvalidRequestError, match="keys: holds a lone surrogate"):
        builder.add([9], "\ud800")
    builder.add([3], "b")
    catalogue = builder.build()
    assert (catalogue.key([1, 2]), catalogue.key([3]), len(catalogue)) == ("a", "b", 2)


def _damaged(catalogue: Catalogue, name: str, at: int, value: int) -> Catalogue:
    array = getattr(catalogue, name).copy()
    array[at] = value
    return replace(catalogue, **{name: array})


@pytest.mark.parametrize(
    ("name", "at", "value", "problem"),
    [
        ("offsets", 0, 0, "offsets"),
        ("offsets", -1, 99, "offsets"),
        ("offsets", 1, 99, "offsets"),
        ("offsets", 2, -1, "offsets"),
        ("offsets", 1, 1, "descendant"),
        ("tokens", 1, 5, "ascend"),
        ("tokens", 2, -4, "token ids"),
        ("tokens", 2, 10, "token ids"),
        ("complete", 0, 1, "where paths end"),
        ("complete", -1, 0, "where paths end"),
        ("complete", 1, 1, "as many items"),
        ("ranks", 0, 1, "ranks"),
    ],
)
def test_arrays_that_are_no_trie_are_found(name: str, at: int, value: int, problem: str) -> None:
    catalogue = build_catalogue([(1, 2), (1, 3), (4, 2), (4, 9, 9)])
    with pytest.raises(InvalidRequestError, match=problem):
        _damaged(catalogue, name, at, value).check()


def test_keys_and_counts_that_don_t_fit_are_found() -> None:
    catalogue = build_catalogue([(1,), (2, 3)], ["one", "two"])
    keys = catalogue.keys
    for bounds in ([1, 3, 6], [0, 3, 5], [0, 7, 6], [0, 3]):
        broken = Keys(None, np.array(bounds, np.int64), keys.text)
        with pytest.raises(InvalidRequestError, match=r"keys|items"):
            replace(catalogue, keys=broken).check()
    marks = np.array([0, 2, 0, 1], np.uint8).view(np.bool_)
    with pytest.raises(InvalidRequestError, match="where paths end"):
        replace(catalogue, complete=marks).check()
    info = catalogue.info
    for said in (
        replace(info, items=3),
        replace(info, prefixes=1),
        replace(info, depth=3),
        replace(info, shortest=2),
        replace(info, nodes=9),
        replace(info, highest=2),
    ):
        with pytest.raises(InvalidRequestError):
            replace(catalogue, info=said).check()
