"""Any values in any fields, and damage to serialised messages."""

from __future__ import annotations

import math
import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from forkdecode.results import ServedModel

_TEXTS = (
    "",
    "a",
    "hello",
    "\0",
    "\n" * 40,
    "\u202e\u0301",
    "\U0001f9d1\u200d\U0001f680",
    "{{ 7 * 7 }}",
    "%s%n",
    "<|im_end|>",
)
_DOUBLES = (0.0, -0.0, 0.5, 1.0, -1.0, 5e-324, 1e308, math.inf, -math.inf, math.nan, 100.0, 10001.0)


def fill(rng: random.Random, message: Any, model: ServedModel) -> None:
    """Sets about half of the fields, at any depth."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.5:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            worth = field.message_type.fields_by_name["value"]
            getattr(message, field.name)[_number(rng, model)] = _value(rng, worth, model)
        elif not field.is_repeated:
            if field.message_type is not None:
                getattr(message, field.name).SetInParent()
                fill(rng, getattr(message, field.name), model)
            else:
                setattr(message, field.name, _value(rng, field, model))
        else:
            _fill_list(rng, getattr(message, field.name), field, model)


def _fill_list(rng: random.Random, items: Any, field: Any, model: ServedModel) -> None:
    for _ in range(rng.choice((0, 1, 1, 2, 3, 20))):
        if field.message_type is not None:
            fill(rng, items.add(), model)
        else:
            items.append(_value(rng, field, model))


_POOLS: dict[int, tuple[Any, ...]] = {
    FieldDescriptor.TYPE_STRING: _TEXTS,
    FieldDescriptor.TYPE_DOUBLE: _DOUBLES,
    FieldDescriptor.TYPE_BOOL: (False, True),
    FieldDescriptor.TYPE_ENUM: (0, 1, 2, 3, 99, -1, -(2**31)),
    FieldDescriptor.TYPE_SINT32: (0, 1, -1, -(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 1, 2**63, 2**64 - 1),
}


def _value(rng: random.Random, field: Any, model: ServedModel) -> Any:
    pool = _POOLS.get(field.type)
    return _number(rng, model) if pool is None else rng.choice(pool)


def _number(rng: random.Random, model: ServedModel) -> int:
    """Of 32 bits: often a small one, which may be served."""
    if rng.random() < 0.7:
        return rng.randint(0, 3)
    size = model.vocab_size
    return rng.choice((17, size - 1, size, size + 1, 65_536, 65_537, 2**31 - 1, 2**31, 2**32 - 1))


def damage(rng: random.Random, data: bytearray) -> None:
    """One change: a byte, a piece less, a piece twice, a piece more, an end."""
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice((1, 1, 2, 4, 16)))
    match rng.randrange(5):
        case 0 if at < len(data):
            data[at] = rng.randrange(256)
        case 1:
            del data[at:end]
        case 2:
            data[at:at] = data[at:end]
        case 3:
            data[at:at] = rng.randbytes(end - at)
        case _:
            del data[at:]


def any_field(rng: random.Random, number: int) -> bytes:
    """A field of any wire type."""
    match rng.randrange(4):
        case 0:
            return tag(number, 0) + b"\x01"
        case 1:
            return tag(number, 1) + rng.randbytes(8)
        case 2:
            return tag(number, 2) + b"\x03abc"
        case _:
            return tag(number, 5) + rng.randbytes(4)


def tag(number: int, kind: int) -> bytes:
    value, out = number << 3 | kind, bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
