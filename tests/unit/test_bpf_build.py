"""The committed BPF objects are what their sources say (needs clang), and numpy reads their structs as BTF has them."""

from __future__ import annotations

import struct
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle.base.process import run
from heddle.switch.queues import cells
from tests.objects import bpf as build
from tests.unit import committed


@pytest.mark.parametrize("name", build.PROGRAMS)
def test_objects_are_small_and_carry_no_path_of_the_machine_that_built_them(name: str) -> None:
    data = (build.HERE / f"{name}.o").read_bytes()
    assert len(data) < 56 * 1024
    assert b"/topologies" not in data and b"/home" not in data and b"/tmp" not in data


@pytest.mark.parametrize("name", build.PROGRAMS)
def test_the_committed_object_is_what_its_source_builds(name: str, tmp_path: Path) -> None:
    """The object of another clang must have the same programs and maps; tests/netns/test_bpf_programs.py runs both."""
    committed.require("clang")
    if build.objcopy() is None:
        committed.not_compared("no llvm-objcopy here; ./inv test --build installs it")
    out, kept = tmp_path / f"{name}.o", build.HERE / f"{name}.o"
    build.build(name, out)
    assert symbols(out) == symbols(kept)
    committed.compare(kept, partial(build.build, name), build.VERSION_FILE, out)


def symbols(path: Path) -> set[tuple[str, str]]:
    """(type, name) of every global symbol. readelf comes with binutils, on which clang depends."""
    found = set()
    for line in run(["readelf", "--symbols", "--wide", str(path)]).out.splitlines():
        words = line.split()
        if len(words) == 8 and words[4] == "GLOBAL":
            found.add((words[3], words[7]))
    assert found
    return found


_EXTRA = {1: 4, 2: 0, 3: 12, 8: 0, 9: 0, 10: 0, 11: 0, 12: 0, 14: 4, 17: 4}  # kind -> bytes behind its btf_type
STRUCTS = {
    "cells": "cell", "ingress": "ingress", "gates": "gate", "agent": "agent", "links": "link", "switches": "node",
    "policies": "policy", "dscp": "classes", "faults": "fault", "cuts": "cut",
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
