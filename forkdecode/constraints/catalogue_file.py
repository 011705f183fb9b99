"""Catalogues in files: written at once or not at all, opened by mapping.

A file is one of safetensors (8 bytes little-endian: the header's length; the header, JSON; the arrays), so
that other tools can read it: `tokens`, `offsets`, `complete`, `ranks`, and `numbers` or `key_bounds` with
`key_text`, as Catalogue has them; its metadata is CatalogueInfo, as texts. Arrays are used where they lie,
so those of larger numbers come first. Opening reads the header alone; the operating system reads pages of
the rest as they are asked for, and drops them as it likes.
"""

from __future__ import annotations

import json
import math
import os
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from forkdecode.constraints.catalogue import RANK_BLOCK, Catalogue, CatalogueInfo, Keys, Offsets
from forkdecode.errors import InvalidRequestError

FORMAT = "forkdecode.catalogue.v1"
_LENGTH = struct.Struct("<Q")
_MAX_HEADER = 1 << 16
_ALIGN = 8
_DTYPES: Mapping[str, np.dtype[Any]] = {
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_KINDS: Mapping[str, tuple[str, ...]] = {
    "tokens": ("I32",),
    "offsets": ("I32", "I64"),
    "complete": ("BOOL",),
    "ranks": ("I64",),
    "numbers": ("I64",),
    "key_bounds": ("I64",),
    "key_text": ("U8",),
}
_INTEGERS = ("items", "nodes", "depth", "shortest", "highest", "prefixes", "duplicates")


def save_catalogue(catalogue: Catalogue, path: str | os.PathLike[str]) -> None:
    """Writes the file, or leaves what was there: who opens it sees the old one or the new one. Those that
    have the old one open keep it. Raises OSError."""
    target = Path(path)
    arrays = _arrays(catalogue)
    header = _header(catalogue.info, arrays)
    descriptor, work = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(header)
            for array in arrays.values():
                file.write(np.ascontiguousarray(array).data)
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            file.flush()
            os.fsync(file.fileno())
        os.replace(work, target)
    except BaseException:
        os.unlink(work)
        raise


def open_catalogue(path: str | os.PathLike[str]) -> Catalogue:
    """Maps a file of save_catalogue: takes milliseconds and no memory, whatever its size. Its header and
    sizes are checked; what the arrays hold is checked by Catalogue.check(), which reads them.

    A file in use must be replaced by renaming another one to it, never written to: see save_catalogue.
    Raises InvalidRequestError naming the file and what is wrong with it.
    """
    try:
        return _open(Path(path))
    except OSError as error:
        raise _wrong(path, f"can't be opened: {error.strerror or error}") from error
    except _CorruptError as error:
        raise _wrong(path, str(error)) from None


class _CorruptError(Exception):
    """What is wrong with a file."""


def _wrong(path: str | os.PathLike[str], problem: str) -> InvalidRequestError:
    allowed = "a file that `forkdecode catalogue build` wrote"
    return InvalidRequestError(
        f"catalogue {os.fspath(path)!r}: {problem}; allowed: {allowed}", field="catalogue", limit=allowed
    )


def _arrays(catalogue: Catalogue) -> dict[str, NDArray[Any]]:
    """In the order of the file: of larger numbers first, so that each lies where its numbers can be read."""
    keys = catalogue.keys
    named: dict[str, NDArray[Any]] = {
        "tokens": catalogue.tokens,
        "offsets": catalogue.offsets,
        "complete": catalogue.complete,
        "ranks": catalogue.ranks,
    }
    if keys.numbers is not None:
        named |= {"numbers": keys.numbers}
    else:
        named |= {"key_bounds": keys.bounds, "key_text": keys.text}
    return dict(sorted(named.items(), key=lambda one: -one[1].dtype.itemsize))


def _header(info: CatalogueInfo, arrays: Mapping[str, NDArray[Any]]) -> bytes:
    metadata = {name: str(value) for name, value in asdict(info).items() if value is not None}
    entries: dict[str, Any] = {"__metadata__": {"format": FORMAT, **metadata}}
    at = 0
    for name, array in arrays.items():
        place = [at, at + array.nbytes]
        entries[name] = {"dtype": _NAMES[array.dtype], "shape": [len(array)], "data_offsets": place}
        at += array.nbytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + _LENGTH.size) % _ALIGN)
    return _LENGTH.pack(len(text)) + text


def _umask() -> int:
    """The process's, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _open(path: Path) -> Catalogue:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            raise _CorruptError(f"has {size} bytes, too few for a catalogue")
        (length,) = _LENGTH.unpack(head)
        if length > min(_MAX_HEADER, size - _LENGTH.size):
            raise _CorruptError("does not begin like a catalogue, or is cut off")
        entries = _parsed(file.read(length))
        data = np.memmap(file, np.uint8, mode="r") if size > _LENGTH.size + length else None
    if data is None:
        raise _CorruptError("is cut off behind its header")
    metadata = entries.pop("__metadata__", None)
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise _CorruptError("is no catalogue of this version of forkdecode")
    body = np.asarray(data)[_LENGTH.size + length :]
    return _catalogue(_info(metadata), _views(entries, body))


def _parsed(header: bytes) -> dict[str, Any]:
    try:
        entries = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise _CorruptError("has a header that is no JSON") from error
    if not isinstance(entries, dict):
        raise _CorruptError("has a header that says nothing")
    return entries


def _info(metadata: Mapping[str, Any]) -> CatalogueInfo:
    texts = all(isinstance(value, str) for value in metadata.values())
    if not texts or not {"digest", *_INTEGERS} <= metadata.keys():
        raise _CorruptError("has a header that lacks something")
    try:
        numbers = {name: int(metadata[name]) for name in _INTEGERS}
    except ValueError:
        raise _CorruptError("has a header with a number that is none") from None
    return CatalogueInfo(**numbers, model=metadata.get("model"), digest=metadata["digest"])


def _views(entries: Mapping[str, Any], body: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
    """The arrays, where they lie."""
    found = {}
    for name, entry in entries.items():
        if name not in _KINDS:
            raise _CorruptError(f"has an array {name!r}, which catalogues don't have")
        found[name] = _view(name, entry, body)
    return found


def _view(name: str, entry: Any, body: NDArray[np.uint8]) -> NDArray[Any]:
    try:
        kind, (length,), (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
        whole = all(type(number) is int and number >= 0 for number in (length, start, stop))
    except (TypeError, ValueError, KeyError):
        raise _CorruptError(f"describes its array {name!r} in no way that can be read") from None
    if kind not in _KINDS[name] or not whole or stop - start != length * _DTYPES[kind].itemsize:
        raise _CorruptError(f"has an array {name!r} of another type or size than it says")
    if stop > len(body):
        raise _CorruptError(f"is cut off: its array {name!r} is not all there")
    if start % _DTYPES[kind].itemsize:
        raise _CorruptError(f"has its array {name!r} where it can't be used")
    return body[start:stop].view(_DTYPES[kind])


def _catalogue(info: CatalogueInfo, arrays: Mapping[str, NDArray[Any]]) -> Catalogue:
    """Checks how many of everything there are, so that an index in bounds for one is so for the others."""
    nodes, items = info.nodes, info.items
    has_numbers = "numbers" in arrays
    keys = {"numbers": items} if has_numbers else {"key_bounds": items + 1, "key_text": None}
    lengths: dict[str, int | None] = {
        "tokens": nodes,
        "offsets": nodes + 1,
        "complete": nodes,
        "ranks": math.ceil(nodes / RANK_BLOCK),
        **keys,
    }
    if arrays.keys() != lengths.keys():
        raise _CorruptError(f"has arrays {', '.join(sorted(arrays))}, not {', '.join(sorted(lengths))}")
    for name, length in lengths.items():
        if length is not None and len(arrays[name]) != length:
            raise _CorruptError(f"has {len(arrays[name])} entries in {name!r} where {length} belong")
    if not 1 <= items < nodes:
        raise _CorruptError(f"says that it has {items} items in {nodes} nodes")
    return Catalogue(
        arrays["tokens"],
        cast(Offsets, arrays["offsets"]),
        arrays["complete"],
        arrays["ranks"],
        Keys(
            arrays.get("numbers"),
            arrays.get("key_bounds", np.empty(0, np.int64)),
            arrays.get("key_text", np.empty(0, np.uint8)),
        ),
        info,
    )
