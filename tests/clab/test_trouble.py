"""What stands in a containerlab lab's way: each is named with its remedy, nothing half-made is left, and labs that
have nothing to do with it go on.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError, MachineError
from heddle.endpoints.runoptions import run_options
from heddle.fabric.fabricfile import load_fabric
from heddle.host.engine import binary
from heddle.host.engine.docker import docker
from heddle.kernel.namespace import NETNS_DIR
from heddle.lab import health
from heddle.lab import lifecycle as life
from heddle.lab.imported.imported import import_topology
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.render.dialects import image_names
from heddle.render.render import mgmt_subnet
from heddle.runs.run import run
from heddle.runs.store import paths_of
from heddle.runtimes import clab_deploy
from heddle.runtimes.clab_deploy import marker
from heddle.runtimes.containerlab import free_subnet
from tests.conftest import Up

pytestmark = pytest.mark.parametrize("runtime", ["containerlab"], indirect=True)
Leftovers = Callable[[str], list[str]]
SMALL = ("ctsw=1", "hosts_per_rack=1")


@contextmanager
def foreign_lab(name: str, tmp_path: Path) -> Iterator[Path]:
    """A containerlab lab of that name that is not Heddle's."""
    topology = tmp_path / "theirs.clab.yml"
    image = image_names()["host"]
    topology.write_text(
        f"name: {name}\nmgmt: {{network: {name}, skip-when-unused: true}}\n"
        f"topology: {{nodes: {{their: {{kind: linux, privileged: false, image: '{image}', network-mode: none}}}}}}\n"
    )
    env = ["env", "CLAB_VERSION_CHECK=disable", str(binary.require())]
    subprocess.run([*env, "deploy", "-t", str(topology)], check=True, capture_output=True, timeout=120)
    yield topology
    subprocess.run([*env, "destroy", "-t", str(topology), "--cleanup"], check=True, capture_output=True, timeout=120)


def test_labs_of_that_name_that_are_not_ours_or_of_another_runtime_are_named_and_never_touched(
    name: str, tmp_path: Path, up: Up
) -> None:
    with foreign_lab(name, tmp_path) as theirs:
        with pytest.raises(
            InputError, match=rf"lab {name} is already a containerlab lab that Heddle did not deploy, from {theirs}"
        ):
            up(name)
        assert not life.down(name)
        life.up(load_fabric("tiny", name=name))  # namespaces have other names
        assert docker(["inspect", f"clab-{name}-their", "--format", "{{.State.Status}}"]).out.strip() == "running"
    with pytest.raises(InputError, match="runtime: containerlab was requested, but the running lab uses netns"):
        up(name)


def test_a_foreign_container_with_a_nodes_name_is_reported_and_never_touched(
    name: str, tmp_path: Path, runtime: str, leftovers: Leftovers
) -> None:
    """Node `b` of their lab `NAME-a` and node `a-b` of NAME are both clab-NAME-a-b."""
    path = tmp_path / "mine.clab.yml"
    path.write_text(f"name: {name}\ntopology: {{nodes: {{a-b: {{kind: linux}}, c: {{kind: linux}}}}}}\n")
    theirs = f"clab-{name}-a-b"
    labels = ["--label", f"containerlab={name}-a", "--label", "clab-node-name=b"]
    docker(["run", "-d", "--name", theirs, "--network", "none", *labels, image_names()["host"]])
    link = NETNS_DIR / theirs
    link.symlink_to("/proc/0/ns/net")
    try:
        with pytest.raises(MachineError, match=r"already exist(.|\n)*docker ps -a shows what has that name"):
            life.up(import_topology(path, runtime, name), runtime=runtime)
        assert docker(["inspect", theirs, "--format", "{{.State.Status}}"]).out.strip() == "running"
        assert link.is_symlink()
    finally:
        link.unlink(missing_ok=True)
        docker(["rm", "-f", theirs], check=False)
    assert leftovers(name) == []


@pytest.mark.deep
@pytest.mark.long
def test_two_labs_in_containers_and_one_in_namespaces_do_not_disturb_each_other(
    lab_name: Callable[[], str], up: Up, leftovers: Leftovers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first finds its management network taken, and its image gone."""
    names = [lab_name() for _ in range(3)]
    before = outside(names)
    taken = mgmt_subnet(load_fabric("tiny", name=names[0], overrides=SMALL).fabric)
    image = image_names()["host"]
    docker(["network", "create", "--subnet", str(taken), f"heddle-{names[0]}-theirs"])
    docker(["tag", image, "heddle-test-layers"])  # so that building it again takes its layers
    docker(["image", "rm", "-f", image])
    try:
        labs = [
            up(names[0], *SMALL).lab,
            up(names[1], *SMALL, "routing.ecmp=e-ecmp").lab,
            life.up(load_fabric("tiny", name=names[2], overrides=SMALL)).lab,
        ]
        docker(["image", "inspect", image])  # it is there again: by this `up`, or by one of a test beside this one
        assert not IPv4Network(subnet_of(labs[0])).overlaps(taken)
        for lab in labs:
            assert run(lab, run_options(size="16K", iters=1, warmup=0, qps=2), Silent()).wrong == 0
        assert all(paths_of(lab).agree for lab in labs)
        assert len({subnet_of(lab) for lab in labs[:2]}) == 2
        bridges = {bridge_of(lab) for lab in labs[:2]}
        assert all(path.exists() for path in bridges)
        with monkeypatch.context() as patch:
            patch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
            kept = marker(names[0]).read_text()
            for verb in (open_lab, life.down):
                with pytest.raises(MachineError, match=r"none\.sock does not answer"):
                    verb(names[0])
            marker(names[0]).unlink()  # as after a restart of the machine
            with pytest.raises(MachineError, match=r"none\.sock does not answer"):
                life.down(names[0])
            marker(names[0]).write_text(kept)
        assert life.down(names[0])
        assert leftovers(names[0]) == []
        for lab in labs[1:]:
            assert health.faults(lab) == []
            lab.wait(timeout=2)
    finally:
        for each in names:
            life.down(each)
        docker(["network", "rm", f"heddle-{names[0]}-theirs"])
        docker(["image", "rm", "heddle-test-layers"], check=False)
    assert outside(names) == before
    assert not any(path.exists() for path in bridges)


def outside(names: Sequence[str]) -> dict[str, str]:
    """What of this machine every lab must leave as it was."""
    found = {}
    for argv in (["nft", "list", "ruleset"], ["iptables-save"], ["ip", "rule"]):
        try:
            found[argv[0]] = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=20).stdout
        except FileNotFoundError:
            continue
    mine = ("t", "heddle")  # other tests of this run may have labs at the same time
    rows = docker(["network", "ls", "--format", "{{.Name}}"]).out.split()
    found["networks"] = " ".join(row for row in rows if not row.startswith(mine))
    of_others = rf"###### CLAB-(t(?!{'|'.join(each[1:] for each in names)})\w+)-START ######\n.*?CLAB-\1-END ######\n"
    found["hosts"] = re.sub(of_others, "", Path("/etc/hosts").read_text(encoding="utf-8"), flags=re.DOTALL)
    return found


def subnet_of(lab: Lab) -> str:
    return str(network_of(lab)["IPAM"]["Config"][0]["Subnet"])


def bridge_of(lab: Lab) -> Path:
    """The management network's own bridge on this machine."""
    return Path("/sys/class/net", f"br-{network_of(lab)['Id'][:12]}")


def network_of(lab: Lab) -> dict[str, Any]:
    (found,) = json.loads(docker(["network", "inspect", f"heddle-{lab.name}"]).out)
    return dict(found)


def test_a_management_network_keeps_clear_of_the_labs_own_and_the_error_says_where_there_is_none(runtime: str) -> None:
    wanted = IPv4Network("172.24.5.0/24")
    inside = [IPv4Network("172.24.5.8/31"), IPv4Network("172.24.6.0/23"), IPv4Network("10.0.0.0/8")]
    found = free_subnet(wanted, inside)
    assert found.prefixlen == 24
    assert not any(found.overlaps(each) for each in inside)
    with pytest.raises(MachineError, match=r"has no room for a /13 .*\n.*--mgmt none"):
        free_subnet(IPv4Network("172.24.0.0/13"), [IPv4Network("172.16.0.0/12")])


@pytest.mark.parametrize(
    ("version", "reason"),
    [("0.50.0", "is version 0.50.0, and Heddle needs 0.68.0"), ("gibberish", "does not print its version")],
)
def test_a_missing_or_too_old_containerlab_is_reported(
    version: str, reason: str, name: str, runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "containerlab"
    program.write_text(f"#!/bin/sh\necho '    version: {version}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("HEDDLE_CONTAINERLAB", str(program))
    with pytest.raises(MachineError) as caught:
        life.up(load_fabric("tiny", name=name), runtime=runtime)
    (problem,) = caught.value.problems
    assert reason in problem.why
    assert problem.hint


@pytest.mark.deep
def test_a_command_of_a_node_that_does_not_end_is_not_waited_for(
    tmp_path: Path, runtime: str, name: str, leftovers: Leftovers, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "own.clab.yml"
    file.write_text("name: own\ntopology:\n  defaults: {kind: linux}\n  nodes:\n    h1: {exec: [sleep 3600]}\n")
    monkeypatch.setattr(clab_deploy, "_DEPLOY_S", 4.0)  # the command would end after an hour
    with pytest.raises(MachineError, match="did not end within 4 s"):
        life.up(import_topology(file, runtime, name), runtime=runtime)
    assert leftovers(name) == []
