"""Catalogues in files: written whole, opened by mapping, distrusted."""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from forkdecode.constraints.catalogue import Catalogue, digest_of
from forkdecode.constraints.catalogue_build import build_catalogue
from forkdecode.constraints.catalogue_file import open_catalogue, save_catalogue
from forkdecode.errors import InvalidRequestError
from tests.constraints.tries import ITEMS, Items, first_of

NAMED = build_catalogue([(1, 2), (1, 3), (4, 2), (4, 9, 9)], ["a", "ß", "", "dd"], model="some/model")


def _same(one: Catalogue, other: Catalogue) -> None:
    assert one.info == other.info
    for name in ("tokens", "offsets", "complete", "ranks"):
        mine, theirs = getattr(one, name), getattr(other, name)
        assert mine.dtype == theirs.dtype
        np.testing.assert_array_equal(mine, theirs)
    assert [one.keys[i] for i in range(len(one))] == [other.keys[i] for i in range(len(other))]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(ITEMS, st.booleans())
def test_comes_back_as_it_was(tmp_path_factory: Any, items: Items, named: bool) -> None:
    path = tmp_path_factory.mktemp("catalogue") / "items.cat"
    catalogue = build_catalogue(items, [f"«{i}»" for i in range(len(items))] if named else None)
    save_catalogue(catalogue, path)
    opened = open_catalogue(path)
    opened.check()
    _same(catalogue, opened)
    for item, number in first_of(items).items():
        assert opened.key(item) == (f"«{number}»" if named else str(number))


def test_other_tools_can_read_it(tmp_path: Path) -> None:
    save_catalogue(NAMED, tmp_path / "c")
    arrays = load_file(tmp_path / "c")
    np.testing.assert_array_equal(arrays["tokens"], NAMED.tokens)
    assert arrays["key_text"].tobytes().decode() == "".join(NAMED.keys[i] for i in range(4))


def test_is_mapped_and_can_t_be_written_to(tmp_path: Path) -> None:
    save_catalogue(NAMED, tmp_path / "c")
    opened = open_catalogue(tmp_path / "c")
    assert opened.info.model == "some/model"
    for array in (opened.tokens, opened.offsets, opened.complete, opened.ranks, opened.keys.text):
        assert isinstance(_owner(array), mmap.mmap)
        assert type(array) is np.ndarray
        assert not array.flags.writeable
        assert array.flags.aligned


def test_a_file_is_replaced_whole_and_who_has_it_open_keeps_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "c"
    save_catalogue(NAMED, path)
    old = open_catalogue(path)
    save_catalogue(build_catalogue([(7,)]), path)
    assert open_catalogue(path).key([7]) == "0"
    assert old.key([4, 9, 9]) == "dd"
    assert os.listdir(tmp_path) == ["c"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "c"
    save_catalogue(NAMED, path)

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        save_catalogue(build_catalogue([(7,)]), path)
    assert os.listdir(tmp_path) == ["c"]
    _same(open_catalogue(path), NAMED)


def _owner(array: Any) -> Any:
    """Who has an array's memory."""
    while isinstance(array, np.ndarray):
        array = array.base
    return array


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _split(data: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def _joined(header: Any, body: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def _with(*path: str, value: Any) -> Callable[[bytes], bytes]:
    """The header with another value at a place; None takes it away."""

    def change(data: bytes) -> bytes:
        header, body = _split(data)
        *way, last = path
        entry = header
        for name in way:
            entry = entry[name]
        if value is None:
            del entry[last]
        else:
            entry[last] = value
        return _joined(header, body)

    return change


CORRUPT: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "nothing": (lambda data: b"", "0 bytes"),
    "a few bytes": (lambda data: data[:5], "5 bytes"),
    "half a header": (lambda data: data[:100], "cut off"),
    "a header alone": (lambda data: data[: 8 + struct.unpack("<Q", data[:8])[0]], "cut off"),
    "the end cut off": (lambda data: data[:-16], "cut off"),
    "a text": (lambda data: b"the quick brown fox jumps", "does not begin"),
    "no JSON": (lambda data: _joined(b"{nonsense", _split(data)[1]), "no JSON"),
    "deep JSON": (lambda data: _joined(b"[" * 60_000, _split(data)[1]), "no JSON"),
    "a list": (lambda data: _joined([1], _split(data)[1]), "says nothing"),
    "another format": (_with("__metadata__", "format", value="pt"), "no catalogue"),
    "no metadata": (_with("__metadata__", value=None), "no catalogue"),
    "no digest": (_with("__metadata__", "digest", value=None), "lacks"),
    "a number that is none": (_with("__metadata__", "items", value="many"), "none"),
    "a number as such": (_with("__metadata__", "items", value=4), "lacks"),
    "more items": (_with("__metadata__", "items", value="400"), "entries"),
    "no items": (_with("__metadata__", "items", value="0"), "entries"),
    "more nodes": (_with("__metadata__", "nodes", value="9999"), "entries"),
    "a missing array": (_with("ranks", value=None), "has arrays"),
    "an array too many": (_with("extra", value={}), "'extra'"),
    "an array that is no record": (_with("ranks", value=[1]), "no way"),
    "a type that is another": (_with("tokens", "dtype", value="F32"), "another type"),
    "a type of another array": (_with("ranks", "dtype", value="I32"), "another type"),
    "a type that can't be hashed": (_with("tokens", "dtype", value=[]), "another type"),
    "a negative start": (_with("tokens", "data_offsets", value=[-32, 0]), "another type"),
    "a fraction": (_with("tokens", "data_offsets", value=[0.0, 32.0]), "another type"),
    "beyond the end": (_with("tokens", "data_offsets", value=[2**40, 2**40 + 32]), "cut off"),
    "an odd place": (_with("tokens", "data_offsets", value=[2, 34]), "can't be used"),
}


@pytest.mark.parametrize("name", CORRUPT)
def test_a_file_that_is_wrong_says_so(name: str, tmp_path: Path) -> None:
    path = tmp_path / "items.cat"
    save_catalogue(NAMED, path)
    change, message = CORRUPT[name]
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(InvalidRequestError, match=message) as caught:
        open_catalogue(path)
    assert str(path) in str(caught.value)


def test_what_can_t_be_opened_says_so(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(InvalidRequestError, match="can't be opened"):
            open_catalogue(path)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_no_damage_gets_past_both_checks(tmp_path_factory: Any, data: st.DataObject) -> None:
    """Whatever bytes a file has: it is refused, or it holds the catalogue that was saved."""
    path = tmp_path_factory.mktemp("damaged") / "c"
    save_catalogue(NAMED, path)
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw[: data.draw(st.sampled_from([len(raw), len(raw) - 1, len(raw) - 8]))])
    try:
        opened = open_catalogue(path)
        opened.check()
    except InvalidRequestError:
        return
    assert opened.info.digest == NAMED.info.digest == digest_of(opened)
    np.testing.assert_array_equal(opened.ranks, NAMED.ranks)
    assert [opened.keys[i] for i in range(len(opened))] == [NAMED.keys[i] for i in range(len(NAMED))]


def test_a_token_that_became_another_one_is_found(tmp_path: Path) -> None:
    """A trie all the same: nothing but the digest tells."""
    path = tmp_path / "c"
    save_catalogue(build_catalogue([(1, 2), (1, 4), (8, 9)]), path)
    raw = path.read_bytes()
    at = open_catalogue(path).tokens.tolist().index(4)
    start = raw.index(np.array([-1, 1, 8, 2, 4, 9], "<i4").tobytes()) + 4 * at
    path.write_bytes(raw[:start] + struct.pack("<i", 6) + raw[start + 4 :])
    changed = open_catalogue(path)
    assert changed.tokens[at] == 6
    with pytest.raises(InvalidRequestError, match="its arrays have changed since it was written"):
        changed.check()
