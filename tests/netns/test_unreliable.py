"""A run on a busy machine is marked unreliable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from heddle.base.events import Silent
from heddle.lab.lab import Lab
from heddle.runs.parts import MARK
from heddle.runs.results import RunResult
from heddle.runs.run import run
from heddle.traffic.options import RunOptions
from tests.conftest import FabricLab
from tests.machine import patience

BURN_S = patience(30)  # at most: a burner ends by itself
_BURN = f"import sys, time, os; os.sched_setaffinity(0, {{int(sys.argv[1])}}); end = time.monotonic() + {BURN_S}\n"
_BURN += "print('on', flush=True)\nwhile time.monotonic() < end: pass"


@pytest.fixture(scope="module")
def slow_lab(fabric_lab: FabricLab) -> Lab:
    """Four hosts whose links carry 10 Mb/s: 300 packets a second each."""
    return fabric_lab(racks=2, ctsw=2, hosts_per_rack=2, link={"host": "10mbit", "fabric": "10mbit"})


@contextmanager
def burning() -> Iterator[None]:
    """Each processor has a process of its own that never rests."""
    burners = [
        subprocess.Popen([sys.executable, "-c", _BURN, str(cpu)], stdout=subprocess.PIPE)
        for cpu in sorted(os.sched_getaffinity(0))
    ]
    try:
        for burner in burners:
            assert burner.stdout is not None and burner.stdout.readline() == b"on\n"
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.communicate()


def short_run(lab: Lab) -> RunResult:
    """Half a second of an all-reduce, after an iteration of 8 bytes."""
    return run(lab, RunOptions(sizes=(8, 1 << 18), warmup=0, iters=1), Silent())


def test_a_run_beside_busy_processes_is_unreliable(slow_lab: Lab) -> None:
    with burning():
        result = short_run(slow_lab)
    assert result.wrong == 0
    processors = [cause for cause in result.machine.unreliable if cause.cause == "processor"]
    assert processors
    assert 1 << 18 in {cause.size for cause in processors}
    assert {cause.number for cause in processors} <= os.sched_getaffinity(0)
    table = result.table().splitlines()
    marked = [at for at, line in enumerate(table) if line.startswith(MARK)]
    rows = [at for at, line in enumerate(table) if line[:1] != "#"]
    assert marked[0] == rows[-1] + 1
    assert "do not trust bandwidth or depths" in table[marked[0]]
    # A cause that is sure comes first: on a slow machine a worker waited for a processor, too.
    first = next((cause for cause in result.machine.unreliable if cause.sure), processors[0])
    assert table[marked[1]].endswith(first.text)
    assert any(f"processor {processors[0].number}: " in table[at] for at in marked[1:])
    document = json.loads(json.dumps(result.to_json()))
    assert document["machine"]["limited"] is True
    assert "processor" in {each["cause"] for each in document["unreliable"]}
