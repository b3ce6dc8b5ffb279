"""Faults and limits of the machine, of topologies, and changes by hand: each is reported, and nothing is left behind.

Limits: raised by `up` of a fabric with many links, restored by the last `down`. Labs of other users may run beside
these tests: they look at Heddle's own record, and at sysctls only as far as no other lab keeps them raised.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from heddle.base import state
from heddle.base.events import Silent
from heddle.base.problems import CheckError, MachineError
from heddle.base.process import Journal
from heddle.cli.console import PlainObserver
from heddle.endpoints.runoptions import run_options
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.shapes import build
from heddle.host import limits
from heddle.host.limits import HERE
from heddle.kernel.fib import read_fib
from heddle.lab import health
from heddle.lab import lifecycle as life
from heddle.lab.convergence import ExpectedRoutes, gaps
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.lab.snapshot import LabPart
from heddle.lab.status import status
from heddle.lab.upscript import script_of
from heddle.runs.run import run
from heddle.runtimes.clab_deploy import CLAB_DIR
from heddle.runtimes.netns_space import RUN_DIR
from heddle.runtimes.registry import get_runtime
from heddle.spec.shapes.clos import ClosSpec
from heddle.switch.hashing import hashing
from heddle_plugins.testing.pool import Pool
from tests.conftest import Up
from tests.machine import patience, until
from tests.marks import deep, long
from tests.typed import typed

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


@pytest.mark.deep
def test_a_disk_that_fills_while_a_lab_runs_is_reported(
    name: str, small_disk: Callable[[str], Path], leftovers: Leftovers
) -> None:
    spot = small_disk("size=2m")
    life.up(load_fabric("tiny", name=name))
    with suppress(OSError), (spot / "full").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    for words in ("run --size 64K", "fault down rtsw1:eth1", "queues set ecn.kmin=42KB", "hashing e-ecmp"):
        done = typed(*words.split(), "--lab", name)
        assert done.returncode == 3 and "No space left on device" in done.stderr, done.stderr
    assert typed("status", name).returncode == 0
    assert life.repair_lab(name).converged, "no verb has done half of its work"
    assert life.down(name)
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
@pytest.mark.parametrize("umask", [0o077, long(0o000)])
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
    while (
        len(gaps(lab.fabric, lab.snapshot(LabPart.FIBS).fibs, ExpectedRoutes.of(lab.fabric))) != 4
    ):  # ctsw1 has lost both racks, each rack one path
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
@pytest.mark.long
def test_a_large_lab_comes_up_with_few_open_files_and_proves_every_path(name: str, leftovers: Leftovers) -> None:
    """`ip` and `tc` keep files open for every line of a batch; 1,024 of them are the usual limit.

    The agent of PFC holds three a node, and raises its own limit.
    """

    def limited(line: str) -> None:
        program = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1024))
from heddle.lab import lifecycle as lab
from heddle.spec.shapes.clos import ClosSpec
{line}
"""
        argv = [sys.executable, "-c", program]
        subprocess.run(argv, cwd=Path(__file__).parents[2], check=True, timeout=patience(240))

    limited(f"lab.up(ClosSpec(name={name!r}, racks=64, ctsw=8, hosts_per_rack=1))")
    (found,) = status(name)
    assert found.converged and (found.bgp.established, found.links) == (512, 576), found
    result = run(open_lab(name), run_options(size="64K", iters=1, warmup=0), Silent())
    assert result.wrong == 0 and result.proof is not None
    assert result.proof.agree and result.proof.qps >= 64
    limited(f"assert lab.down({name!r})")
    assert leftovers(name) == []


Create = Callable[[str], None]

PAIR = """
name: x
topology:
  nodes:
    n1: {kind: linux, exec: ["ip addr add 10.1.0.0/31 dev eth1"]}
    n2: {kind: linux, exec: ["ip addr add 10.1.0.1/31 dev eth1", "sh -c 'echo up > /proc/self/comm'"]}
  links:
    - endpoints: ["n1:eth1", "n2:eth1"]
      mtu: 4200
"""


@pytest.fixture
def create(lab_name: Callable[[], str], tmp_path: Path) -> Iterator[Create]:
    """Create a topology's namespaces; they are gone after the test."""
    name = lab_name()
    runtime = get_runtime("netns")

    def make(text: str) -> None:
        path = tmp_path / "x.clab.yml"
        path.write_text(text)
        runtime.create(name, path, Journal(), Silent())
        runtime.start(name, path, Journal(), Silent())

    yield make
    runtime.destroy(name, Silent())
    assert not runtime.exists(name)


def test_a_topology_without_frr_runs(create: Create) -> None:
    create(PAIR)


ADDRESS = "10.1.0.300/31"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            PAIR + '    - endpoints: ["n1:eth1", "n2:eth2"]\n',
            r"n1:eth1 to n2:eth2  ip link add eth1 netns .*File exists",
        ),
        (PAIR.replace("10.1.0.0/31", ADDRESS), rf"n1  ip addr add {ADDRESS} dev eth1 failed: .*{ADDRESS}"),
        (PAIR.replace("n1: {", 'n1: {sysctls: {net.ipv4.nonsense: "1"}, '), r"n1  net\.ipv4\.nonsense=1 cannot be set"),
        (
            PAIR.replace("n1: {", 'n1: {binds: ["file:/opt/nosuch/file"], '),
            "n1  bind /opt/nosuch/file cannot be provided",
        ),
        (PAIR.replace("up > /proc/self/comm", "no luck; exit 4"), r"n2  sh -c .* failed with exit code 4: no luck"),
    ],
    ids=["a link", "an address", "a sysctl", "a bind", "a command"],
)
def test_what_cannot_be_done_is_named(create: Create, tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError, match=problem):
        create(text)


# 288 links of hosts: 1,152 neighbours, and 1,024 is the kernel's default.
SIZES = {"racks": 3, "ctsw": 2, "hosts_per_rack": 12, "nics_per_host": 8}
KEYS = [key for limit in limits.LIMITS for key in limit.factors]


@pytest.fixture
def before() -> dict[str, int]:
    """The sysctls as this machine has them without labs."""
    _, raised = HERE.state()
    values = {key: raised.get(key, HERE.value(key)) for key in KEYS}
    return {key: value for key, value in values.items() if value is not None}


def sysctls_too_low(lab: str, needs: dict[str, int]) -> list[limits.Shortage]:
    """Without the mode of HTB, which any lab of another test sets and restores meanwhile (test_rates.py)."""
    return [each for each in HERE.shortages(lab, needs) if each.limit is not limits.BURSTS]


def restored(before: dict[str, int]) -> bool:
    """Whether the sysctls are as before, or the record still knows how to get there for other labs."""
    labs, raised = HERE.state()
    return all(raised.get(key, HERE.value(key)) == value for key, value in before.items()) and (
        labs != [] or not raised
    )


@pytest.mark.deep
def test_up_raises_what_a_fabric_of_many_links_needs_and_down_restores_it(
    name: str, heddle_pool: Pool, before: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    heddle_pool.drop_idle()
    spec = ClosSpec.model_validate({"name": name, **SIZES})
    needs = limits.needs_of(build(spec))
    short = sysctls_too_low(name, needs)  # all limits, where no other lab of this machine has raised some of them
    if not short:
        labs = ", ".join(HERE.state()[0]) or "none"
        pytest.skip(f"this machine's limits are high enough for {needs} (labs: {labs})")
    script = script_of(spec)
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
