"""The committed BPF objects are what their sources say. Needs clang: users do not, CI does."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from heddle.base.process import run
from heddle.switch.bpf import build
from tests.unit import committed


@pytest.mark.parametrize("name", build.PROGRAMS)
def test_objects_are_small_and_carry_no_path_of_the_machine_that_built_them(name: str) -> None:
    data = (build.HERE / f"{name}.o").read_bytes()
    assert len(data) < 48 * 1024
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
