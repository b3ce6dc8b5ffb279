"""Protocol Buffers as bytes: the fields of a message, without a schema.

In:  bytes, and the range of a message in them. Out: numbers of fields with their values; Truncated with the offset.
Source: the encoding guide of Protocol Buffers (protobuf.dev, "Encoding").
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

Span = tuple[int, int]  # bytes [lo, hi) of the data
Value = int | Span  # of a varint and of fixed widths: unsigned; of bytes, strings and messages: where they are
_WIDTHS: Final = {1: 8, 5: 4}  # wire type -> bytes of fixed width


MOST_MESSAGE: Final = 1 << 24  # bytes
MOST_FIELDS: Final = 1 << 23  # of a file, with those of messages in messages


class Counted(bytes):
    """The bytes of a file. left: how many fields may still be read from it."""

    left = MOST_FIELDS


class TruncatedError(ValueError):
    """The data ends early, or is not of this format. offset: of the first byte that is not understood."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"byte {offset}")
        self.offset = offset


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """An unsigned number of 64 bits, and the offset behind it."""
    value = shift = 0
    for offset in range(at, min(end, at + 10)):
        byte = data[offset]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, offset + 1
        shift += 7
    raise TruncatedError(at)


def messages(data: bytes) -> Iterator[Span]:
    """The messages of a stream, each with its length before it."""
    at = 0
    while at < len(data):
        length, start = varint(data, at, len(data))
        if length > MOST_MESSAGE or start + length > len(data):
            raise TruncatedError(at)
        at = start + length
        yield start, at


def fields(data: Counted, span: Span) -> Iterator[tuple[int, Value]]:
    """Each field of a message, in order, as number and value."""
    at, end = span
    while at < end:
        began = at
        data.left -= 1
        if data.left < 0:
            raise TruncatedError(at)
        tag, at = varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = varint(data, at, end)
            yield number, value
            continue
        length = _WIDTHS.get(kind, -1)
        if kind == 2:
            length, at = varint(data, at, end)
        if length < 0 or number == 0 or at + length > end:
            raise TruncatedError(began)
        yield number, (at, at + length) if kind == 2 else int.from_bytes(data[at : at + length], "little")
        at += length


def repeated(data: bytes, value: Value) -> Iterator[int]:
    """The numbers of a repeated varint field: one, or all of a packed one."""
    if isinstance(value, int):
        yield value
        return
    at, end = value
    while at < end:
        number, at = varint(data, at, end)
        yield number


def text(data: bytes, value: Value) -> str:
    """A string; a wrong type gives an empty one."""
    return "" if isinstance(value, int) else data[value[0] : value[1]].decode("utf-8", "replace")


def signed(value: int, bits: int) -> int:
    """A number in two's complement."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def zigzag(value: int) -> int:
    """A number of type sint32 or sint64."""
    return value >> 1 ^ -(value & 1)


def real(value: int, width: int) -> float:
    """A float or a double. width: its bytes."""
    found: float = struct.unpack("<d" if width == 8 else "<f", value.to_bytes(width, "little"))[0]
    return found
