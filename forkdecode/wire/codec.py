"""Frozen records as msgpack, and back. No pickle: only what a fixed registry names can come out.

A record is an ext value whose bytes are its class's name and its fields in their order; arrays are ext
values too (see arrays), an error is its class's name with its attributes. What is read is checked against the
annotations of its record, so that what decode() returns is what the types promise.
"""

from __future__ import annotations

import dataclasses
import hashlib
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgpack
import numpy as np

from forkdecode import errors, results
from forkdecode.checks import shown
from forkdecode.errors import ForkdecodeError
from forkdecode.wire.arrays import NUM_CODES, pack_array, unpack_array
from forkdecode.wire.checkers import Check, check_of

ERROR_CODE = NUM_CODES
RECORD_CODE = NUM_CODES + 1
MAX_DEPTH = 10
"""Records within records. Each level takes a piece of the C stack, so bytes must not choose."""
_ERRORS: Mapping[str, type[ForkdecodeError]] = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, ForkdecodeError)
}
# Texts of errors may hold anything, lone surrogates too: nothing that an engine says may fail to cross.
_UNICODE = "surrogatepass"


@dataclass(frozen=True, slots=True)
class _Kind:
    """One class of the registry."""

    cls: type
    fields: Callable[[Any], tuple[Any, ...]]
    checks: tuple[tuple[str, Check], ...]

    def build(self, values: Sequence[Any]) -> Any:
        if len(values) != len(self.checks):
            raise ValueError(f"{self.cls.__name__} has {len(self.checks)} fields")
        for (name, check), value in zip(self.checks, values, strict=True):
            if not check(value):
                raise ValueError(f"{self.cls.__name__}.{name} can't be a {type(value).__name__} like this")
        return self.cls(*values)


class Codec:
    """Encodes and decodes records of the classes `registry`, all of them dataclasses.

    absent: classes whose instances are left out: where a record holds one, None arrives.
    Safe in several threads at once.
    """

    def __init__(self, registry: Iterable[type], absent: frozenset[type] = frozenset()) -> None:
        self.registry: Mapping[str, type] = {cls.__name__: cls for cls in registry}
        self._kinds = {name: _kind(cls, absent) for name, cls in self.registry.items()}
        self._absent = absent
        self._unpack = self._unpackers()
        self.schema: bytes = _schema(self.registry)
        """8 bytes that change whenever a record, a field or a type does."""

    def encode(self, value: Any) -> bytes:
        """Raises TypeError for what is not in the registry, ValueError for a number that is too big."""
        return self._pack(value)

    def part(self, record: Any) -> msgpack.ExtType:
        """A record as it stands within another: a record made to be encoded may have this in its place. Its
        `data` are the bytes that it takes. Raises as encode()."""
        return self._other(record)

    def decode(self, data: bytes | memoryview) -> Any:
        """Raises ValueError, and nothing else, for bytes that encode() did not make."""
        try:
            return self._unpack(data)
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(f"no record: {type(error).__name__}: {error}") from error

    def _pack(self, value: Any) -> bytes:
        packed: bytes = msgpack.packb(value, default=self._other, unicode_errors=_UNICODE)
        return packed

    def _other(self, value: Any) -> Any:
        """What msgpack has no type for."""
        kind = type(value)
        if kind is np.ndarray:
            return msgpack.ExtType(*pack_array(value))
        name = kind.__name__
        if self.registry.get(name) is kind:
            return msgpack.ExtType(RECORD_CODE, self._pack((name, *self._kinds[name].fields(value))))
        if isinstance(value, ForkdecodeError):
            return msgpack.ExtType(ERROR_CODE, self._pack(_error_fields(value)))
        if isinstance(value, np.generic):
            return value.item()
        if kind in self._absent:
            return None
        if kind is int:
            raise ValueError("an integer of more than 64 bits does not cross")
        raise TypeError(f"a {kind.__name__} does not cross")

    def _unpackers(self) -> Callable[[bytes | memoryview], Any]:
        """unpack functions, each of which reads the records within by the next, down to MAX_DEPTH."""

        def too_deep(code: int, data: bytes) -> Any:
            raise ValueError(f"records are nested more than {MAX_DEPTH} deep")

        hook: Callable[[int, bytes], Any] = too_deep
        unpack = _unpacker(hook)
        for _ in range(MAX_DEPTH):
            hook = self._hook(unpack)
            unpack = _unpacker(hook)
        return unpack

    def _hook(self, unpack: Callable[[bytes | memoryview], Any]) -> Callable[[int, bytes], Any]:
        kinds = self._kinds

        def read(code: int, data: bytes) -> Any:
            if code < NUM_CODES:
                return unpack_array(code, data)
            if code == RECORD_CODE:
                name, *values = unpack(data)
                return kinds[name].build(values)
            if code == ERROR_CODE:
                return _error(unpack(data))
            raise ValueError(f"{code} is no code of ours")

        return read


def _unpacker(hook: Callable[[int, bytes], Any]) -> Callable[[bytes | memoryview], Any]:
    unpackb = msgpack.unpackb

    def unpack(data: bytes | memoryview) -> Any:
        return unpackb(data, use_list=False, strict_map_key=False, ext_hook=hook, unicode_errors=_UNICODE)

    return unpack


def _hints(cls: type) -> dict[str, Any]:
    # forkdecode.types can name Candidate for type checkers alone: results imports it.
    return typing.get_type_hints(cls, localns={"Candidate": results.Candidate})


def _kind(cls: type, absent: frozenset[type]) -> _Kind:
    names = [field.name for field in dataclasses.fields(cls)]
    hints = _hints(cls)
    getter: Callable[[Any], Any] = attrgetter(*names) if names else lambda value: ()
    fields = (lambda value: (getter(value),)) if len(names) == 1 else getter
    return _Kind(cls, fields, tuple((name, check_of(hints[name], absent)) for name in names))


def _schema(registry: Mapping[str, type]) -> bytes:
    lines = [
        f"{name} " + " ".join(f"{field.name}:{field.type}" for field in dataclasses.fields(cls))
        for name, cls in sorted(registry.items())
    ]
    lines.append(f"an error of {len(_ERROR_CHECKS)} fields")
    return hashlib.sha256("\n".join(lines).encode()).digest()[:8]


def _error_fields(error: ForkdecodeError) -> tuple[Any, ...]:
    """By name, the nearest class of the tree. Of its cause the text crosses; a partial result stays."""
    name = next(cls.__name__ for cls in type(error).__mro__ if cls.__name__ in _ERRORS)
    cause = None if error.__cause__ is None else shown(error.__cause__)
    return name, str(error), error.field, error.limit, error.request_id, error.retry_after, cause


_ERROR_CHECKS = tuple(map(check_of, (str, str, str | None, str | None, str | None, float | None, str | None)))


def _error(values: Any) -> ForkdecodeError:
    if type(values) is not tuple or len(values) != len(_ERROR_CHECKS):
        raise ValueError(f"an error has {len(_ERROR_CHECKS)} fields")
    if not all(check(value) for check, value in zip(_ERROR_CHECKS, values, strict=True)):
        raise ValueError("an error with a field of a wrong type")
    name, message, field, limit, request_id, retry_after, cause = values
    if name not in _ERRORS:
        raise ValueError(f"{name!r} is no error of ours")
    error = _ERRORS[name](message, field=field, limit=limit, request_id=request_id, retry_after=retry_after)
    if cause is not None:  # whoever tells callers of the error must see that it has one
        error.__cause__ = RuntimeError(cause)
    return error
