"""The date of QEMU in a replay: it stands still, and other clocks go on."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from heddle.kernel.native.objects import clang_version
from heddle.places.vm import stilldate
from heddle.places.vm.stilldate import makestill

here = pytest.mark.skipif(platform.machine() != makestill.MACHINE, reason=f"the VM needs {makestill.MACHINE}")
_CLOCKS = """
import ctypes, json, sys, time
libc = ctypes.CDLL(None)
class Now(ctypes.Structure):
    _fields_ = (("sec", ctypes.c_int64), ("part", ctypes.c_int64))
def read():
    day, fine, coarse, running = Now(), Now(), Now(), Now()
    libc.gettimeofday(ctypes.byref(day), None)
    for clock, into in ((0, fine), (5, coarse), (1, running)):
        assert libc.clock_gettime(clock, ctypes.byref(into)) == 0
    return [[each.sec, each.part] for each in (day, fine, coarse, running)]
first = read()
time.sleep(0.05)
json.dump([first, read(), libc.gettimeofday(None, None), libc.clock_gettime(999, ctypes.byref(Now()))], sys.stdout)
"""


@here
def test_the_date_stands_still_and_time_passes(tmp_path: Path) -> None:
    directory = tmp_path / "a path: with a space"
    directory.mkdir()
    argv = stilldate.command([sys.executable, "-c", _CLOCKS], directory)
    done = subprocess.run(argv, cwd=directory, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    first, second, no_pointer, no_clock = json.loads(done.stdout)
    date = [1767225600, 0]  # 2026-01-01T00:00:00Z
    assert first[:3] == second[:3] == [date, date, date]
    assert second[3][0] * 10**9 + second[3][1] - first[3][0] * 10**9 - first[3][1] >= 50_000_000
    assert (no_pointer, no_clock) == (0, -1)


@here
def test_whether_a_process_has_the_object_is_read_from_the_process(tmp_path: Path) -> None:
    argv = stilldate.command(["sleep", "60"], tmp_path)
    with subprocess.Popen(argv, cwd=tmp_path) as process:
        try:
            until = time.monotonic() + 10
            while not stilldate.stands_still(process.pid) and time.monotonic() < until:
                time.sleep(0.01)
            assert stilldate.stands_still(process.pid) is True
        finally:
            process.kill()
    assert stilldate.stands_still(process.pid) is None, "it has ended"
    assert stilldate.stands_still(os.getpid()) is False


def test_the_committed_object_is_what_its_source_gives(tmp_path: Path) -> None:
    """Any clang must compile it; the one that made the committed object gives the same bytes."""
    if shutil.which("clang") is None or shutil.which("ld.lld") is None:
        pytest.skip("no clang or no lld; ./inv test --build installs both")
    built = makestill.build(tmp_path / "built.so")
    if makestill.COMPILER.read_text() == f"clang {clang_version()}\n":
        assert built == makestill.OBJECT.read_bytes()
