"""Both halves of the queues' shared memory: structs of bpf/queue.h as the object's BTF has them, and numpy's dtypes."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle.switch.bpf import build
from heddle.switch.queues import cells

_EXTRA = {1: 4, 2: 0, 3: 12, 8: 0, 9: 0, 10: 0, 11: 0, 12: 0, 14: 4, 17: 4}  # kind -> bytes behind its btf_type
STRUCTS = {
    "cells": "cell", "ingress": "ingress", "gates": "gate", "agent": "agent", "links": "link", "switches": "node",
    "policies": "policy", "dscp": "classes",
}  # fmt: skip


def btf_structs(path: Path) -> dict[str, tuple[int, dict[str, int]]]:
    """Name -> size and members with their offsets, in bytes (Documentation/bpf/btf.rst)."""
    data = section(path, ".BTF")
    header, types, type_size, strings = struct.unpack_from("=4I", data, 4)
    text = data[header + strings :]

    def word(at: int) -> str:
        return text[at : text.index(b"\0", at)].decode()

    found = {}
    at = header + types
    while at < header + types + type_size:
        name, info, size = struct.unpack_from("=3I", data, at)
        kind, count = info >> 24 & 0x1F, info & 0xFFFF
        at += 12
        if kind == 4:
            rows = [struct.unpack_from("=3I", data, at + 12 * i) for i in range(count)]
            found[word(name)] = size, {word(row[0]): row[2] // 8 for row in rows}
        per_row = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12}
        at += count * per_row[kind] if kind in per_row else _EXTRA.get(kind, 0)
    return found


def section(path: Path, wanted: str) -> bytes:
    """One section of a 64-bit ELF file."""
    data = path.read_bytes()
    table, size, count, names = struct.unpack_from("=Q", data, 40)[0], *struct.unpack_from("=3H", data, 58)
    rows = [struct.unpack_from("=2I4Q", data, table + size * i) for i in range(count)]
    start = rows[names][4]
    for name, _, _, _, offset, length in rows:
        if data[start + name : data.index(b"\0", start + name)].decode() == wanted:
            return data[offset : offset + length]
    raise LookupError(wanted)


@pytest.mark.parametrize(("view", "name"), STRUCTS.items())
def test_numpy_reads_what_the_programs_write(view: str, name: str) -> None:
    size, members = btf_structs(build.HERE / "queue.o")[name]
    layout: np.dtype[Any] = cells.LAYOUTS[view]
    offsets = {field: each[1] for field, each in (layout.fields or {}).items()}
    assert (layout.itemsize, offsets) == (size, members)
