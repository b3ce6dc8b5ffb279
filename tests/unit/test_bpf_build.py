"""The committed BPF objects are what their sources say. Needs clang: users do not, CI does."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from topologies.process import run
from topologies.switch.bpf import build

needs_clang = pytest.mark.skipif(
    shutil.which("clang") is None and not os.environ.get("CI"), reason="needs clang (apt-get install clang llvm)"
)


@pytest.mark.parametrize("name", build.PROGRAMS)
def test_objects_are_small_and_carry_no_path_of_the_machine_that_built_them(name: str) -> None:
    data = (build.HERE / f"{name}.o").read_bytes()
    assert len(data) < 32 * 1024
    assert b"/topologies" not in data and b"/home" not in data and b"/tmp" not in data


@needs_clang
@pytest.mark.parametrize("name", build.PROGRAMS)
def test_the_committed_object_is_what_its_source_builds(name: str, tmp_path: Path) -> None:
    built = build.build(name, tmp_path / f"{name}.o")
    if build.VERSION_FILE.read_text() == f"clang {build.clang_version()}\n":
        assert built == (build.HERE / f"{name}.o").read_bytes(), "python topologies/switch/bpf/build.py builds it anew"
    # Another clang may order instructions otherwise; its object must still have the same programs and maps.
    assert symbols(tmp_path / f"{name}.o") == symbols(build.HERE / f"{name}.o")


def symbols(path: Path) -> set[tuple[str, str]]:
    """(section, name) of every global symbol."""
    found = set()
    for line in run([build.tool("llvm-objdump"), "-t", str(path)]).out.splitlines():
        words = line.split()
        if len(words) >= 5 and words[1] == "g":
            found.add((words[-3], words[-1]))
    return found
