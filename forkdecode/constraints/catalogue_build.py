"""Making a catalogue of token sequences: level by level, all items at once."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from forkdecode.checks import MAX_INT, check_int, check_items, check_unicode, shown
from forkdecode.constraints.catalogue import (
    ROOT_TOKEN,
    Catalogue,
    CatalogueInfo,
    Keys,
    Offsets,
    digest_of,
    rank_blocks,
)
from forkdecode.errors import invalid

_I64 = NDArray[np.int64]
_TOKEN_BITS = 32
A = TypeVar("A", bound=np.ndarray)


def build_catalogue(
    items: Iterable[Sequence[int]] | NDArray[np.integer],
    keys: Iterable[str | int | None] | None = None,
    *,
    model: str | None = None,
) -> Catalogue:
    """A catalogue of `items`, in any order: each a sequence of at least one token id, or all of them the rows
    of an integer array [I, depth], which is much quicker. keys: a name for each, a text or an integer, which
    is told as a text; where there is none an item's name is its number, from 0.

    Of equal items the first counts, its key with it. Raises InvalidRequestError naming the item.
    """
    _check_collection("items", items, "token sequences, or an array of integers [items, depth]")
    if keys is not None:
        _check_collection("keys", keys, "a text, an integer or None for each item")
    builder = CatalogueBuilder()
    if isinstance(items, np.ndarray):
        builder.add_rows(items)
        builder.name(keys)
        return builder.build(model)
    names: Iterable[str | int | None] = itertools.repeat(None) if keys is None else keys
    taken = iter(names)
    for tokens in items:
        try:
            key = next(taken)
        except StopIteration:
            raise invalid("keys", f"are only {len(builder)}", "one for each item") from None
        builder.add(tokens, key)
    if keys is not None and next(taken, builder) is not builder:
        raise invalid("keys", f"are more than the {len(builder)} items", "one for each item")
    return builder.build(model)


def _check_collection(name: str, value: object, allowed: str) -> None:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise invalid(name, f"{shown(value)} is no collection", allowed)


class CatalogueBuilder:
    """Takes items one after the other, or many at once; then makes the catalogue. Holds 4 bytes a token and
    4 an item, and its keys. first: the number of the first item, for names and errors."""

    def __init__(self, first: int = 0) -> None:
        self._tokens = array("i")
        self._lengths = array("i")
        self._first = first
        self._keys: _KeyText | None = None

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, tokens: Sequence[int], key: str | int | None = None) -> None:
        """One item. Raises InvalidRequestError, and leaves things as they were."""
        name = None if key is None else _key_text(key)
        try:
            ids = array("i", tokens) if isinstance(tokens, (list, tuple)) else None
        except (TypeError, OverflowError):
            ids = None
        if not ids or min(ids) < 0:  # with what is wrong with it, or a sequence of another kind
            ids = array("i", self._checked_ids(tokens))
        self._tokens += ids
        self._lengths.append(len(ids))
        if name is not None or self._keys is not None:
            self._add_key(name)

    def add_rows(self, rows: NDArray[np.integer]) -> None:
        """Each row [depth] of an array an item. Raises InvalidRequestError."""
        if rows.ndim != 2 or not np.issubdtype(rows.dtype, np.integer) or not rows.shape[1]:
            problem = f"is {rows.dtype} {list(rows.shape)}"
            raise invalid("items", problem, "an array of integers [items, depth], depth at least 1")
        if rows.size and (int(rows.min()) < 0 or int(rows.max()) > MAX_INT):
            raise invalid("items", "hold numbers that are no token ids", f"integers from 0 to {MAX_INT}")
        self._tokens.frombytes(np.ascontiguousarray(rows, np.int32).tobytes())
        self._lengths.frombytes(np.full(len(rows), rows.shape[1], np.int32).tobytes())

    def name(self, keys: Iterable[str | int | None] | None) -> None:
        """Keys for all items, which have none so far."""
        if keys is None:
            return
        text = _KeyText()
        for number, key in enumerate(keys, self._first):
            text.add(str(number) if key is None else _key_text(key))
        if len(text) != len(self):
            raise invalid("keys", f"are {len(text)}", f"{len(self)}, one for each item")
        self._keys = text

    def build(self, model: str | None = None) -> Catalogue:
        """The catalogue of what was added. model: whose tokens these are. Raises InvalidRequestError where
        there are no items."""
        if not self._lengths:
            raise invalid("items", "are none", "at least one item")
        if model is not None:
            check_unicode("model", model)
        flat = np.frombuffer(self._tokens, np.int32)
        lengths = np.frombuffer(self._lengths, np.int32).astype(np.int64)
        levels = list(_levels(flat, lengths))
        firsts = np.concatenate([level.first[level.first >= 0] for level in levels])
        return _assembled(levels, self._named(firsts), len(self) - len(firsts), model)

    def _named(self, firsts: _I64) -> Keys:
        """Keys of the items with these numbers, in this order."""
        if self._keys is not None:
            return self._keys.of(firsts)
        return Keys(_frozen(firsts + self._first), np.empty(0, np.int64), np.empty(0, np.uint8))

    def _add_key(self, key: str | None) -> None:
        number = self._first + len(self._lengths) - 1
        if self._keys is None:
            self._keys = _KeyText()
            for earlier in range(self._first, number):
                self._keys.add(str(earlier))
        self._keys.add(str(number) if key is None else key)

    def _checked_ids(self, tokens: object) -> list[int]:
        name = f"items[{self._first + len(self)}]"
        ids = [check_int(name, token, 0) for token in check_items(name, tokens, "token ids")]
        if not ids:
            raise invalid(name, "is empty", "at least one token id")
        return ids


def _key_text(key: object) -> str:
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
        return str(int(key))
    return check_unicode("keys", key, "a text, an integer or None")


class _KeyText:
    """Texts one after the other."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._bounds = array("q", [0])

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def add(self, key: str) -> None:
        self._text += key.encode()
        self._bounds.append(len(self._text))

    def of(self, items: _I64) -> Keys:
        """Of these items, in this order."""
        bounds = np.frombuffer(self._bounds, np.int64)
        text = np.frombuffer(self._text, np.uint8)
        start, lengths = bounds[items], bounds[items + 1] - bounds[items]
        moved = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        # Byte b of a key stands at its start plus b: a run of consecutive numbers for each key.
        source = np.repeat(start - moved[:-1], lengths)
        source += np.arange(len(source))
        return Keys(None, _frozen(moved), _frozen(text[source]))


@dataclass(frozen=True, slots=True)
class _Level:
    """The m nodes of one depth. tokens [m]: what leads to each. children [p]: how many nodes of this level
    each of the p nodes of the level before has. first [m]: the first item that ends at the node, or -1."""

    tokens: NDArray[np.int32]
    children: _I64
    first: _I64


def _levels(flat: NDArray[np.int32], lengths: _I64) -> Iterable[_Level]:
    """The trie's levels, the root's left out. flat: all items' tokens; lengths [I] of the items."""
    # Of each item that goes on: its number, where its next token stands, how many are left, and which node
    # of the level it is at.
    items, at, left = np.arange(len(lengths)), np.cumsum(lengths) - lengths, lengths
    nodes = np.zeros(len(lengths), np.int64)
    parents = 1
    while len(items):
        # Parents in order, then tokens in order: sorted, these are the nodes of the level in order.
        edges, nodes = np.unique((nodes << _TOKEN_BITS) | flat[at], return_inverse=True)
        ends = left == 1
        first = np.full(len(edges), -1, np.int64)
        # Of several values for one place the last one written stays: the first item's.
        first[nodes[ends][::-1]] = items[ends][::-1]
        children = np.bincount(edges >> _TOKEN_BITS, minlength=parents).astype(np.int64)
        yield _Level((edges & (2**_TOKEN_BITS - 1)).astype(np.int32), children, first)
        parents = len(edges)
        goes_on = ~ends
        items, at, left, nodes = items[goes_on], at[goes_on] + 1, left[goes_on] - 1, nodes[goes_on]


def _assembled(levels: list[_Level], keys: Keys, duplicates: int, model: str | None) -> Catalogue:
    tokens = np.concatenate([np.array([ROOT_TOKEN], np.int32), *(level.tokens for level in levels)])
    complete = np.concatenate([np.zeros(1, np.bool_), *(level.first >= 0 for level in levels)])
    leaves = np.zeros(len(levels[-1].tokens), np.int64)
    offsets = np.cumsum(np.concatenate([np.ones(1, np.int64), *(level.children for level in levels), leaves]))
    ends = [i for i, level in enumerate(levels, 1) if bool((level.first >= 0).any())]
    info = CatalogueInfo(
        items=len(keys),
        nodes=len(tokens),
        depth=ends[-1],
        shortest=ends[0],
        highest=int(tokens.max()),
        prefixes=int(np.count_nonzero(complete & (offsets[1:] > offsets[:-1]))),
        duplicates=duplicates,
        model=model,
        digest="",
    )
    small = cast(Offsets, offsets.astype(np.int32) if len(tokens) <= MAX_INT else offsets)
    made = Catalogue(
        _frozen(tokens), _frozen(small), _frozen(complete), _frozen(rank_blocks(complete)), keys, info
    )
    return replace(made, info=replace(info, digest=digest_of(made)))


def _frozen(array: A) -> A:
    array.flags.writeable = False
    return array
