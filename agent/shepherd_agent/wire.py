"""The part of the protobuf encoding that the agent needs."""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    Value = int | bytes

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
_NUMBER = "number"


def numbered(number: int, default: object = None, default_factory: Callable[[], object] | None = None) -> Any:
    """Return the dataclass field of an attribute that is field *number* of a message."""
    metadata = {_NUMBER: number}
    if default_factory is not None:
        return dataclasses.field(default_factory=default_factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def encode(message: Any) -> bytes:
    """Return the encoding of *message*: a dataclass whose attributes are all ``numbered``; None is unset."""
    encoded = b""
    for attribute in dataclasses.fields(message):
        value, number = getattr(message, attribute.name), attribute.metadata[_NUMBER]
        if isinstance(value, list) and value and isinstance(value[0], int):
            encoded += field(number, b"".join(map(_varint, value)))
            continue
        for each in value if isinstance(value, list) else [value]:
            encoded += _encode_one(number, each)
    return encoded


def _encode_one(number: int, value: Any) -> bytes:
    if dataclasses.is_dataclass(value):
        return field(number, encode(value))
    if not value:
        return b""  # unset, or the default value
    if isinstance(value, str):
        return field(number, value.encode(errors="replace"))  # the name of a file may not be valid text
    if isinstance(value, bytes):
        return field(number, value)
    if isinstance(value, float):
        return _varint(number << 3 | _FIXED32) + struct.pack("<f", value)
    return integer(number, value)


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """
    Yield number and value of each field.

    A value is bytes for text, bytes and messages, otherwise the integer as sent
    (see ``signed``). Fields of a fixed width are skipped.

    Raises:
        ValueError: *message* is not a protobuf message.
    """
    position = 0
    while position < len(message):
        tag, position = _read_varint(message, position)
        number, wire_type = tag >> 3, tag & 7
        if number == 0:
            raise ValueError("a field has the number 0")
        if wire_type == _VARINT:
            value, position = _read_varint(message, position)
            yield number, value
        elif wire_type in (_FIXED64, _FIXED32):
            position += 8 if wire_type == _FIXED64 else 4
        elif wire_type == _BYTES:
            length, start = _read_varint(message, position)
            position = start + length
            if position <= len(message):
                yield number, message[start:position]
        else:
            raise ValueError(f"field {number} is of the unknown wire type {wire_type}")
    if position > len(message):
        raise ValueError("the message ends in the middle of a field")


def field(number: int, value: bytes) -> bytes:
    """Return the encoding of one text, bytes or message field."""
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def integer(number: int, value: int) -> bytes:
    """Return the encoding of one field of an integer, enum or bool type; nothing for 0."""
    return _varint(number << 3 | _VARINT) + _varint(value) if value else b""


def signed(value: int) -> int:
    """Return the int64 that was sent as *value*."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index in range(_LONGEST_VARINT):
        if position + index >= len(message):
            raise ValueError("the message ends in the middle of a field")
        byte = message[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:  # noqa: PLR2004 - the highest bit means that more bytes follow
            return value, position + index + 1
    raise ValueError(f"a number is longer than {_LONGEST_VARINT} bytes")


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # negative numbers are sent as their complement
    encoded = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
