"""The part of the protobuf encoding that the agent needs: fields of text and bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """
    Yield number and value of each text, bytes or message field; fields of all other types are passed over.

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
            _, position = _read_varint(message, position)
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


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index in range(_LONGEST_VARINT):
        if position + index >= len(message):
            raise ValueError("the message ends in the middle of a field")
        byte = message[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:  # noqa: PLR2004 - the bit that says that more bytes follow
            return value, position + index + 1
    raise ValueError(f"a number is longer than {_LONGEST_VARINT} bytes")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
