"""The committed BPF objects are what their sources say. Needs clang: users do not, CI does."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from heddle.base.process import run
from heddle.kernel.native.objects import clang_version
from heddle.switch.bpf import build

needs_clang = pytest.mark.skipif(shutil.which("clang") is None, reason="needs clang: ./inv test --build installs it")


@pytest.mark.parametrize("name", build.PROGRAMS)
def test_objects_are_small_and_carry_no_path_of_the_machine_that_built_them(name: str) -> None:
    data = (build.HERE / f"{name}.o").read_bytes()
    assert len(data) < 48 * 1024
    assert b"/topologies" not in data and b"/home" not in data and b"/tmp" not in data


@needs_clang
@pytest.mark.parametrize("name", build.PROGRAMS)
def test_the_committed_object_is_what_its_source_builds(name: str, tmp_path: Path) -> None:
    built = build.build(name, tmp_path / f"{name}.o")
    if build.objcopy() and build.VERSION_FILE.read_text() == f"clang {clang_version()}\n":
        assert built == (build.HERE / f"{name}.o").read_bytes(), "python -m heddle.switch.bpf.build rebuilds it"
    # Another clang may order instructions otherwise. Its object must have the same programs and maps, and behave alike:
    # tests/netns/test_bpf_programs.py runs both.
    assert symbols(tmp_path / f"{name}.o") == symbols(build.HERE / f"{name}.o")


def symbols(path: Path) -> set[tuple[str, str]]:
    """(type, name) of every global symbol. readelf comes with binutils, on which clang depends."""
    found = set()
    for line in run(["readelf", "--symbols", "--wide", str(path)]).out.splitlines():
        words = line.split()
        if len(words) == 8 and words[4] == "GLOBAL":
            found.add((words[3], words[7]))
    assert found
    return found
