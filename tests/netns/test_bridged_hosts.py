"""Linux bridges: hosts behind one with an address (an SVI), and containerlab's kind `bridge` between routers.

Runs go over them, and a path that was not seen is not proven.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.base.problems import CheckError, InputError
from heddle.endpoints.runoptions import run_options
from heddle.lab import lifecycle as life
from heddle.lab import rehash
from heddle.lab.capture import find_ports
from heddle.lab.imported.imported import import_topology
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.runs.explain import explain
from heddle.runs.run import run
from heddle.runs.store import paths_of
from tests.netns.collectives import proven
from tests.netns.live import failed
from tests.own_topologies import DAEMONS, frr_conf


def two_leaves(directory: Path, address: str = "br10") -> Path:
    """Two leaves with two links between them, each with two hosts in the bridge br10. address: what has the address."""
    (directory / "daemons").write_text(DAEMONS)
    nodes, links = "", '    - endpoints: ["leaf1:eth1", "leaf2:eth1"]\n    - endpoints: ["leaf1:eth2", "leaf2:eth2"]\n'
    for leaf in (1, 2):
        ports = {"eth1": f"10.0.0.{leaf - 1}/31", "eth2": f"10.0.0.{leaf + 1}/31", address: f"10.1.{leaf}.1/24"}
        peers = {f"10.0.0.{2 - leaf}": 65003 - leaf, f"10.0.0.{4 - leaf}": 65003 - leaf}
        config = frr_conf(f"leaf{leaf}", 65000 + leaf, f"10.255.0.{leaf}", ports, peers, [f"10.1.{leaf}.0/24"])
        (directory / f"leaf{leaf}.conf").write_text(config)
        nodes += f"    leaf{leaf}: {{group: leaf}}\n"
        for host in (1, 2):
            name = f"h{leaf}{host}"
            commands = f"ip addr add 10.1.{leaf}.1{host}/24 dev eth1, ip route add 10.0.0.0/8 via 10.1.{leaf}.1"
            nodes += f"    {name}: {{exec: [{commands}]}}\n"
            links += f'    - endpoints: ["leaf{leaf}:eth{2 + host}", "{name}:eth1"]\n'
    bridge = ["ip link add br10 type bridge", *(f"ip link set eth{n} master br10" for n in (3, 4))]
    commands = ", ".join([*bridge, "ip link set br10 address 02:aa:00:00:00:0a", "ip link set br10 up"])
    binds = "daemons:/etc/frr/daemons, __clabNodeName__.conf:/etc/frr/frr.conf"
    (path := directory / "svi.clab.yml").write_text(
        f"name: svi\ntopology:\n  defaults: {{kind: linux}}\n  groups:\n"
        f"    leaf: {{binds: [{binds}], exec: [{commands}]}}\n  nodes:\n{nodes}  links:\n{links}"
    )
    return path


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, lab_name: Callable[[], str]) -> Iterator[Lab]:
    name = lab_name()
    yield life.up(import_topology(two_leaves(tmp_path_factory.mktemp("svi")), "netns", name)).lab
    life.down(name)


def mac_of(lab: Lab, host: str) -> str:
    return lab.output(host, ["cat", "/sys/class/net/eth1/address"]).strip()


def collective(lab: Lab) -> None:
    assert run(lab, run_options(size="256K", qps=8, iters=2), Silent()).wrong == 0


def test_a_run_goes_over_the_bridge_and_its_paths_are_proven(lab: Lab) -> None:
    collective(lab)
    proof = proven(open_lab(lab.name))
    assert {row.measured[-1] for row in proof.flows} == {"leaf1:eth3", "leaf1:eth4", "leaf2:eth3", "leaf2:eth4"}
    (inside,) = {row.measured for row in proof.flows if (row.flow.src, row.flow.dst) == ("h11", "h12")}
    assert inside == ("leaf1:eth4",)  # routed from the bridge into the bridge
    flow = next(row.flow for row in proof.flows if (row.flow.src, row.flow.dst) == ("h12", "h21"))
    explained = explain(lab, str(flow.qpn))
    assert explained.agree
    assert explained.path[-1] == "leaf2:eth3"
    # The router's MAC is the bridge's, not the port's: a capture knows all the same which frames the port sent.
    (tap,) = find_ports(lab, "leaf2:eth4")
    bridge, host = (bytes.fromhex(mac.replace(":", "")) for mac in ("02:aa:00:00:00:0a", mac_of(lab, "h22")))
    assert tap.sent(host + bridge) and not tap.sent(bridge + host)


@pytest.mark.deep
@pytest.mark.parametrize("mode", ["e-ecmp", "spray"])
def test_hashing_by_program_works_with_a_bridge(lab: Lab, mode: str) -> None:
    rehash.set_hashing(lab, mode)
    try:
        collective(lab)
        proven(lab)
    finally:
        rehash.set_hashing(lab, "flow")


@pytest.mark.deep
def test_what_a_bridge_floods_is_not_proven(lab: Lab) -> None:
    """Both ports count each packet, and the kernel names no port."""
    for port in ("eth3", "eth4"):
        lab.output("leaf2", ["bridge", "link", "set", "dev", port, "learning", "off"])
    try:
        lab.output("leaf2", ["ip", "link", "set", "br10", "type", "bridge", "fdb_flush"])
        collective(lab)
        result = paths_of(lab)
    finally:
        for port in ("eth3", "eth4"):
            lab.output("leaf2", ["bridge", "link", "set", "dev", port, "learning", "on"])
    assert not result.agree
    for row in result.flows:
        assert bool(row.why) == row.flow.dst.startswith("h2")
        if row.why:
            assert row.oracle[-1] == "leaf2:br10"
    collective(lab)
    proven(lab)


@pytest.mark.deep
def test_a_bridge_without_an_address_is_the_reason_that_no_rank_is_there(tmp_path: Path, name: str) -> None:
    with pytest.raises(CheckError, match="has no route"):
        life.up(import_topology(two_leaves(tmp_path, "lo"), "netns", name), timeout=1)
    with pytest.raises(InputError) as caught:
        run(open_lab(name), run_options(size="64K"), Silent())
    reason = "a port of the bridge br10, which has no IPv4 address, but a rank needs a router"
    assert [str(each).split("\n")[0] for each in caught.value.problems] == [
        *(f"h{leaf}{host}:eth1 leads to leaf{leaf}:eth{host + 2}, {reason}" for leaf in (1, 2) for host in (1, 2)),
        f"{name} gives 0 of the two ranks that a collective needs",
    ]


TOPOLOGY = """name: lan
topology:
  defaults: {kind: linux, binds: ["daemons:/etc/frr/daemons", "__clabNodeName__.conf:/etc/frr/frr.conf"]}
  nodes:
    br-lan: {kind: bridge}
    r1: {}
    r2: {}
    r3: {}
  links:
    - endpoints: ["r1:eth1", "br-lan:eth1"]
    - endpoints: ["r2:eth1", "br-lan:eth2"]
    - endpoints: [{node: r3, interface: eth1}, {node: br-lan, interface: ethernet3}]
"""


@pytest.mark.deep
def test_routers_meet_on_a_bridge(tmp_path: Path, runtime: str, name: str) -> None:
    (tmp_path / "daemons").write_text(DAEMONS)
    for n in (1, 2, 3):
        peers = {f"10.0.0.{m}": 65000 + m for m in (1, 2, 3) if m != n}
        config = frr_conf(f"r{n}", 65000 + n, f"10.255.0.{n}", {"eth1": f"10.0.0.{n}/24"}, peers, [f"10.255.0.{n}/32"])
        (tmp_path / f"r{n}.conf").write_text(config)
    (path := tmp_path / "lan.clab.yml").write_text(TOPOLOGY)
    made = import_topology(path, runtime, name)
    assert "each bridge is one in a node of its own, not one of this machine: br-lan" in made.notes
    lab = life.up(made, runtime=runtime).lab
    assert lab.output("br-lan", ["ls", "/sys/class/net/bridge0/brif"]).split() == ["eth1", "eth2", "ethernet3"]
    for n in (2, 3):
        assert "via 10.0.0." in lab.output("r1", ["ip", "route", "show", f"10.255.0.{n}"])
    assert failed(lab) == {}
