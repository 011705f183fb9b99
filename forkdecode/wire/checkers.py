"""From a record's annotations to checks of what was read for them: bytes prove nothing about types."""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, Union

import numpy as np

Hints: TypeAlias = tuple[Any, ...]
_EXACT = frozenset({int, float, str, bool, type(None)})
_NUMBERS: Mapping[Any, frozenset[type]] = {int: frozenset((int,)), float: frozenset((float, int))}
Check: TypeAlias = Callable[[Any], bool]
"""Whether a value is what an annotation says."""


def check_of(hint: Any, absent: frozenset[type] = frozenset()) -> Check:
    """The check of one annotation. Classes in `absent` never cross and are None at the other end.

    Raises TypeError for an annotation that no record should have.
    """
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return _union(args, absent)
    if origin in _MAKERS:
        return _MAKERS[origin](args, absent)
    if not isinstance(hint, type):
        raise TypeError(f"{hint!r} is nothing that crosses")
    return _plain(type(None) if hint in absent else hint)


def _plain(kind: type) -> Check:
    if kind is float:
        return lambda value: type(value) is float or type(value) is int
    return lambda value: type(value) is kind or (kind is not int and isinstance(value, kind))


def _never(args: Hints, absent: frozenset[type]) -> Check:
    """Callables: they never cross."""
    return lambda value: False


def _array(args: Hints, absent: frozenset[type]) -> Check:
    dtype = np.dtype(typing.get_args(args[1])[0])
    return lambda value: type(value) is np.ndarray and value.dtype == dtype


def _literal(args: Hints, absent: frozenset[type]) -> Check:
    pairs = frozenset((type(value), value) for value in args)
    return lambda value: isinstance(value, (str, bool, int)) and (type(value), value) in pairs


def _union(hints: Hints, absent: frozenset[type]) -> Check:
    exact = [hint for hint in hints if hint in _EXACT or dataclasses.is_dataclass(hint)]
    kinds = frozenset(exact) | ({int} if float in exact else frozenset())
    others = tuple(check_of(hint, absent) for hint in hints if hint not in exact)
    if not others:
        return lambda value: type(value) in kinds
    return lambda value: type(value) in kinds or any(check(value) for check in others)


def _tuple(args: Hints, absent: frozenset[type]) -> Check:
    if args[1:] == (Ellipsis,):
        return _any_length(args[0], absent)
    checks = tuple(check_of(hint, absent) for hint in args)
    return lambda value: (
        type(value) is tuple
        and len(value) == len(checks)
        and all(check(item) for check, item in zip(checks, value, strict=True))
    )


def _any_length(hint: Any, absent: frozenset[type]) -> Check:
    """Of one kind of items. The long ones, of token ids and of pairs, are checked in C."""
    if hint in _NUMBERS:
        kinds = _NUMBERS[hint]
        return lambda value: type(value) is tuple and kinds.issuperset(map(type, value))
    inner = typing.get_args(hint)
    if typing.get_origin(hint) is tuple and _NUMBERS.keys() >= set(inner):
        return _table(tuple(_NUMBERS[column] for column in inner))
    check = check_of(hint, absent)
    return lambda value: type(value) is tuple and all(map(check, value))


def _table(columns: tuple[frozenset[type], ...]) -> Check:
    """Of tuples that are rows of numbers: looked at by columns."""
    rows, width = frozenset((tuple,)), frozenset((len(columns),))

    def check(value: Any) -> bool:
        if type(value) is not tuple or not rows.issuperset(map(type, value)):
            return False
        if not width.issuperset(map(len, value)):
            return False
        found = zip(*value, strict=True)
        return all(kinds.issuperset(map(type, column)) for kinds, column in zip(columns, found, strict=False))

    return check


def _mapping(args: Hints, absent: frozenset[type]) -> Check:
    key, item = (check_of(hint, absent) for hint in args)
    return lambda value: type(value) is dict and all(map(key, value)) and all(map(item, value.values()))


_MAKERS: Mapping[Any, Callable[[Hints, frozenset[type]], Check]] = {
    tuple: _tuple,
    Literal: _literal,
    np.ndarray: _array,
    dict: _mapping,
    collections.abc.Mapping: _mapping,
    collections.abc.Callable: _never,
}
