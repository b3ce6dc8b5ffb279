"""What is rendered: golden files for small fabrics, and what must hold for every fabric (facts, 2.8)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
import yaml

from heddle.base.problems import InputError
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import BACKEND, Fabric
from heddle.fabric.shapes import build
from heddle.lab import frr as control
from heddle.lab.imported import copy, frr
from heddle.render.dialects import DIALECTS, RenderOptions, Version, check_deployable, render_options
from heddle.render.render import daemon_groups, mgmt_subnet, render, rendered
from heddle.runtimes.netns_topology import read_topology
from heddle.spec.load import presets
from heddle.spec.schema import AddressingSpec, FabricSpec
from heddle.spec.shapes.clos import ClosSpec

QUICK_YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same rules, in C
SMALL = ClosSpec(name="one", racks=1, ctsw=1, hosts_per_rack=1)
FABRICS: dict[str, FabricSpec] = {
    **{name: load_fabric(name).spec for name in presets()},
    "one": SMALL,
    "rails": ClosSpec(name="rails", racks=2, ctsw=3, hosts_per_rack=2, nics_per_host=4),
    "six": ClosSpec(name="six", family="ipv6", racks=2, ctsw=3, hosts_per_rack=2, nics_per_host=2),
    "wide": ClosSpec(name="wide", racks=2, ctsw=16, hosts_per_rack=2),
    "private": ClosSpec(
        name="p172", racks=3, ctsw=5, hosts_per_rack=3, addressing=AddressingSpec(pool="172.16.0.0/12")
    ),
}


@pytest.fixture(params=sorted(FABRICS))
def spec(request: pytest.FixtureRequest) -> FabricSpec:
    return FABRICS[request.param]


WAYS = {
    "linux": RenderOptions(),
    "linux-bare": RenderOptions(mgmt="none"),
    "frr": RenderOptions(dialect="frr"),
    "frr-0.80": RenderOptions(dialect="frr", version=(0, 80, 1)),
    "c9s": RenderOptions(dialect="c9s"),
}


@pytest.fixture(params=sorted(WAYS))
def options(request: pytest.FixtureRequest) -> RenderOptions:
    return WAYS[request.param]


_fabrics: dict[str, Fabric] = {}
_topologies: dict[tuple[str, RenderOptions], dict[str, Any]] = {}


def built(spec: FabricSpec) -> Fabric:
    """The same fabric for all tests that only look at it."""
    key = spec.model_dump_json()
    if key not in _fabrics:
        _fabrics[key] = build(spec)
    return _fabrics[key]


def topology_of(spec: FabricSpec, options: RenderOptions = WAYS["linux"]) -> dict[str, Any]:
    """What is rendered, as containerlab reads it. Tests look at it and change nothing: they share it."""
    key = (spec.model_dump_json(), options)
    if key not in _topologies:
        _topologies[key] = yaml.load(rendered(built(spec), options)[f"{spec.name}.clab.yml"], QUICK_YAML)
    return _topologies[key]


def comparable(files: dict[str, str]) -> dict[str, str]:
    """Without the hashes of images: another Dockerfile is no other topology."""
    return {name: re.sub(r"(heddle/(?:switch|host)):[0-9a-f]{12}\b", r"\1:HASH", text) for name, text in files.items()}


@pytest.mark.parametrize("name", ["tiny-flow", "tiny-e-ecmp", "six", "one"])
def test_a_small_fabric_is_rendered_as_before(name: str, golden_dir: Callable[[str, dict[str, str]], None]) -> None:
    preset, _, ecmp = name.partition("-")
    spec = load_fabric(preset, overrides=[f"routing.ecmp={ecmp}"]).spec if ecmp else FABRICS[name]
    golden_dir(f"render/{name}", comparable(rendered(build(spec))))


@pytest.mark.parametrize("planes", [1, 2])
def test_rails_are_rendered_as_before(planes: int, golden_dir: Callable[[str, dict[str, str]], None]) -> None:
    spec = load_fabric("rail", overrides=[f"planes={planes}"]).spec
    files = comparable(rendered(build(spec)))
    shown = ("rail.clab.yml", "leaf2/frr.conf", "spine2/frr.conf")
    golden_dir(f"render/rail-{planes}", {name: files[name] for name in shown})


def test_several_nics_are_rendered_as_before(golden: Callable[[str, str], None]) -> None:
    spec = ClosSpec(name="two", racks=1, ctsw=1, hosts_per_rack=1, nics_per_host=2)
    golden("render/two-nics.clab.yml", comparable(rendered(build(spec)))["two.clab.yml"])


@pytest.mark.parametrize("way", sorted(WAYS))
def test_each_dialect_is_rendered_as_before(way: str, golden: Callable[[str, str], None]) -> None:
    small = ClosSpec(name="four", racks=2, ctsw=2, hosts_per_rack=1)
    files = comparable(rendered(build(small), WAYS[way]))
    golden(f"render/dialects/{way}.clab.yml", files["four.clab.yml"])
    rails = ClosSpec(name="rails", racks=1, ctsw=2, hosts_per_rack=1, nics_per_host=2)
    golden(f"render/dialects/{way}-two-nics.clab.yml", comparable(rendered(build(rails), WAYS[way]))["rails.clab.yml"])


def test_the_same_fabric_gives_the_same_bytes(spec: FabricSpec, tmp_path: Path) -> None:
    render(build(spec), tmp_path / "a")
    render(build(spec), tmp_path / "b")
    files = sorted(p.relative_to(tmp_path / "a") for p in (tmp_path / "a").rglob("*") if p.is_file())
    assert len(files) == 1 + 4 * len(build(spec).switches)
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_what_holds_for_every_fabric_in_every_dialect(spec: FabricSpec, options: RenderOptions, tmp_path: Path) -> None:
    fabric, data = built(spec), topology_of(spec, options)
    part = data["topology"]
    assert re.fullmatch(r"[a-z][a-z0-9]{0,19}", data["name"])
    assert all(re.fullmatch(r"[a-z][a-z0-9]{0,11}", node) for node in part["nodes"])

    used = ports(data)
    assert all(re.fullmatch(r"eth[0-9]{1,12}", interface) for _, interface in used)
    assert len(used) == len(set(used)) == sum(len(node.ports) for node in fabric.nodes)
    macs = macs_of(data)
    assert macs == {(node.name, port.name): port.mac for node in fabric.nodes for port in node.ports}
    assert len(set(macs.values())) == len(macs)
    assert all(int(mac[:2], 16) & 3 == 2 for mac in macs.values()), "locally administered and unicast"
    assert {link["mtu"] for link in part["links"]} == {fabric.policy.of(network).mtu for network in fabric.networks}

    # The groups that containerlab's graph knows.
    groups = {node["group"] for node in part["nodes"].values()}
    rows = ["server", "leaf", "spine", "superspine"][
        : 1 + len({node.level for node in fabric.switches if fabric.level_of(node).network == BACKEND})
    ]
    assert groups == set(rows) == set(part["groups"])

    for each in [*part["groups"].values(), *part["nodes"].values()]:
        assert all(isinstance(value, str) for value in each.get("sysctls", {}).values()), "a sysctl is not quoted"
    assert part["defaults"]["privileged"] is False
    rights = {name: set(group["cap-add"]) for name, group in part["groups"].items()}
    assert rights.pop("server") == {"NET_ADMIN", "NET_RAW"}
    assert all(each == {"NET_ADMIN", "SYS_ADMIN", "NET_RAW"} for each in rights.values())
    writable = {bind for node in part["nodes"].values() for bind in node.get("binds", []) if not bind.endswith(":ro")}
    assert options.dialect == "c9s" or {bind.rpartition(":")[2] for bind in writable} <= {"/etc/frr/frr.conf"}

    topology = render(fabric, tmp_path / "out", options)
    nodes = part["nodes"].values()
    named = [bind.split(":")[0] for node in nodes for bind in node.get("binds", [])]
    named += [node["startup-config"] for node in nodes if "startup-config" in node]
    there = [str(path.relative_to(topology.parent)) for path in topology.parent.rglob("*") if path.is_file()]
    assert sorted([*named, topology.name]) == sorted(there), "what is bound is there, and nothing else is"
    assert len(named) == (2 if options.dialect == "frr" else 4) * len(fabric.switches)


def test_root_writes_no_file_where_user_frr_could_place_a_link() -> None:
    """The scripts run as root; /run/frr and /var/log/frr belong to frr, whose daemons write pids and logs there."""
    files = rendered(build(ClosSpec(name="one", racks=1, ctsw=1)))
    starts = [text for name, text in files.items() if name.endswith("start.sh")]
    for script in (*starts[:1], copy._start_script(), control._START_DAEMONS, control._END_DAEMONS):
        lines = [line for line in script.splitlines() if not line.startswith("#")]
        named = set(re.findall(r"/(?:run|var/log)/frr/[^\s\";)]+", "\n".join(lines)))
        # The last one is removed, and then made with `set -C`, which follows no link.
        assert named <= {"/run/frr/$daemon.pid", "/var/log/frr/$daemon.log", "/run/frr/*.pid", frr.REFUSED}


def test_every_node_says_which_lab_it_is_of(spec: FabricSpec, tmp_path: Path) -> None:
    topology = read_topology(render(built(spec), tmp_path / "out"))
    for name, node in topology.nodes.items():
        assert node.labels["heddle-lab"] == spec.name
        assert node.labels["tier"] == built(spec).level_of(built(spec).by_name[name]).word


def test_the_frr_kind_is_spelt_as_its_version_wants(spec: FabricSpec) -> None:
    switches = {node.name for node in built(spec).switches}
    for version, spelling in (((0, 80, 0), {"extras": {"frr": {"daemons": ["bgpd"]}}}), (None, {"daemons": ["bgpd"]})):
        nodes = topology_of(spec, RenderOptions(dialect="frr", version=version))["topology"]["nodes"]
        assert {name for name, node in nodes.items() if node["kind"] == "frr"} == switches
        for name in switches:
            assert {key: nodes[name][key] for key in ("extras", "daemons") if key in nodes[name]} == spelling
            targets = {bind.split(":")[1] for bind in nodes[name]["binds"]}
            assert not targets & {"/etc/frr/frr.conf", "/etc/frr/daemons", "/etc/frr/vtysh.conf"}, "the kind binds them"


def test_nothing_that_kubernetes_refuses_is_in_the_c9s_dialect(spec: FabricSpec) -> None:
    data = topology_of(spec, WAYS["c9s"])
    assert set(data) == {"name", "mgmt", "topology"}
    assert set(data["mgmt"]) == {"ipv4-subnet"}
    refused = {"stages", "restart-policy", "cpu-set", "network-mode", "runtime", "auto-remove", "ports"}
    part = data["topology"]
    for node in [part["defaults"], *part["groups"].values(), *part["nodes"].values()]:
        assert not refused & set(node)
    assert {key for link in part["links"] for key in link} == {"endpoints", "mtu"}


def test_without_a_management_network_no_node_is_in_one(spec: FabricSpec) -> None:
    data = topology_of(spec, WAYS["linux-bare"])
    assert data["topology"]["defaults"]["network-mode"] == "none"
    assert not any("network-mode" in node for node in data["topology"]["nodes"].values())
    assert data["mgmt"] == {"network": f"heddle-{spec.name}", "skip-when-unused": True}
    older = topology_of(spec, RenderOptions(mgmt="none", version=(0, 75, 0)))
    assert set(older["mgmt"]) == {"network", "ipv4-subnet", "external-access"}, "0.75 does not know how to skip it"


def test_a_subnet_that_is_given_takes_the_place_of_the_computed_one(options: RenderOptions) -> None:
    subnet = IPv4Network("10.99.0.0/16")
    mgmt = topology_of(SMALL, replace(options, subnet=subnet))["mgmt"]
    assert mgmt.get("ipv4-subnet") == (None if options.mgmt == "none" else str(subnet))


@pytest.mark.parametrize("version", [None, (0, 68, 0), (0, 79, 0), (0, 80, 0), (0, 81, 2)])
def test_every_version_gets_kind_linux_by_default(version: Version | None) -> None:
    assert render_options(version=version).dialect == "linux"
    check_deployable(render_options(version=version), "netns", version)


def test_options_that_do_not_exist_or_cannot_be_deployed_are_named() -> None:
    with pytest.raises(InputError) as caught:
        render_options(dialect="ffr", mgmt="no")
    assert [problem.what for problem in caught.value.problems] == ["--dialect ffr", "--mgmt no"]
    assert caught.value.problems[0].hint == "did you mean frr?"
    with pytest.raises(InputError, match="pods always have a network"):
        render_options(dialect="c9s", mgmt="none")
    assert {render_options(dialect=each).dialect for each in DIALECTS} == set(DIALECTS)
    # A dialect that this machine cannot deploy is refused with what can.
    with pytest.raises(InputError, match=r"needs containerlab 0\.80 or newer; installed: 0\.79\.0"):
        check_deployable(WAYS["frr"], "containerlab", (0, 79, 0))
    with pytest.raises(InputError, match="needs runtime containerlab, not netns"):
        check_deployable(WAYS["frr"], "netns", None)
    with pytest.raises(InputError, match="is for Kubernetes"):
        check_deployable(WAYS["c9s"], "containerlab", (0, 81, 0))
    check_deployable(WAYS["frr"], "containerlab", (0, 81, 0))


def test_labs_have_management_networks_of_their_own_clear_of_the_pool(spec: FabricSpec) -> None:
    subnet = mgmt_subnet(built(spec))
    assert not subnet.overlaps(spec.addressing.network)
    assert subnet.num_addresses >= len(built(spec).nodes) + 3
    assert not subnet.overlaps(IPv4Network("172.17.0.0/16")), "Docker's own bridge"


def test_the_hash_seed_is_set_only_where_the_kernel_hashes() -> None:
    flow = topology_of(load_fabric("tiny").spec)["topology"]["nodes"]
    seeds = [flow[name]["sysctls"]["net.ipv4.fib_multipath_hash_seed"] for name in ("rtsw1", "rtsw2", "ctsw1", "ctsw2")]
    assert len(set(seeds)) == 4
    bpf = topology_of(load_fabric("tiny", overrides=["routing.ecmp=e-ecmp"]).spec)["topology"]["nodes"]
    assert "sysctls" not in bpf["rtsw1"], "kernels before 6.11 have no such sysctl, and e-ecmp needs none"


def test_rendering_into_a_directory_keeps_what_else_is_there_and_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    render(build(SMALL), tmp_path)
    render(build(SMALL), tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "one.clab.yml").exists()
    assert [p.name for p in tmp_path.parent.glob(f".{tmp_path.name}.*")] == []
    # Rendering onto a file is the users mistake.
    target = tmp_path / "file"
    target.write_text("")
    with pytest.raises(InputError, match="is a file"):
        render(build(SMALL), target)


def ports(data: dict[str, Any]) -> list[tuple[str, str]]:
    """(node, interface) of every end of every link, in the extended form or the brief one."""
    ends = [end for link in data["topology"]["links"] for end in link["endpoints"]]
    assert all(len(link["endpoints"]) == 2 for link in data["topology"]["links"])
    pairs = [end.split(":") if isinstance(end, str) else (end["node"], end["interface"]) for end in ends]
    return [(node, interface) for node, interface in pairs]


def macs_of(data: dict[str, Any]) -> dict[tuple[str, str], str]:
    """(node, interface) -> MAC, be it said by the link or set by the node's exec."""
    ends = [end for link in data["topology"]["links"] for end in link["endpoints"] if isinstance(end, dict)]
    macs = {(end["node"], end["interface"]): str(end["mac"]) for end in ends}
    for name, node in data["topology"]["nodes"].items():
        for command in node["exec"]:
            if found := re.fullmatch(r"ip link set dev (\S+) address (\S+) down", command):
                macs[name, found[1]] = found[2]
    return macs


def test_loopbacks_are_announced_on_request_and_a_large_fabric_collects_changes() -> None:
    two = SMALL.model_copy(update={"racks": 2})
    small, leaf = (rendered(built(two))[f"{name}/frr.conf"] for name in ("ctsw1", "rtsw1"))
    assert leaf.endswith("ip prefix-list OWN permit 10.0.0.0/24\nip prefix-list OWN deny any\n"), "no path through it"
    assert "  neighbor FABRIC prefix-list NO-LOOPBACKS out\n" in small
    assert "ip prefix-list NO-LOOPBACKS deny 10.255.0.0/16 le 32\nip prefix-list NO-LOOPBACKS permit any\n" in small
    six = rendered(built(FABRICS["six"]))["ctsw1/frr.conf"]
    assert "ipv6 prefix-list NO-LOOPBACKS deny fd00:0:0:ffff::/64 le 128\n" in six
    told = rendered(built(two.model_copy(update={"routing": replace(SMALL.routing, loopbacks=True)})))
    assert "NO-LOOPBACKS" not in told["ctsw1/frr.conf"]
    assert "OWN permit 10.255.16.1/32\n" in told["rtsw1/frr.conf"]
    slow = ("zebra work-queue 3000\n", " coalesce-time 3000\n", "advertisement-interval 3\n", " timers 20 60\n")
    large = rendered(built(ClosSpec(name="large", racks=128, ctsw=16, hosts_per_rack=1)))
    assert all(line in large["rtsw1/frr.conf"] for line in slow)
    assert not any(line in small for line in slow)


def test_groups_that_share_daemons_are_of_one_level_and_have_few_ports() -> None:
    spec = ClosSpec(name="wide", racks=200, ctsw=2, hosts_per_rack=1)
    assert daemon_groups(built(spec)) == {}
    groups = daemon_groups(built(spec.model_copy(update={"routing": replace(spec.routing, daemons="shared")})))
    sizes = [len(nodes) for nodes in groups.values()]
    assert sizes == [16] * 12 + [8] + [1, 1], "200 switches of 3 ports, then two of 200"
    assert all(len({node.name.rstrip("0123456789") for node in nodes}) == 1 for nodes in groups.values())
