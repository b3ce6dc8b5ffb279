"""A fabric of family ipv6, from routes to the proof of every path: the same verbs, and no IPv4 in it anywhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from heddle.base.process import run as run_command
from heddle.checks.validate import validate
from heddle.endpoints.nic.nic import announce
from heddle.fabric.fabricfile import load_fabric
from heddle.kernel.fib import read_fib
from heddle.kernel.namespace import inside
from heddle.lab import lifecycle as life
from heddle.lab.lab import Lab
from heddle.lab.outages import link_down
from heddle.lab.rehash import set_hashing
from heddle.runs.store import paths_of
from heddle.spec.routingpolicy import HashOptions, Udf
from heddle_plugins.testing import craft
from tests.conftest import Borrow
from tests.machine import until
from tests.marks import long
from tests.netns.collectives import proven, ran
from tests.netns.live import failed


@pytest.fixture(scope="module")
def six(borrow: Borrow, runtime: str) -> Lab:
    """The preset tiny in IPv6, in this module's runtime."""
    return borrow("tiny", "family=ipv6", runtime=runtime)


def prove(lab: Lab, **options: Any) -> None:
    """The sums of a run are right, and prediction, oracle and counters say one thing of every QP."""
    result = ran(lab, **{"qps": 4, **options})
    assert (result.icrc_errors, result.stray) == (0, 0)
    paths = proven(lab)
    assert all(proof.predicted == proof.oracle == proof.measured for proof in paths.flows)
    assert len(paths.flows) == len(result.flows) > 0


@pytest.mark.containers
def test_every_check_passes(six: Lab) -> None:
    checks = validate(six)
    assert [check.name for check in checks if not check.ok] == []
    assert {"bgp", "routes", "reachability"} <= {check.name for check in checks if not check.skipped}


def test_ports_of_the_fabric_have_ipv6_only(six: Lab) -> None:
    for node in six.fabric.nodes:
        shown = json.loads(six.output(node.name, ["ip", "-j", "addr", "show"]))
        found = {each["ifname"]: [a for a in each["addr_info"] if a["scope"] == "global"] for each in shown}
        for port in node.ports:
            want = [] if port.address is None else [("inet6", str(port.address.ip), port.address.network.prefixlen)]
            assert [(a["family"], a["local"], a["prefixlen"]) for a in found[port.name]] == want, port.ref


def test_routes_are_read_as_ip_shows_them(six: Lab) -> None:
    fib = read_fib(six.handle("rtsw1"), 6)
    shown = json.loads(six.output("rtsw1", ["ip", "-6", "-j", "route", "show", "proto", "bgp"]))
    ways = {
        route["dst"]: [(hop["dev"], hop["gateway"], hop["weight"]) for hop in route["nexthops"]]
        if "nexthops" in route
        else [(route["dev"], route["gateway"], 1)]
        for route in shown
    }
    read = {
        str(prefix).removesuffix("/128"): [(hop.port, hop.gateway, hop.weight) for hop in hops]
        for prefix, hops in fib.routes.items()
        if all(hop.gateway for hop in hops)
    }
    assert read == ways
    assert len(ways["fd00:0:0:1::/64"]) == 2
    # Left out: what IPv6 has for every interface.
    assert not any(prefix.is_link_local or prefix.is_multicast for prefix in fib.routes)
    assert all(hop.port != "lo" for hops in fib.routes.values() for hop in hops)


@pytest.mark.deep
def test_packets_by_hand_are_answered_and_their_path_is_proven(six: Lab) -> None:
    for psn, ttl, kind in ((0, 64, "RoCE ACK"), (9, 64, "RoCE NAK"), (0, 1, "ICMPv6")):
        done = craft(six, "host1", "host3", psn=psn, ttl=ttl, wait=0.5)
        assert [each.what.kind for each in done.answers] == [kind]
        assert done.proof is not None and done.proof.agree == (kind != "ICMPv6")


def test_a_nic_makes_itself_known_to_its_switch_before_it_sends(six: Lab) -> None:
    nic = six.fabric.by_name["host1"].ports[0]
    gateway = six.fabric.by_name[nic.peer_node].port(nic.peer_port)
    assert nic.address is not None
    assert gateway.address is not None
    shown = ["ip", "-6", "-j", "neigh", "show", str(nic.address.ip), "dev", gateway.name]

    def known() -> list[str]:
        rows = json.loads(six.output(gateway.node, shown) or "[]")
        return [row["lladdr"] for row in rows if "lladdr" in row]

    six.output(gateway.node, ["ip", "-6", "neigh", "flush", "dev", gateway.name])
    assert known() == []
    with inside(six.handle("host1").netns):
        announce(nic.name, nic.mac, str(nic.address.ip), str(gateway.address.ip))
    until(known)
    assert known() == [nic.mac]


@pytest.mark.containers
def test_sums_are_right_and_every_path_is_proven(six: Lab) -> None:
    prove(six)
    prove(six, qps=16, placement="cyclic")


@pytest.mark.deep
def test_a_lost_uplink_is_routed_around_and_comes_back(six: Lab) -> None:
    with link_down(six, "rtsw1:eth1"):
        hops = read_fib(six.handle("rtsw1"), 6).lookup(int(six.fabric.by_name["host3"].ports[0].address.ip))  # type: ignore[union-attr]
        assert [hop.port for hop in hops if not hop.dead] == ["eth2"]
        prove(six)
    assert failed(six) == {}


@pytest.mark.deep
def test_repair_gives_a_host_its_addresses_and_routes_back(six: Lab) -> None:
    before = six.output("host1", ["ip", "-6", "route"])
    with inside(six.handle("host1").netns):
        run_command(["ip", "link", "set", "eth1", "down"])
    done = life.repair_lab(six.name)
    assert done.repaired is not None and done.repaired.done[0] == "host1:eth1: link set up"
    assert all(line.startswith("host1: -6 route ") for line in done.repaired.done[1:])  # it went with its address
    assert sorted(six.output("host1", ["ip", "-6", "route"]).split("\n")) == sorted(before.split("\n"))
    assert failed(six) == {}


MODES = {
    "flow over addresses": ("flow", HashOptions(fields=0x3)),  # policy 3, whose hash no question tells
    "flow by l3": ("flow", HashOptions(policy="l3")),
    "flow, resilient": ("flow", HashOptions(resilient=True)),
    "e-ecmp": ("e-ecmp", HashOptions()),
    "e-ecmp by source port": ("e-ecmp", HashOptions(udf=Udf("l4", 0, 2))),
    "pinned": ("pinned", HashOptions()),
    "spray": ("spray", HashOptions(choice="round-robin")),
}


@pytest.mark.deep
@pytest.mark.parametrize("word", [word if word == "e-ecmp" else long(word) for word in MODES])
def test_a_mode_steers_ipv6_as_predicted(six: Lab, word: str) -> None:
    """In the gate: one of them here, and each by its program on packets of IPv6 (test_bpf_modes.py)."""
    mode, options = MODES[word]
    set_hashing(six, mode, options)
    try:
        ran(six, qps=4, placement="cyclic")
        proven(six)
    finally:
        set_hashing(six, "flow", HashOptions())


@pytest.mark.deep
def test_three_tiers_and_a_user_defined_pool_are_proven_too(name: str) -> None:
    tiers = ["racks=2", "ctsw=2", "zones=2", "atsw=2", "hosts_per_rack=1", "nics_per_host=2"]
    overrides = ["family=ipv6", "routing.ecmp=e-ecmp", "addressing.pool=fd12:3456:789a::/48", *tiers]
    lab = life.up(load_fabric("tiny", name=name, overrides=overrides)).lab
    prove(lab, qps=16)
    used = {proof.measured[0] for proof in paths_of(lab).flows if len(proof.measured) > 1}
    switches = [node for node in lab.fabric.switches if node.level == 1]
    assert len(used) > len(switches), "more than one uplink of some RTSW is used"
    assert failed(lab) == {}
