"""Attributes of netlink messages: a message is read by the layout of the one before only where it has the same."""

from __future__ import annotations

import sys
from itertools import permutations

import pytest

from heddle.kernel import netlink as nl

HEAD = b"head"
# All but the last two have one size and one first attribute; the last of a message may have no padding.
ROWS: list[list[tuple[int, bytes]]] = [
    [(1, b"aaaa"), (2, b"b" * 8)],
    [(1, b"aaaa"), (3, b"b" * 8)],
    [(1, b"aaaa"), (2, b"b" * 7)],
    [(1, b"aaaa"), (2, b""), (nl.NESTED | 4, b"")],
    [(1, b"aaaa"), (1, b""), (5, b"")],
    [(1, b"aaaa")],
    [],
]


def message(row: list[tuple[int, bytes]], tail: int = 0) -> bytes:
    body = HEAD + b"".join(nl.attribute(kind, payload) for kind, payload in row)
    return body[: len(body) - tail]


def test_messages_of_one_size_are_read_by_their_own_attributes() -> None:
    for first, second in permutations(ROWS, 2):
        for row in (first, second, first):
            wanted = {kind & 0x3FFF: payload for kind, payload in row}
            assert nl.attributes(message(row), len(HEAD)) == wanted
            assert dict(nl.each_attribute(message(row), len(HEAD))) == wanted
    assert nl.attributes(message(ROWS[2], tail=1), len(HEAD)) == {1: b"aaaa", 2: b"b" * 7}


@pytest.mark.parametrize("length", [3, 200])
def test_a_wrong_length_is_refused_also_after_a_right_message_of_that_size(length: int) -> None:
    right = message(ROWS[0])
    assert nl.attributes(right, len(HEAD))[2] == b"b" * 8
    with pytest.raises(ValueError, match=f"attribute of {length} bytes where 12 are left"):
        nl.attributes(right[:12] + length.to_bytes(2, sys.byteorder) + right[14:], len(HEAD))
