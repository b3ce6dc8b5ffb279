"""Compare a committed object with what its sources build. One rule for all objects.

Another release of clang may order instructions differently, so only the release that built an object can prove it. With
another one, or none, the test is skipped and says which; with HEDDLE_TEST_BUILD=1 in the environment it fails.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest

from tests.objects.shared import SharedObject, clang_version


def require(*programs: str) -> None:
    """Skip or fail unless these programs are installed."""
    absent = [name for name in programs if shutil.which(name) is None]
    if absent:
        not_compared(f"no {' and no '.join(absent)} here; ./inv test --build installs it")


def compare(committed: Path, build: Callable[[Path], bytes], made_by: Path, out: Path) -> None:
    """Build to `out`, and compare the bytes. made_by: the file with the compiler that made the committed object."""
    require("clang", *(["ld.lld"] if committed.suffix == ".so" else []))
    built, here, there = build(out), f"clang {clang_version()}", made_by.read_text().strip()
    if here != there:
        not_compared(f"{here} here, built by {there}")
    assert built == committed.read_bytes(), f"{committed.name} is not what its sources build: build it again"


def compare_shared(each: SharedObject, machine: str, out: Path) -> None:
    """The same for a shared object."""
    compare(each.path(machine), partial(each.build, machine), each.made_by, out)


def not_compared(why: str) -> NoReturn:
    """Skip; fail where objects must be compared."""
    if os.environ.get("HEDDLE_TEST_BUILD") == "1":
        pytest.fail(f"not compared: {why}")
    pytest.skip(f"not compared: {why}")
