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
from heddle.host.engine import binary
from heddle.host.engine.docker import docker
from heddle.lab import health
from heddle.lab import lifecycle as life
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.lab.status import status
from heddle.runs.run import run
from heddle.runtimes.clab_containers import CLAB_DIR
from heddle.traffic.options import run_options
from tests.conftest import Up

pytestmark = pytest.mark.parametrize("runtime", ["containerlab"], indirect=True)
Leftovers = Callable[[str], list[str]]


@pytest.fixture
def lab(up: Up, lab_name: Callable[[], str]) -> Iterator[Lab]:
    name = lab_name()
    try:
        yield up(name).lab
    finally:
        life.down(name)


def containerlab(*argv: str) -> str:
    """As typed by a user: without any of Heddle's environment."""
    program = str(binary.require())
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "CLAB_VERSION_CHECK": "disable", "HOME": "/root"}
    return subprocess.run([program, *argv], env=env, capture_output=True, text=True, check=True, timeout=120).stdout


def test_inspect_exec_and_save_know_the_lab(tiny: Lab) -> None:
    lab = tiny
    found = json.loads(containerlab("inspect", "-t", str(lab.topology), "--format", "json"))
    assert {row["name"] for row in found[lab.name]} == {f"clab-{lab.name}-{node.name}" for node in lab.fabric.nodes}
    assert {row["state"] for row in found[lab.name]} == {"running"}
    cmd = ["--label", "clab-node-name=rtsw1", "--cmd", "ip -br link show eth1", "--format", "json"]
    assert "eth1" in containerlab("exec", "-t", str(lab.topology), *cmd)
    containerlab("save", "-t", str(lab.topology))
    assert health.faults(lab) == []


def test_nodes_are_not_privileged_and_have_no_way_out(tiny: Lab) -> None:
    lab = tiny
    names = [f"clab-{lab.name}-{node.name}" for node in lab.fabric.nodes]
    for container in json.loads(docker(["inspect", *names]).out):
        assert container["HostConfig"]["Privileged"] is False
        wanted = {"NET_ADMIN", "SYS_ADMIN", "NET_RAW"}
        assert {name.removeprefix("CAP_") for name in container["HostConfig"]["CapAdd"]} == wanted
    for node in ("rtsw1", "host1"):
        assert "default" not in lab.output(node, ["ip", "route"])
        assert "default" not in lab.output(node, ["ip", "-6", "route"])


def test_a_lab_destroyed_by_hand_is_reported_and_goes_down_clean(lab: Lab, leftovers: Leftovers) -> None:
    containerlab("destroy", "-t", str(lab.topology), "--cleanup")
    (row,) = status(lab.name)
    assert row.state == "broken"
    assert "all of its nodes are missing or stopped" in row.faults[0]
    with pytest.raises(InputError, match=f"down {lab.name} removes the rest of it"):
        open_lab(lab.name)
    assert life.down(lab.name)
    assert leftovers(lab.name) == []


@pytest.mark.deep
def test_up_after_a_destroy_by_hand_recreates_it(lab: Lab, up: Up) -> None:
    containerlab("destroy", "-t", str(lab.topology))
    assert up(lab.name).created
    assert health.faults(lab) == []


def test_a_node_that_was_stopped_is_named_and_so_is_what_it_lost_when_it_comes_back(lab: Lab, up: Up) -> None:
    containerlab("stop", "-t", str(lab.topology), "--node", "rtsw1")
    (row,) = status(lab.name)
    assert (row.state, row.converged, row.switches) == ("broken", False, 4)
    assert row.faults == (f"rtsw1  its container is not running: {state_of(lab, 'rtsw1')}",)
    nodes, *others = validate(lab)
    assert (nodes.ok, nodes.detail) == (False, row.faults[0])
    assert all(check.skipped for check in others)
    with pytest.raises(MachineError, match="rtsw1  its container is not running"):
        lab.output("rtsw1", ["true"])
    with pytest.raises(MachineError, match="rtsw1  its container is not running"):
        run(lab, run_options(size="8"), Silent())
    containerlab("start", "-t", str(lab.topology), "--node", "rtsw1")
    (row,) = status(lab.name)
    assert not row.converged
    assert "rtsw1:eth1  the root qdisc is missing" in row.faults
    with pytest.raises(CheckError, match=r"the root qdisc is missing\n.*\./inv up --repair"):
        up(lab.name)


@pytest.mark.deep
def test_a_lab_with_a_stopped_node_goes_down_clean(lab: Lab, leftovers: Leftovers) -> None:
    containerlab("stop", "-t", str(lab.topology), "--node", "host1")
    containerlab("stop", "-t", str(lab.topology), "--node", "ctsw2")
    docker(["rm", "-f", f"clab-{lab.name}-ctsw2"])
    assert any("park" in text for text in leftovers(lab.name)), "containerlab parks a stopped node's ports"
    assert life.down(lab.name)
    assert leftovers(lab.name) == []


def test_a_container_that_died_or_was_removed_is_named(lab: Lab, leftovers: Leftovers) -> None:
    docker(["kill", f"clab-{lab.name}-ctsw1"])
    docker(["rm", "-f", f"clab-{lab.name}-host2"])
    (row,) = status(lab.name)
    assert row.faults[0].startswith("ctsw1  its container is not running: Exited (137)")
    assert row.faults[1] == "host2  its container is missing: it was removed"
    assert life.down(lab.name)
    assert leftovers(lab.name) == []


@pytest.mark.deep
def test_a_name_of_another_process_namespace_is_reported_and_no_process_there_is_ended(
    lab: Lab, leftovers: Leftovers
) -> None:
    """A container that dies leaves its link to /proc/PID, and that number goes to the next process that comes."""
    bystander = subprocess.Popen(["unshare", "--net", "sleep", "300"])
    try:
        docker(["kill", f"clab-{lab.name}-ctsw1"])
        for node in ("ctsw1", "host1"):  # host1 still runs: as after `docker restart`
            name = lab.handle(node).netns
            name.unlink()
            name.symlink_to(f"/proc/{bystander.pid}/ns/net")
        (row,) = status(lab.name)
        assert row.faults[0].startswith("ctsw1  its container is not running")
        assert row.faults[1].startswith("host1  its container is running, but its namespace is not at /run/netns/")
        assert life.down(lab.name)
        assert leftovers(lab.name) == []
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.deep
def test_links_that_a_killed_deployment_had_not_moved_go_with_the_lab_and_no_other_links(lab: Lab) -> None:
    """containerlab names them so, and leaves them where it stood when it is ended."""
    pairs = ("clab-0a1b2c3d", "clab-3d2c1b0a"), ("clab-t1", "clab-t2")
    for one, other in pairs:
        subprocess.run(["ip", "link", "add", one, "type", "veth", "peer", "name", other], check=True)
    try:
        assert life.down(lab.name)
        here = {path.name for path in Path("/sys/class/net").iterdir()}
        assert not here & set(pairs[0])
        assert here >= set(pairs[1])
    finally:
        for one, _ in pairs:
            subprocess.run(["ip", "link", "del", one], check=False, capture_output=True)


def test_a_foreign_root_qdisc_is_named_and_no_run_is_measured_over_it(lab: Lab) -> None:
    netns = lab.handle("rtsw1").netns
    replace = ["tc", "qdisc", "replace", "dev", "eth2", "root", "tbf", "rate", "1mbit", "burst", "10k", "limit", "90k"]
    subprocess.run(["nsenter", f"--net={netns}", *replace], check=True)
    said = "rtsw1:eth2  the root qdisc is not Heddle's, but tbf"
    (row,) = status(lab.name)
    assert (row.converged, row.faults) == (False, (said,))
    with pytest.raises(CheckError, match="but tbf"):
        run(lab, run_options(size="8"), Silent())


def test_files_of_the_lab_are_where_containerlab_looks_for_them(tiny: Lab) -> None:
    """`containerlab inspect --all` tells the lab's directory; what is there goes with the lab."""
    lab = tiny
    (row, *_) = json.loads(containerlab("inspect", "-t", str(lab.topology), "--format", "json"))[lab.name]
    assert Path(row["absLabPath"]) == lab.topology
    assert (CLAB_DIR / lab.name / f"clab-{lab.name}" / "topology-data.json").exists()


def state_of(lab: Lab, node: str) -> str:
    line = docker(["ps", "-a", "--filter", f"name=^clab-{lab.name}-{node}$", "--format", "{{.Status}}"]).out
    return line.strip()
