"""A fabric of family ipv6, from routes to the proof of every path: the same verbs, and no IPv4 in it anywhere."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest

from heddle.base.events import Silent
from heddle.base.process import run as run_command
from heddle.checks.validate import validate
from heddle.endpoints.nic.nic import announce
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.policy import HashOptions, Udf
from heddle.kernel.fib import read_fib
from heddle.kernel.namespace import inside
from heddle.lab import lifecycle as life
from heddle.lab.capture import Bounds, capture
from heddle.lab.lab import Lab
from heddle.lab.outages import link_down
from heddle.lab.rehash import set_exact, set_hashing
from heddle.lab.tapped import find_ports
from heddle.runs.results import RunResult
from heddle.runs.run import run
from heddle.runs.store import paths_of
from heddle.traffic.options import RunOptions
from heddle.views.pathstext import paths_text
from heddle.wire import roce
from heddle.wire.pcapng import Frame
from tests.conftest import Up
from tests.machine import patience


@pytest.fixture(scope="module")
def six(lab_name: Callable[[], str], up: Up) -> Iterator[Lab]:
    """The preset tiny in IPv6, in this module's runtime."""
    name = lab_name()
    try:
        yield up(name, "family=ipv6").lab
    finally:
        life.down(name)


def all_reduce(lab: Lab, **options: object) -> RunResult:
    defaults: dict[str, object] = {"sizes": (1 << 18,), "iters": 2, "warmup": 1, "qps": 4}
    return run(lab, RunOptions(**{**defaults, **options}), Silent())  # type: ignore[arg-type]


def proven(lab: Lab, result: RunResult) -> bool:
    """Whether the sums are right and prediction, oracle and counters say one thing of every QP."""
    paths = paths_of(lab)
    assert (result.wrong, result.icrc_errors, result.stray) == (0, 0, 0)
    assert paths.agree, paths_text(paths)
    assert all(proof.predicted == proof.oracle == proof.measured for proof in paths.flows)
    return len(paths.flows) == len(result.flows) > 0


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
    end = time.monotonic() + patience(60)
    while not known() and time.monotonic() < end:
        time.sleep(0.05)
    assert known() == [nic.mac]


@pytest.mark.containers
def test_sums_are_right_and_every_path_is_proven(six: Lab) -> None:
    assert proven(six, all_reduce(six))
    assert proven(six, all_reduce(six, qps=16, placement="cyclic"))


@pytest.mark.needs("tcpdump")
def test_packets_at_a_port_are_roce_over_ipv6_with_a_right_icrc(six: Lab) -> None:
    frames: list[Frame] = []
    port = six.fabric.by_name["host1"].ports[0].peer_ref
    began: list[bool] = []

    def stop() -> bool:
        if not began:
            began.append(True)
            all_reduce(six, sizes=(1 << 16,), qps=1)
        return False

    done = capture(
        find_ports(six, port), "udp dst port 4791", Bounds(20, patience(20)), frames.extend, whole=True, stop=stop
    )
    assert done.packets == 20
    for frame in frames:
        assert frame.data[12:14] == b"\x86\xdd"
        assert roce.icrc_ok(frame.data)  # after a hop at the least: the hop limit is not what it was
        assert int.from_bytes(frame.data[14:18], "big") & 0xFFFFF == 0, "the flow label"
    assert {frame.data[21] for frame in frames} <= {64, 63, 62, 61}


@pytest.mark.deep
def test_a_lost_uplink_is_routed_around_and_comes_back(six: Lab) -> None:
    with link_down(six, "rtsw1:eth1"):
        hops = read_fib(six.handle("rtsw1"), 6).lookup(int(six.fabric.by_name["host3"].ports[0].address.ip))  # type: ignore[union-attr]
        assert [hop.port for hop in hops if not hop.dead] == ["eth2"]
        assert proven(six, all_reduce(six))
    assert [check.name for check in validate(six) if not check.ok] == []


@pytest.mark.deep
def test_repair_gives_a_host_its_addresses_and_routes_back(six: Lab) -> None:
    before = six.output("host1", ["ip", "-6", "route"])
    with inside(six.handle("host1").netns):
        run_command(["ip", "link", "set", "eth1", "down"])
    done = life.repair_lab(six.name)
    assert done.repaired is not None and done.repaired.done == ("host1:eth1: link set up",)
    assert sorted(six.output("host1", ["ip", "-6", "route"]).split("\n")) == sorted(before.split("\n"))
    assert [check.name for check in validate(six) if not check.ok] == []


MODES = {
    "flow over addresses": ("flow", HashOptions(fields=0x3)),  # policy 3, whose hash no question tells
    "flow by l3": ("flow", HashOptions(policy="l3")),
    "flow, resilient": ("flow", HashOptions(resilient=True)),
    "e-ecmp": ("e-ecmp", HashOptions()),
    "e-ecmp by source port": ("e-ecmp", HashOptions(udf=Udf("l4", 0, 2))),
    "pinned": ("pinned", HashOptions()),
    "spray": ("spray", HashOptions(choice="round-robin")),
}


def test_a_destination_queue_pair_steers_ipv6_as_predicted(six: Lab) -> None:
    steered(six, "e-ecmp")


@pytest.mark.deep
def test_every_other_mode_steers_ipv6_as_predicted(six: Lab) -> None:
    steered(six, *(word for word in MODES if word != "e-ecmp"))


def steered(six: Lab, *words: str) -> None:
    """Sums are right and paths are as predicted in each of these modes, and the lab is as before after them."""
    try:
        for word in words:
            mode, options = MODES[word]
            set_hashing(six, mode, options)
            result = all_reduce(six, placement="cyclic")
            paths = paths_of(six)
            assert (result.wrong, paths.agree) == (0, True), f"{word}: {paths_text(paths)}"
    finally:
        set_hashing(six, "flow", HashOptions())
    assert [check.name for check in validate(six) if not check.ok] == []


@pytest.mark.deep
def test_an_exact_match_on_an_ipv6_prefix_sends_a_flow_over_another_path(six: Lab) -> None:
    try:
        set_hashing(six, "exact-match", HashOptions())
        all_reduce(six, placement="cyclic")
        proof = next(each for each in paths_of(six).flows if each.measured[0].startswith("rtsw1:eth1"))
        other = {(proof.flow.sport, six.fabric.by_name["rtsw2"].prefix): "eth2"}
        set_exact(six, "rtsw1", other)  # type: ignore[arg-type]
        result = all_reduce(six, placement="cyclic")
        now = next(each for each in paths_of(six).flows if each.flow == proof.flow)
        assert now.measured[0] == "rtsw1:eth2"
        assert proven(six, result)
    finally:
        set_hashing(six, "flow", HashOptions())


@pytest.mark.deep
def test_three_tiers_and_a_user_defined_pool_are_proven_too(name: str) -> None:
    tiers = ["racks=2", "ctsw=2", "zones=2", "atsw=2", "hosts_per_rack=1", "nics_per_host=2"]
    overrides = ["family=ipv6", "routing.ecmp=e-ecmp", "addressing.pool=fd12:3456:789a::/48", *tiers]
    lab = life.up(load_fabric("tiny", name=name, overrides=overrides)).lab
    assert proven(lab, all_reduce(lab, qps=16))
    used = {proof.measured[0] for proof in paths_of(lab).flows if len(proof.measured) > 1}
    switches = [node for node in lab.fabric.switches if node.level == 1]
    assert len(used) > len(switches), "more than one uplink of some RTSW is used"
    assert [check.name for check in validate(lab) if not check.ok] == []
