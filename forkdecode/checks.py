"""Checks of single values: each names the field and what is allowed, and returns the plain value.

Integers and numbers of numpy count as such; booleans don't.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral, Real
from typing import Any, TypeGuard, cast

from forkdecode.errors import InvalidRequestError, invalid

MAX_INT = 2**31 - 1
"""Positions, token ids and block ids are int32."""
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


def shown(value: object) -> str:
    """`value` as an error text quotes it: like repr(), but short whatever it is."""
    try:
        return _SHORT.repr(value)
    except BaseException:  # a caller's object may do anything, and Python refuses to print a huge integer
        return f"this {type(value).__name__}"


def told(error: BaseException) -> str:
    """The kind of an error of a caller's code and what it says, which is the caller's code, too."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:
        return f"{type(error).__name__}, which can't be shown"


def said(error: BaseException) -> str:
    """What an error of a caller's code says."""
    try:
        return str(error)
    except BaseException:
        return "what can't be shown"


def keep(record: object, name: str, check: Callable[..., object], *bounds: Any, **more: Any) -> None:
    """Checks a field of a frozen record that is being built, and keeps what the check makes of it."""
    object.__setattr__(record, name, check(name, getattr(record, name), *bounds, **more))


def is_integer(value: object) -> TypeGuard[Integral]:
    """Whether it is an integer of any kind, numpy's among them; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_int(name: str, value: object, low: int, high: int = MAX_INT) -> int:
    """Raises InvalidRequestError unless `value` is an integer in low..high."""
    allowed = f"integers from {low} to {high}"
    if not is_integer(value):
        raise invalid(name, f"{shown(value)} is not an integer", allowed)
    number = int(value)
    if not low <= number <= high:
        raise invalid(name, f"{shown(number)} is out of range", allowed)
    return number


def check_float(
    name: str, value: object, low: float = -math.inf, high: float = math.inf, *, open_low: bool = False
) -> float:
    """Raises InvalidRequestError unless `value` is a finite number in [low, high] or (low, high]."""
    allowed = _finite(low, high, open_low)
    if isinstance(value, bool) or not isinstance(value, Real):
        raise invalid(name, f"{shown(value)} is not a number", allowed)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number > high or number < low or (open_low and number == low):
        raise invalid(name, f"{shown(value)} is out of range", allowed)
    return number


def _finite(low: float, high: float, open_low: bool) -> str:
    above = f" {'above' if open_low else 'from'} {low:g}" if low > -math.inf else ""
    return "finite numbers" + above + (f" to {high:g}" if high < math.inf else "")


def check_ints(name: str, value: object, low: int, high: int, most: int) -> tuple[int, ...]:
    """Raises InvalidRequestError unless `value` lists at most `most` integers in low..high."""
    return tuple(check_int(name, item, low, high) for item in _few(name, value, "integers", most))


def check_floats(name: str, value: object, low: float, high: float, most: int) -> tuple[float, ...]:
    """Raises InvalidRequestError unless `value` lists 1 to `most` finite numbers in [low, high]."""
    items = _few(name, value, "numbers", most)
    if not items:
        raise invalid(name, "is empty", "at least one number")
    return tuple(check_float(name, item, low, high) for item in items)


def _few(name: str, value: object, of: str, most: int) -> list[object]:
    items = check_items(name, value, of)
    if len(items) > most:
        raise invalid(name, f"has {len(items)} entries", f"at most {most}")
    return items


def check_bool(name: str, value: object) -> bool:
    """Raises InvalidRequestError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise invalid(name, f"{shown(value)} is not a boolean", "True or False")
    return value


def check_unicode(name: str, value: object, allowed: str = "any text") -> str:
    """Raises InvalidRequestError unless `value` is a text that UTF-8 can hold."""
    if not isinstance(value, str):
        raise invalid(name, f"{shown(value)} is not a text", allowed)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _no_unicode(name, value) from None
    return value


def _no_unicode(name: str, text: str) -> InvalidRequestError:
    try:  # as Python reads arguments and standard input
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return invalid(name, "holds a lone surrogate", "valid Unicode text")
    return invalid(name, "holds a lone surrogate, made of bytes that are not UTF-8", "valid Unicode text")


def check_items(name: str, value: object, of: str) -> list[object]:
    """The items of a list, a tuple, an array or the like. Raises InvalidRequestError for a text, for
    what has no order, and for what is no collection; `of` says what it should hold."""
    if isinstance(value, (str, bytes, set, frozenset, dict)) or not isinstance(value, Iterable):
        raise invalid(name, f"{shown(value)} is not a list", f"a list of {of}")
    return list(value)


def are_ids(items: Sequence[object], size: int = MAX_INT + 1) -> TypeGuard[Sequence[int]]:
    """Whether all are Python's integers from 0 to size - 1. Of a million items this knows within tens of
    milliseconds what a check of each takes seconds for."""
    if not set(map(type, items)) <= {int}:
        return False
    numbers = cast(Sequence[int], items)
    return not numbers or (min(numbers) >= 0 and max(numbers) < size)


def check_token_ids(name: str, value: object) -> tuple[int, ...]:
    """Raises InvalidRequestError unless `value` lists integers of at least 0."""
    items = check_items(name, value, "token ids")
    return tuple(items) if are_ids(items) else tuple(check_int(name, token, 0) for token in items)


def check_words(name: str, value: object, most: int | None = None) -> tuple[str | tuple[int, ...], ...]:
    """Raises InvalidRequestError unless `value` lists texts or lists of token ids, none of them empty,
    and no more than `most`."""
    words: list[str | tuple[int, ...]] = []
    items = check_items(name, value, "texts or of token id lists")
    if most is not None and len(items) > most:
        raise invalid(name, f"has {len(items)} entries", f"at most {most}")
    for item in items:
        word = check_unicode(name, item) if isinstance(item, str) else check_token_ids(name, item)
        if not word:
            raise invalid(name, "has an empty entry", "non-empty texts or token id lists")
        words.append(word)
    return tuple(words)


def check_texts(name: str, value: object, max_bytes: int) -> tuple[str, ...]:
    """Raises InvalidRequestError unless `value` is a text or lists texts, none empty, of at most
    `max_bytes` in all."""
    allowed = "a non-empty text or a list of them"
    items = [value] if isinstance(value, str) else check_items(name, value, "texts")
    texts = tuple(check_unicode(name, item, allowed) for item in items)
    if not all(texts):
        raise invalid(name, "has an empty text", allowed)  # the others are for no log
    size = sum(len(text.encode()) for text in texts)
    if size > max_bytes:
        raise invalid(name, f"has {size} bytes", f"at most {max_bytes} in all")
    return texts
