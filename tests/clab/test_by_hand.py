"""Changes to a lab by hand with containerlab, docker and tc: they work, or Heddle reports them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.base.problems import CheckError, InputError, MachineError
from heddle.checks.validate import validate
from heddle.endpoints.runoptions import run_options
from heddle.host.engine import binary
from heddle.host.engine.docker import docker
from heddle.lab import health
from heddle.lab import lifecycle as life
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.lab.status import status
from heddle.runs.run import run
from heddle.runtimes.clab_deploy import CLAB_DIR
from tests.conftest import Up
from tests.machine import child

pytestmark = pytest.mark.parametrize("runtime", ["containerlab"], indirect=True)
Leftovers = Callable[[str], list[str]]


@pytest.fixture
def lab(up: Up, name: str) -> Lab:
    return up(name).lab


def containerlab(*argv: str) -> str:
    """As typed by a user: without any of Heddle's environment."""
    program = str(binary.require())
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "CLAB_VERSION_CHECK": "disable", "HOME": "/root"}
    return subprocess.run([program, *argv], env=env, capture_output=True, text=True, check=True, timeout=120).stdout


def test_containerlab_and_docker_know_the_lab(tiny: Lab) -> None:
    lab = tiny
    names = [f"clab-{lab.name}-{node.name}" for node in lab.fabric.nodes]
    rows = json.loads(containerlab("inspect", "-t", str(lab.topology), "--format", "json"))[lab.name]
    assert {row["name"] for row in rows} == set(names)
    assert {row["state"] for row in rows} == {"running"}
    assert Path(rows[0]["absLabPath"]) == lab.topology
    assert (CLAB_DIR / lab.name / f"clab-{lab.name}" / "topology-data.json").exists()
    cmd = ["--label", "clab-node-name=rtsw1", "--cmd", "ip -br link show eth1", "--format", "json"]
    assert "eth1" in containerlab("exec", "-t", str(lab.topology), *cmd)
    containerlab("save", "-t", str(lab.topology))
    assert health.faults(lab) == []
    for container in json.loads(docker(["inspect", *names]).out):
        assert container["HostConfig"]["Privileged"] is False
        wanted = {"NET_ADMIN", "NET_RAW"} | ({"SYS_ADMIN"} if "tsw" in container["Name"].rpartition("-")[2] else set())
        assert {name.removeprefix("CAP_") for name in container["HostConfig"]["CapAdd"]} == wanted
        assert (container["HostConfig"]["PidsLimit"], container["HostConfig"]["Memory"]) == (4096, 10**9)
        modes = {bind["Destination"]: bind["RW"] for bind in container["Mounts"]}
        assert {path for path, writable in modes.items() if writable} <= {"/etc/frr/frr.conf"}
    for node in ("rtsw1", "host1"):
        assert "default" not in lab.output(node, ["ip", "route"])
        assert "default" not in lab.output(node, ["ip", "-6", "route"])


def test_a_lab_destroyed_by_hand_is_reported_and_made_again_and_goes_down_clean(
    lab: Lab, up: Up, leftovers: Leftovers
) -> None:
    containerlab("destroy", "-t", str(lab.topology))
    (row,) = status(lab.name)
    assert row.state == "broken"
    assert "all of its nodes are missing or stopped" in row.faults[0]
    with pytest.raises(InputError, match=f"down {lab.name} removes the rest of it"):
        open_lab(lab.name)
    assert up(lab.name).created
    assert health.faults(lab) == []
    containerlab("destroy", "-t", str(lab.topology), "--cleanup")
    assert life.down(lab.name)
    assert leftovers(lab.name) == []


def test_what_is_changed_by_hand_is_named_and_down_leaves_nothing(
    lab: Lab, up: Up, leftovers: Leftovers, bystander: subprocess.Popen[bytes], unmoved_links: tuple[str, str]
) -> None:
    replace = ["tc", "qdisc", "replace", "dev", "eth2", "root", "tbf", "rate", "1mbit", "burst", "10k", "limit", "90k"]
    subprocess.run(["nsenter", f"--net={lab.handle('rtsw1').netns}", *replace], check=True)
    (row,) = status(lab.name)
    assert (row.converged, row.faults) == (False, ("rtsw1:eth2  the root qdisc is not Heddle's, but tbf",))
    with pytest.raises(CheckError, match="but tbf"):
        run(lab, run_options(size="8"), Silent())

    # A node that is stopped, and what it has lost when it comes back.
    containerlab("stop", "-t", str(lab.topology), "--node", "rtsw1")
    (row,) = status(lab.name)
    assert (row.state, row.converged, row.switches) == ("broken", False, 4)
    (fault,) = row.faults
    stopped = "rtsw1  its container is not running: Exited (143) "  # how long ago depends on when docker is asked
    nodes, *others = validate(lab)
    assert fault.startswith(stopped) and not nodes.ok and nodes.detail.startswith(stopped)
    assert all(check.skipped for check in others)
    for use in (lambda: lab.output("rtsw1", ["true"]), lambda: run(lab, run_options(size="8"), Silent())):
        with pytest.raises(MachineError, match="rtsw1  its container is not running"):
            use()
    containerlab("start", "-t", str(lab.topology), "--node", "rtsw1")
    (row,) = status(lab.name)
    assert not row.converged
    assert "rtsw1:eth1  the root qdisc is missing" in row.faults
    with pytest.raises(CheckError, match=r"the root qdisc is missing\n.*\./inv up --repair"):
        up(lab.name)

    # Containers that died, were removed or stopped; names that lead to the namespace of another process: a container
    # that dies leaves its link to /proc/PID, and that number goes to the next process that comes.
    containerlab("stop", "-t", str(lab.topology), "--node", "host1")
    assert any("park" in text for text in leftovers(lab.name)), "containerlab parks a stopped node's ports"
    docker(["kill", f"clab-{lab.name}-ctsw1"])
    docker(["rm", "-f", f"clab-{lab.name}-host2"])
    for node in ("ctsw1", "host3"):  # host3 still runs: as after `docker restart`
        link = lab.handle(node).netns
        link.unlink()
        link.symlink_to(f"/proc/{bystander.pid}/ns/net")
    faults = " ".join(status(lab.name)[0].faults)
    assert "ctsw1  its container is not running: Exited (137)" in faults
    assert "host2  its container is missing: it was removed" in faults
    assert "host3  its container is running, but its namespace is not at /run/netns/" in faults

    assert life.down(lab.name)
    assert leftovers(lab.name) == []
    assert bystander.poll() is None, "no process of another namespace is ended"
    here = {path.name for path in Path("/sys/class/net").iterdir()}
    temporary, other = unmoved_links
    assert temporary not in here
    assert other in here


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a network namespace of its own."""
    with child(["unshare", "--net", "sleep", "300"]) as process:
        yield process
        process.kill()


@pytest.fixture
def unmoved_links(lab: Lab) -> Iterator[tuple[str, str]]:
    """One end of a link with a temporary name of containerlab, as a killed deployment leaves it; and another link's."""
    pairs = ("clab-0a1b2c3d", "clab-3d2c1b0a"), ("clab-t1", "clab-t2")
    for one, other in pairs:
        subprocess.run(["ip", "link", "add", one, "type", "veth", "peer", "name", other], check=True)
    yield pairs[0][0], pairs[1][0]
    for one, _ in pairs:
        subprocess.run(["ip", "link", "del", one], check=False, capture_output=True)
