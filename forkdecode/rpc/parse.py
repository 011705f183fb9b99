"""Bytes to requests, so that those that are none are refused by name too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from forkdecode.errors import invalid
from forkdecode.rpc.fields import check_known

_Request = TypeVar("_Request", bound=Message)

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT = 10
_PACKED = (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_DOUBLE)


def parse(kind: type[_Request], data: bytes) -> _Request:
    """The request that `data` holds. Raises InvalidRequestError naming the field that is malformed, by
    its path or by "request" when it is the message itself, or that is unknown."""
    try:
        message = kind.FromString(data)
    except DecodeError:
        path, problem = _fault(kind.DESCRIPTOR, data, "")
        allowed = f"a serialised {kind.DESCRIPTOR.full_name}"
        raise invalid(path.rstrip(".") or "request", problem, allowed) from None
    check_known(message)
    return message


def _fault(kind: Any, data: bytes, prefix: str) -> tuple[str, str]:
    """Where `data`, which no parser takes for a message of this kind (a Descriptor), goes wrong, and how;
    an empty text when it does not go wrong there."""
    counts: dict[str, int] = {}
    try:
        for number, value in _length_fields(data):
            field = kind.fields_by_number.get(number)
            if field is None:
                continue
            path = f"{prefix}{field.name}"
            if field.is_repeated and field.type not in _PACKED:
                counts[path] = counts.get(path, -1) + 1
                path += f"[{counts[path]}]"
            found = _field_fault(field, value, path)
            if found[1]:
                return found
    except ValueError as error:
        return prefix, str(error)
    return prefix, "" if prefix else "is malformed"


def _field_fault(field: Any, value: bytes, path: str) -> tuple[str, str]:
    if field.message_type is not None:
        return _fault(field.message_type, value, f"{path}.")
    if field.type == FieldDescriptor.TYPE_STRING:
        try:
            value.decode()
        except UnicodeDecodeError:
            return path, "is not valid UTF-8"
    return path, _packed_fault(field, value) if field.type in _PACKED else ""


def _packed_fault(field: Any, value: bytes) -> str:
    """What is wrong with numbers that come one after the other."""
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return "is cut short" if len(value) % _SIZES[_FIXED64] else ""
    try:
        at = 0
        while at < len(value):
            _, at = _varint(value, at)
    except ValueError as error:
        return str(error)
    return ""


def _length_fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and content of each length-delimited field. Raises ValueError where the bytes break off or
    make no sense."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if tag >> 3 == 0 or kind not in (_VARINT, *_SIZES, _LENGTH):
            raise ValueError("is not in protobuf's wire format")
        if kind == _VARINT:
            _, at = _varint(data, at)
            continue
        size = _SIZES.get(kind, 0)
        if kind == _LENGTH:
            size, at = _varint(data, at)
        if size > len(data) - at:
            raise ValueError("is cut short")
        if kind == _LENGTH:
            yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(_MAX_VARINT):
        if at >= len(data):
            raise ValueError("is cut short")
        byte = data[at]
        value |= (byte & 0x7F) << 7 * shift
        at += 1
        if byte < 0x80:
            return value, at
    raise ValueError("has a number that is too long")
