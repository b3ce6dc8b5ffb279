"""Damaged and hostile frames into the compiled NIC, built with sanitizers: see nicframes.py."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.cases import ROOT, Fuzz
from tests.machine import patience
from tests.marks import deep
from tests.objects.shared import FASTPATH, HEADERS
from tests.unit.fastpath_bench import needs_object

pytestmark = [pytest.mark.needs("gcc"), needs_object]
_FLAGS = (
    "-std=c11", "-O1", "-g", "-fPIC", "-shared", "-nostdlib", "-ffreestanding", "-ffp-contract=off",
    "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
)  # fmt: skip
_CPU_S = 0.5  # of a case; a start takes more


def built(place: Path) -> Path:
    """The fast path with checks of every access."""
    sources = [str(FASTPATH.directory / name) for name in FASTPATH.sources]
    out = place / "fastpath.so"
    words = ["gcc", *_FLAGS, "-I", str(HEADERS), "-I", str(FASTPATH.directory), *sources, "-lasan", "-lubsan"]
    subprocess.run([*words, "-o", str(out)], check=True, timeout=patience(120))
    return out


@pytest.mark.timeout(0)
@pytest.mark.parametrize("count", [60, deep(6000)])
def test_frames(fuzz: Fuzz, count: int) -> None:
    library = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    object_ = built(fuzz.place)
    limit = int(patience(30 + _CPU_S * count))
    first, count = (0, count) if fuzz.only is None else (fuzz.only, 1)
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.nicframes", str(object_), str(fuzz.seed), str(first), str(count)],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "LD_PRELOAD": library.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)),
    )  # fmt: skip
    *numbers, last = done.stdout.splitlines() or ["none"]
    print(f"fuzz frames: {len(numbers)} cases, seed {fuzz.seed}; {last}")
    if done.returncode:
        again = fuzz.command(int(last)) if last.isdigit() else "the whole test"
        pytest.fail(f"the process ended with {done.returncode} in case {last}; again: {again}\n{done.stderr[-6000:]}")
    turned, complete = (int(word) for word in last.replace(",", "").split() if word.isdigit())
    assert turned > 0, "no frame was refused"
    assert complete > 0 or count == 1, "no message was completed"
