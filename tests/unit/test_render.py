"""What is rendered: golden files for small fabrics, and what must hold for every fabric (facts, 2.8)."""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
import yaml

from topologies.load import load_fabric, presets
from topologies.problems import InputError
from topologies.render import mgmt_subnet, render, rendered
from topologies.runtimes.netns_topology import read_topology
from topologies.shapes import build
from topologies.spec import AddressingSpec, FabricSpec

SMALL = FabricSpec(name="one", racks=1, ctsw=1, hosts_per_rack=1)
FABRICS = {
    **{name: load_fabric(name) for name in presets()},
    "one": SMALL,
    "rails": FabricSpec(name="rails", racks=2, ctsw=3, hosts_per_rack=2, nics_per_host=4),
    "wide": FabricSpec(name="wide", racks=2, ctsw=16, hosts_per_rack=2),
    "private": FabricSpec(
        name="p172", racks=3, ctsw=5, hosts_per_rack=3, addressing=AddressingSpec(pool="172.16.0.0/12")
    ),
}


@pytest.fixture(params=sorted(FABRICS))
def spec(request: pytest.FixtureRequest) -> FabricSpec:
    return FABRICS[request.param]


def topology_of(spec: FabricSpec) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(rendered(build(spec))[f"{spec.name}.clab.yml"])
    return data


@pytest.mark.parametrize("ecmp", ["flow", "e-ecmp"])
def test_tiny_is_rendered_as_before(ecmp: str, golden_dir: Callable[[str, dict[str, str]], None]) -> None:
    spec = load_fabric("tiny", overrides=[f"routing.ecmp={ecmp}"])
    golden_dir(f"render/tiny-{ecmp}", rendered(build(spec)))


def test_the_smallest_fabric_is_rendered_as_before(golden_dir: Callable[[str, dict[str, str]], None]) -> None:
    golden_dir("render/one", rendered(build(SMALL)))


def test_several_nics_are_rendered_as_before(golden: Callable[[str, str], None]) -> None:
    spec = FabricSpec(name="two", racks=1, ctsw=1, hosts_per_rack=1, nics_per_host=2)
    golden("render/two-nics.clab.yml", rendered(build(spec))["two.clab.yml"])


def test_the_same_fabric_gives_the_same_bytes(spec: FabricSpec, tmp_path: Path) -> None:
    render(build(spec), tmp_path / "a")
    render(build(spec), tmp_path / "b")
    files = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*") if p.is_file())
    assert len(files) == 1 + 4 * len(build(spec).switches)
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_names_are_legal_in_containerlab_and_c9s(spec: FabricSpec) -> None:
    data = topology_of(spec)
    assert re.fullmatch(r"[a-z][a-z0-9]{0,19}", data["name"])
    for node in data["topology"]["nodes"]:
        assert re.fullmatch(r"[a-z][a-z0-9]{0,11}", node)
    for end in ends(data):
        assert re.fullmatch(r"eth[0-9]+", end["interface"])
        assert len(end["interface"]) < 16


def test_every_port_is_used_once_and_has_a_mac_of_its_own(spec: FabricSpec) -> None:
    data = topology_of(spec)
    ports = [(end["node"], end["interface"]) for end in ends(data)]
    assert len(ports) == len(set(ports))
    macs = [end["mac"] for end in ends(data)]
    assert len(macs) == len(set(macs))
    assert all(int(mac[:2], 16) & 3 == 2 for mac in macs), "locally administered and unicast"


def test_every_link_has_an_mtu(spec: FabricSpec) -> None:
    assert {link["mtu"] for link in topology_of(spec)["topology"]["links"]} == {spec.link.mtu}


def test_groups_are_those_that_the_graph_knows(spec: FabricSpec) -> None:
    data = topology_of(spec)["topology"]
    groups = {node["group"] for node in data["nodes"].values()}
    assert groups == {"spine", "leaf", "server"} == set(data["groups"])


def test_no_sysctl_is_unquoted_and_nothing_is_privileged(spec: FabricSpec) -> None:
    data = topology_of(spec)["topology"]
    for part in [*data["groups"].values(), *data["nodes"].values()]:
        assert all(isinstance(value, str) for value in part.get("sysctls", {}).values())
        assert "extras" not in part
    assert data["defaults"] == {"privileged": False, "cap-add": ["NET_ADMIN", "SYS_ADMIN", "NET_RAW"]}


def test_every_bind_is_rendered_too(spec: FabricSpec, tmp_path: Path) -> None:
    topology = read_topology(render(build(spec), tmp_path / "out"))
    binds = [bind for node in topology.nodes.values() for bind in node.binds]
    assert len(binds) == 4 * len(build(spec).switches)
    assert all(bind.source.is_file() for bind in binds)


def test_labs_have_management_networks_of_their_own_clear_of_the_pool(spec: FabricSpec) -> None:
    subnet = mgmt_subnet(build(spec))
    assert not subnet.overlaps(spec.addressing.network)
    assert subnet.num_addresses >= len(build(spec).nodes) + 3
    assert not subnet.overlaps(IPv4Network("172.17.0.0/16")), "Docker's own bridge"


def test_the_hash_seed_is_set_only_where_the_kernel_hashes() -> None:
    flow = topology_of(load_fabric("tiny"))["topology"]["nodes"]
    seeds = [flow[name]["sysctls"]["net.ipv4.fib_multipath_hash_seed"] for name in ("rtsw1", "rtsw2", "ctsw1", "ctsw2")]
    assert len(set(seeds)) == 4
    bpf = topology_of(load_fabric("tiny", overrides=["routing.ecmp=e-ecmp"]))["topology"]["nodes"]
    assert "sysctls" not in bpf["rtsw1"], "kernels before 6.11 have no such sysctl, and e-ecmp needs none"


def test_rendering_into_a_directory_keeps_what_else_is_there(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    render(build(SMALL), tmp_path)
    render(build(SMALL), tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "one.clab.yml").exists()
    assert [p.name for p in tmp_path.parent.glob(f".{tmp_path.name}.*")] == []


def test_rendering_onto_a_file_is_the_users_mistake(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("")
    with pytest.raises(InputError, match="is a file"):
        render(build(SMALL), target)


def ends(data: dict[str, Any]) -> list[dict[str, Any]]:
    return [end for link in data["topology"]["links"] for end in link["endpoints"]]
