"""Faults of the machine, and changes by hand: each is reported, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heddle.base import state
from heddle.base.problems import CheckError, MachineError
from heddle.fabric.fabricfile import load_fabric
from heddle.kernel.fib import read_fib
from heddle.lab import health
from heddle.lab import lifecycle as life
from heddle.lab.convergence import gaps
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.lab.snapshot import LabPart
from heddle.lab.status import status
from heddle.runtimes.clab_containers import CLAB_DIR
from heddle.runtimes.netns_space import RUN_DIR
from heddle.switch.hashing import hashing
from tests.conftest import Up
from tests.machine import patience, until
from tests.marks import deep

pytestmark = pytest.mark.needs("mount")

Leftovers = Callable[[str], list[str]]


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """State on a file system of its own, with these mount options."""
    spot = tmp_path / "disk"
    spot.mkdir()

    def mount(options: str) -> Path:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "heddle-test", str(spot)], check=True)
        monkeypatch.setenv("HEDDLE_STATE_DIR", str(spot / "state"))
        return spot

    yield mount
    subprocess.run(["umount", str(spot)], check=False)


@pytest.mark.parametrize("options", ["size=40k", *map(deep, ("size=4k", "size=80k", "nr_inodes=8"))])
def test_a_full_disk_is_reported_and_nothing_is_left(
    options: str, name: str, small_disk: Callable[[str], Path], leftovers: Leftovers
) -> None:
    small_disk(options)
    with pytest.raises(MachineError, match="No space left on device"):
        life.up(load_fabric("tiny", name=name))
    assert leftovers(name) == []


def test_a_disk_that_cannot_be_written_is_reported(name: str, small_disk: Callable[[str], Path]) -> None:
    spot = small_disk("ro")
    with pytest.raises(MachineError, match=r"Read-only file system\n.*HEDDLE_STATE_DIR"):
        life.up(load_fabric("tiny", name=name))
    assert status() == []
    subprocess.run(["umount", str(spot)], check=True)


def test_state_that_another_user_can_change_is_not_trusted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rendered start script runs as root: a /var/tmp/heddle of another user must not be used."""
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path / "mine"))
    (tmp_path / "mine").mkdir()
    os.chown(tmp_path / "mine", 1234, 1234)
    with pytest.raises(MachineError, match="belongs to another user"):
        life.up(load_fabric("tiny", name=name))
    os.chown(tmp_path / "mine", 0, 0)
    (tmp_path / "mine").chmod(0o777)
    with pytest.raises(MachineError, match="is writable for every user"):
        status()
    (tmp_path / "mine").chmod(0o755)
    (tmp_path / "mine/labs").symlink_to("/tmp")
    os.chown(tmp_path / "mine/labs", 1234, 1234, follow_symlinks=False)
    with pytest.raises(MachineError, match="belongs to another user"):
        open_lab(name)
    (tmp_path / "mine/labs").unlink()
    assert list((tmp_path / "mine").iterdir()) == []


@pytest.mark.deep
@pytest.mark.parametrize("umask", [0o077, 0o000])
def test_a_lab_comes_up_under_any_umask(umask: int, name: str, leftovers: Leftovers, up: Up, runtime: str) -> None:
    before = os.umask(umask)
    try:
        up(name, timeout=20)
        assert os.umask(umask) == umask
        own = (CLAB_DIR if runtime == "containerlab" else RUN_DIR) / name
        places = (own, hashing.PINS / name, state.lab_dir(name))
        open_to_all = [p for top in places for p in (top, *top.rglob("*")) if mode(p) & 0o002]
        assert open_to_all == []
        life.down(name)
    finally:
        os.umask(before)
    assert leftovers(name) == []


def mode(path: Path) -> int:
    return 0 if path.is_symlink() else path.stat().st_mode


@pytest.mark.deep
def test_a_dead_bgpd_is_named_and_rollback_takes_down_only_what_its_up_made(name: str, up: Up) -> None:
    lab = up(name).lab
    end(lab, "ctsw1", "bgpd")
    stop = time.monotonic() + patience(60)
    while len(gaps(lab.fabric, lab.snapshot(LabPart.FIBS).fibs)) != 4:  # ctsw1 has lost both racks, each rack one path
        assert time.monotonic() < stop
        time.sleep(0.05)
    with pytest.raises(CheckError) as caught:
        lab.wait(timeout=0.5)
    text = str(caught.value)
    assert "ctsw1  bgpd does not answer" in text
    assert "has no next hop over eth1 to ctsw1 (BGP: " in text
    (row,) = status(name)
    assert (row.converged, row.bgp.established) == (False, 2)
    with pytest.raises(CheckError, match=r"does not answer|convergence failed"):
        up(name, rollback=True, timeout=0.5)
    assert lab.runtime.exists(name)
    assert state.read_record(name) is not None
    end(lab, "rtsw1", "zebra")
    assert lab.exec("rtsw1", ["true"]) == 0, "entering a node needs none of its daemons"


def end(lab: Lab, node: str, daemon: str) -> None:
    lab.output(node, ["sh", "-c", f"kill -9 $(cat /run/frr/{daemon}.pid)"])
    until(lambda: health.faults(lab))


@pytest.mark.deep
def test_what_was_removed_by_hand_is_reported_and_down_is_clean(name: str, leftovers: Leftovers) -> None:
    """Directories and BPF pins; the mount of a namespace; a namespace, whose daemons go with the lab."""
    lab = life.up(load_fabric("tiny", name=name)).lab
    pids = [int(lab.output("rtsw1", ["cat", f"/run/frr/{daemon}.pid"])) for daemon in ("zebra", "bgpd")]
    subprocess.run(["rm", "-rf", str(RUN_DIR / name), str(hashing.PINS / name)], check=True)
    (row,) = status(name)
    assert not row.converged
    assert "rtsw1  bgpd does not answer" in row.faults
    with pytest.raises(MachineError, match="cannot enter rtsw1"):
        lab.output("rtsw1", ["true"])
    subprocess.run(["ip", "netns", "del", lab.handle("rtsw1").netns.name], check=True)
    (row,) = status(name)
    assert row.state == "broken"
    assert row.faults == ("rtsw1  its namespace is missing: it was removed",)
    with pytest.raises(MachineError, match=r"\./inv down"):
        life.up(load_fabric("tiny", name=name))
    subprocess.run(["umount", str(lab.handle("host1").netns)], check=True)
    with pytest.raises(MachineError, match="cannot be entered"):
        read_fib(lab.handle("host1"))
    assert life.down(name)
    assert leftovers(name) == []
    assert [pid for pid in pids if alive(pid)] == []


def alive(pid: int) -> bool:
    try:
        return not Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].startswith(" Z")
    except OSError:
        return False


@pytest.mark.deep
def test_more_links_than_open_files_come_up_and_go_down(name: str, leftovers: Leftovers) -> None:
    """`ip` and `tc` keep files open for every line of a batch; 1,024 of them are the usual limit, 80 the one here.

    The agent of PFC holds three a node, and raises its own limit.
    """
    program = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (80, 320))
from heddle.lab import lifecycle as lab
from heddle.spec.shapes.clos import ClosSpec
lab.up(ClosSpec(name={name!r}, racks=1, ctsw=1, hosts_per_rack=40))
assert lab.down({name!r})
"""
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], check=True, timeout=patience(120))
    assert leftovers(name) == []
