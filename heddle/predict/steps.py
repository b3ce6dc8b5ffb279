"""SipHash and jhash in plain integers, with every step recorded, so that users can check them with a calculator.

In:  words and a key or seed. Out: rows of (operation, state after it), and the value.
The same arithmetic for arrays is in hashes.py; explain.py compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

Row = tuple[str, tuple[int, ...]]

_M32: Final = 0xFFFFFFFF
_M64: Final = (1 << 64) - 1
_GOLDEN: Final = 0xDEADBEEF
_MIX: Final = (("a", "c", 4, "b"), ("b", "a", 6, "c"), ("c", "b", 8, "a"),
               ("a", "c", 16, "b"), ("b", "a", 19, "c"), ("c", "b", 4, "a"))  # fmt: skip
_FINAL: Final = (("c", "b", 14), ("a", "c", 11), ("b", "a", 25), ("c", "b", 16),
                 ("a", "c", 4), ("b", "a", 14), ("c", "b", 24))  # fmt: skip


def _rol32(x: int, n: int) -> int:
    return (x << n | x >> (32 - n)) & _M32


def _rol64(x: int, n: int) -> int:
    return (x << n | x >> (64 - n)) & _M64


def jhash_steps(words: Sequence[int], initval: int) -> tuple[list[Row], int]:
    """jhash2 (include/linux/jhash.h): the state (a, b, c) after each step, and the hash."""
    start = (_GOLDEN + 4 * len(words) + initval) & _M32
    s = {"a": start, "b": start, "c": start}
    rows: list[Row] = [(f"a = b = c = deadbeef + {4 * len(words):x} + {initval:x}", tuple(s.values()))]
    left = list(words)
    while len(left) > 3:
        for name, word in zip("abc", left, strict=False):
            s[name] = (s[name] + word) & _M32
        rows.append((f"+ {' '.join(f'{word:08x}' for word in left[:3])}", tuple(s.values())))
        for x, y, n, z in _MIX:  # __jhash_mix: x -= y, x ^= rol(y, n), y += z
            s[x] = (s[x] - s[y]) & _M32 ^ _rol32(s[y], n)
            s[y] = (s[y] + s[z]) & _M32
            rows.append((f"{x} = ({x} - {y}) ^ rol({y}, {n}), then {y} = {y} + {z}", tuple(s.values())))
        left = left[3:]
    if not left:
        return rows, s["c"]
    for name, word in zip("abc", left, strict=False):
        s[name] = (s[name] + word) & _M32
    rows.append((f"+ {' '.join(f'{word:08x}' for word in left)}", tuple(s.values())))
    for x, y, n in _FINAL:  # __jhash_final
        s[x] = ((s[x] ^ s[y]) - _rol32(s[y], n)) & _M32
        rows.append((f"{x} = ({x} ^ {y}) - rol({y}, {n})", tuple(s.values())))
    return rows, s["c"]


def siphash_steps(words: Sequence[int], key: int) -> tuple[list[Row], int]:
    """SipHash-2-4 of 64-bit words, with equal halves of the key: v0 to v3 after each word, and the value."""
    v = [key ^ c for c in (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)]
    rows: list[Row] = [("key ^ somepseudorandomlygeneratedbytes", tuple(v))]
    names = [f"word {at}" for at in range(len(words))] + ["length"]
    for name, word in zip(names, (*words, len(words) * 8 << 56), strict=True):
        v[3] ^= word
        _rounds(v, 2)
        v[0] ^= word
        rows.append((f"v3 ^= {word:016x}, 2 rounds, v0 ^= it ({name})", tuple(v)))
    v[2] ^= 0xFF
    _rounds(v, 4)
    rows.append(("v2 ^= ff, 4 rounds", tuple(v)))
    return rows, v[0] ^ v[1] ^ v[2] ^ v[3]


def _rounds(v: list[int], count: int) -> None:
    for _ in range(count):
        v[0] = (v[0] + v[1]) & _M64
        v[1] = _rol64(v[1], 13) ^ v[0]
        v[0] = _rol64(v[0], 32)
        v[2] = (v[2] + v[3]) & _M64
        v[3] = _rol64(v[3], 16) ^ v[2]
        v[0] = (v[0] + v[3]) & _M64
        v[3] = _rol64(v[3], 21) ^ v[0]
        v[2] = (v[2] + v[1]) & _M64
        v[1] = _rol64(v[1], 17) ^ v[2]
        v[2] = _rol64(v[2], 32)


def bounds(weights: Sequence[int]) -> list[int]:
    """The last 31-bit value of each next hop: round(running weight * 2^31 / total) - 1."""
    total, running, found = sum(weights), 0, []
    for weight in weights:
        running += weight
        found.append((2 * (running << 31) + total) // (2 * total) - 1)
    return found
