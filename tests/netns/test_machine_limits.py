"""Limits of this machine, for real: raised by `up` of a fabric with many links, restored by the last `down`.

Labs of other users may run beside these. So the tests look at what Heddle's own record says, and at this machine's
sysctls only as far as no other lab keeps them raised.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.base import state
from heddle.cli.progress import PlainObserver
from heddle.fabric.shapes import build
from heddle.host import limits
from heddle.host.limits import HERE
from heddle.lab import lifecycle as life
from heddle.spec.shapes.clos import ClosSpec
from heddle.testing.pool import Pool
from tests.machine import patience

ROOT = Path(__file__).parents[2]
# 288 links of hosts: 1,152 neighbours, and 1,024 is the kernel's default.
SIZES = {"racks": 3, "ctsw": 2, "hosts_per_rack": 12, "nics_per_host": 8}
SETS = [f"--set={key}={value}" for key, value in SIZES.items()]
KEYS = [key for limit in limits.LIMITS for key in limit.factors]


def wide(name: str) -> ClosSpec:
    return ClosSpec.model_validate({"name": name, **SIZES})


@pytest.fixture
def before() -> dict[str, int]:
    """The sysctls as this machine has them without labs."""
    _, raised = HERE.state()
    values = {key: raised.get(key, HERE.value(key)) for key in KEYS}
    return {key: value for key, value in values.items() if value is not None}


def sysctls_too_low(lab: str, needs: dict[str, int]) -> list[limits.Shortage]:
    """Without the mode of HTB, which any lab of another test sets and restores meanwhile (test_bursts.py)."""
    return [each for each in HERE.shortages(lab, needs) if each.limit is not limits.BURSTS]


@pytest.fixture
def too_low(heddle_pool: Pool) -> None:
    """The limits are too low for the fabric; not so where another lab of this machine has raised them."""
    heddle_pool.drop_idle()
    needs = limits.needs_of(build(wide("wide")))
    if not sysctls_too_low("wide", needs):
        labs = ", ".join(HERE.state()[0]) or "none"
        pytest.skip(f"this machine's limits are high enough for {needs} (labs: {labs})")


def restored(before: dict[str, int]) -> bool:
    """Whether the sysctls are as before, or the record still knows how to get there for other labs."""
    labs, raised = HERE.state()
    return all(raised.get(key, HERE.value(key)) == value for key, value in before.items()) and (
        labs != [] or not raised
    )


@pytest.mark.usefixtures("too_low")
def test_up_raises_what_a_fabric_of_many_links_needs_and_down_restores_it(
    name: str, before: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    spec = wide(name)
    needs = limits.needs_of(build(spec))
    short = sysctls_too_low(name, needs)  # all limits, where no other lab of this machine has raised some of them
    script = life.script_of(spec)
    assert short and all(f"sysctl -w {next(iter(each.limit.factors))}=" in script for each in short)
    life.up(spec, observer=PlainObserver(sys.stderr))
    assert all((HERE.value(key) or 0) >= need for key, need in needs.items())
    assert name in HERE.state()[0]
    said, script = capsys.readouterr().err, (state.lab_dir(name) / "up.sh").read_text()
    if any(each.limit is limits.ARP for each in short):
        assert "raised net.ipv4.neigh.default.gc_thresh1/2/3 from" in said
    assert "raised " in said and "sysctl -w " in script
    life.down(name)
    assert name not in HERE.state()[0]
    assert restored(before)


@pytest.mark.deep
def test_an_up_that_is_killed_is_undone_by_down(
    name: str, before: dict[str, int], leftovers: Callable[[str], list[str]]
) -> None:
    inv = subprocess.Popen(
        [str(ROOT / "inv"), "up", "tiny", "--name", name, *SETS], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + patience(60)
    while name not in HERE.state()[0]:
        assert inv.poll() is None
        assert time.monotonic() < end
        time.sleep(0.005)
    inv.send_signal(signal.SIGKILL)
    inv.wait()
    life.down(name)
    assert name not in HERE.state()[0]
    assert restored(before)
    assert leftovers(name) == []


@pytest.mark.deep
@pytest.mark.usefixtures("too_low")
def test_where_proc_sys_is_read_only_the_command_is_named_and_nothing_is_made(
    name: str, leftovers: Callable[[str], list[str]]
) -> None:
    typed = ["./inv", "up", "tiny", "--name", name, *SETS]
    read_only = "mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys"
    argv = ["unshare", "-m", "--propagation", "private", "sh", "-c", f"{read_only} && {shlex.join(typed)}"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "CI": "true"})
    assert done.returncode == 3
    assert "Heddle cannot raise it: the sysctl is read-only here" in done.stderr
    assert "sysctl -w net.ipv4.neigh.default.gc_thresh1=" in done.stderr
    assert name not in HERE.state()[0]
    assert leftovers(name) == []
