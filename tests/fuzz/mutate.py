"""Damage to files: of their bytes, of their text, and of the values in a JSON document."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

# Numbers at the ends of what fields of some bytes hold.
_EDGES: Final = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_NUMBERS: Final = (
    0, 1, -1, 2, 7, 255, 65536, 1 << 31, 1 << 32, (1 << 62) - 1, 1 << 63, 1 << 64, -(1 << 63), 10**30, 10**308, 10**400,
    0.0, 0.5, -0.5, 1e-300, 1e18, 1e300, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
_TEXTS: Final = (
    "", " ", "x", "host1", "rtsw1:eth1", "rtsw1:eth99", "nosuch:eth1", ":", "::", "../../etc/passwd", "10.0.0.1",
    "10.0.0.0/24", "fd00::1", "300.1.1.1", "0", "-1", "nan", "1e999", "true", "²", "\0", "\x1b[31m", "\ud800",
    "</script><b>", "{{7*7}}", "x" * 5000, "9" * 5000, "é" * 300, "rtsw1:eth1 class 3", "5+2",
)  # fmt: skip


def damaged(dice: random.Random, data: bytes) -> bytes:
    """Bytes with one to four kinds of damage."""
    found = bytearray(data)
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        dice.choice(_OF_BYTES)(dice, found)
    return bytes(found)


def _flip(dice: random.Random, data: bytearray) -> None:
    for _ in range(dice.choice((1, 1, 2, 8))):
        if data:
            data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def _edge(dice: random.Random, data: bytearray) -> None:
    size = dice.choice((1, 2, 4))
    if len(data) >= size:
        at = dice.randrange(len(data) - size + 1)
        value = dice.choice(_EDGES) & (1 << 8 * size) - 1
        data[at : at + size] = value.to_bytes(size, dice.choice(("little", "big")))


def _cut(dice: random.Random, data: bytearray) -> None:
    del data[dice.randrange(len(data) + 1) :]


def _remove(dice: random.Random, data: bytearray) -> None:
    at = dice.randrange(len(data) + 1)
    del data[at : at + dice.choice((1, 2, 4, 16, 100))]


def _insert(dice: random.Random, data: bytearray) -> None:
    at = dice.randrange(len(data) + 1)
    data[at:at] = dice.choice((dice.randbytes(dice.choice((1, 4, 20))), bytes(dice.choice((1, 4, 64)))))


def _repeat(dice: random.Random, data: bytearray) -> None:
    at, size = dice.randrange(len(data) + 1), dice.choice((4, 16, 64, 300))
    to = dice.randrange(len(data) + 1)
    data[to:to] = data[at : at + size]


_OF_BYTES: Final[Sequence[Callable[[random.Random, bytearray], None]]] = (
    _flip, _flip, _edge, _edge, _edge, _cut, _remove, _insert, _repeat,
)  # fmt: skip


def odd_text(dice: random.Random, text: str, words: Sequence[str] = _TEXTS) -> str:
    """A text of lines with damage: lines moved, repeated or lost, values replaced, characters changed."""
    lines = text.split("\n")
    for _ in range(dice.choice((1, 1, 2, 3))):
        at = dice.randrange(len(lines))
        line, choice = lines[at], dice.randrange(8)
        if choice == 0:
            lines.insert(dice.randrange(len(lines) + 1), line)
        elif choice == 1 and len(lines) > 1:
            del lines[at]
        elif choice == 2:
            lines[at] = " " * dice.choice((1, 2, 4)) + line
        elif choice == 3 and ":" in line:
            lines[at] = f"{line.partition(':')[0]}: {_word(dice, words)}"
        elif choice == 4 and line:
            place = dice.randrange(len(line))
            lines[at] = line[:place] + dice.choice("{}[]:,&*!|>%@`'\"#\t-?~\\") + line[place:]
        elif choice == 5:
            lines[at] = line.replace(dice.choice(line.split() or [" "]), _word(dice, words), 1)
        elif choice == 6 and line:
            place = dice.randrange(len(line))
            lines[at] = line[:place] + line[place + 1 :]
        else:
            lines[at] = line + _word(dice, words)
    return "\n".join(lines)


def _word(dice: random.Random, words: Sequence[str]) -> str:
    return dice.choice((dice.choice(words), str(dice.choice(_NUMBERS)), dice.choice(_TEXTS)))


def odd_json(dice: random.Random, document: Any) -> bytes:
    """A JSON document with damage to its values: other types, edges of numbers, lost keys, values in other places."""
    found = json.loads(json.dumps(document))
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        found = _odd_value(dice, found)
    text = json.dumps(found).encode(errors="surrogatepass")
    return damaged(dice, text) if dice.random() < 0.05 else text


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) below a value."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def _odd_value(dice: random.Random, document: Any) -> Any:
    places = list(_places(document))
    if not places:
        return _other(dice, document)
    parent, key = dice.choice(places)
    choice = dice.randrange(10)
    if choice == 0:
        del parent[key]
    elif choice == 1 and isinstance(parent, dict):
        parent[dice.choice(_TEXTS)] = parent.pop(key)
    elif choice == 2:
        there, other = dice.choice(places)
        parent[key] = json.loads(json.dumps(there[other] if _still(there, other) else None))
    elif choice == 3 and isinstance(parent, list):
        parent.insert(dice.randrange(len(parent) + 1), json.loads(json.dumps(parent[key])))
    elif choice == 4 and isinstance(parent[key], list):
        dice.shuffle(parent[key])
    else:
        parent[key] = _other(dice, parent[key])
    return document


def _still(container: Any, key: Any) -> bool:
    return key in container if isinstance(container, dict) else key < len(container)


def _other(dice: random.Random, value: Any) -> Any:
    """A value in place of another, more often of the same type."""
    if dice.random() < 0.6:
        if isinstance(value, bool):
            return not value
        if isinstance(value, int | float):
            half = value + 0.5 if abs(value) < 1e300 else 0.5
            return dice.choice((dice.choice(_NUMBERS), value + 1, -value, value * 1000, half))
        if isinstance(value, str):
            return dice.choice((dice.choice(_TEXTS), value + "x", value[:-1], value.upper(), value * 3))
    nested: Any = value
    if dice.random() < 0.05:
        for _ in range(dice.choice((3, 70, 300))):
            nested = [nested] if dice.random() < 0.5 else {"x": nested}
        return nested
    return dice.choice((None, True, [], {}, [value], {"x": value}, dice.choice(_NUMBERS), dice.choice(_TEXTS)))
