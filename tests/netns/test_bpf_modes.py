"""Every hashing mode of the program `hash` by BPF_PROG_TEST_RUN, on a switch with real routes: no packet is sent."""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from ipaddress import ip_network
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from heddle.base.process import run
from heddle.kernel.fib import port_names
from heddle.kernel.libbpf import Program, TestRun, run_on
from heddle.kernel.namespace import inside
from heddle.predict.forwarding import FlowArrays
from heddle.predict.hashes import e_ecmp_hash, jhash2
from heddle.spec.routingpolicy import HashOptions, Udf
from heddle.switch.hashing import hashing
from heddle.switch.hashing.hashing import hashing_of, pin_dir
from heddle.switch.hashing.maps import Exact, Tables
from heddle.traffic.flow import Flow
from tests.machine import until
from tests.netns.sockets import packet_socket
from tests.netns.static_fabric import (
    GATEWAY,
    GATEWAY6,
    StaticLab,
    noticing_fabric,
    roce_frame,
    some_flows,
    static_fabric,
)

UNSPEC, REDIRECT = 0xFFFFFFFF, 7
UPLINKS = ("eth1", "eth2", "eth3", "eth4")


@pytest.fixture(scope="module", params=["ipv4", "ipv6"])
def lab(request: pytest.FixtureRequest) -> Iterator[StaticLab]:
    with noticing_fabric(request.param) as made:
        yield made


def set_mode(lab: StaticLab, mode: str, exact: Exact | None = None, **options: Any) -> int:
    """Set the mode of rtsw1; returns its hash seed."""
    row = hashing_of(lab.fabric, lab.fabric.by_name["rtsw1"], mode, HashOptions(**options))
    row = replace(row, steering=replace(row.steering, exact=exact or {}))
    hashing.change(lab.name, [(lab.handle("rtsw1"), row)], lab.fabric.policy.ip_version)
    return row.seed


def frame_of(lab: StaticLab, flow: Flow, payload: int = 64) -> bytes:
    return roce_frame(flow, payload, dst_mac=lab.fabric.by_name["rtsw1"].port("eth5").mac, src_mac="02:00:00:00:00:09")


def runs(lab: StaticLab, frames: Sequence[bytes], *, counted: bool = True) -> list[TestRun]:
    """What the program of rtsw1 does with frames that come in by eth5; counted: in its statistics."""
    handle = lab.handle("rtsw1")
    (ifindex,) = (index for index, name in port_names(handle).items() if name == "eth5")
    with inside(handle.netns), Program.pinned(pin_dir(lab.name, "rtsw1") / "hash") as program:
        return [run_on(program, frame, ifindex=ifindex, counted=counted) for frame in frames]


def ports(lab: StaticLab, frames: Sequence[bytes]) -> list[str | None]:
    """The port that each frame is steered to, or None."""
    names = port_names(lab.handle("rtsw1"))
    found = runs(lab, frames)
    assert all((run.retval == REDIRECT) == (run.cb[1] != 0) for run in found)
    return [names.get(run.cb[1]) for run in found]


def flows_of(lab: StaticLab, count: int) -> list[Flow]:
    return [flow for flow in some_flows(lab.fabric, 4 * count) if flow.first_hop.startswith("rtsw1:")][:count]


def values(lab: StaticLab, flows: Sequence[Flow], seed: int, udf: Udf | None = None) -> list[int]:
    hashed: list[int] = e_ecmp_hash(FlowArrays.of(list(flows)), seed, udf).tolist()
    return hashed


def link(lab: StaticLab, state: str, name: str = "eth2") -> None:
    """Set the far end of a port of rtsw1 up or down, and wait until routes know: the kernel tells them later."""
    port = lab.fabric.by_name["rtsw1"].port(name)
    lab.ip(port.peer_node, "link", "set", port.peer_port, state)
    (prefix,) = (str(p) for p, ports in lab.fabric.expected_next_hops["rtsw1"].items() if len(ports) == 4)
    show = ["ip", f"-{lab.fabric.policy.ip_version}", "-n", lab.handle("rtsw1").netns.name, "route", "show", prefix]
    until(lambda: any(f"dev {name} " in line and "linkdown" in line for line in run(show).out.splitlines())
          == (state == "down"))  # fmt: skip


def statistics(lab: StaticLab) -> Counter[str]:
    with Tables.pinned(pin_dir(lab.name, "rtsw1")) as tables:
        return Counter(tables.statistics())


@pytest.mark.parametrize("udf", [None, Udf("bth", 7, 1), Udf("l4", 0, 2), Udf("l3", 12, 4)])
def test_e_ecmp_gives_the_hash_that_is_predicted(lab: StaticLab, udf: Udf | None) -> None:
    seed = set_mode(lab, "e-ecmp", udf=udf or Udf())
    flows = flows_of(lab, 200)
    found = runs(lab, [frame_of(lab, flow) for flow in flows])
    assert [run.cb[0] for run in found] == values(lab, flows, seed, udf)
    assert {(run.retval, run.cb[1]) for run in found} == {(UNSPEC, 0)}


def test_a_field_beyond_the_packets_end_is_zero(lab: StaticLab) -> None:
    seed = set_mode(lab, "e-ecmp", udf=Udf("bth", 120, 4))
    (flow,) = flows_of(lab, 1)
    near, far = runs(lab, [frame_of(lab, flow, payload=8), frame_of(lab, flow, payload=200)])
    nothing = values(lab, [replace(flow, qpn=0)], seed)
    assert [near.cb[0], far.cb[0]] == 2 * nothing  # the payload is zeros, too


def test_in_mode_flow_the_program_leaves_roce_alone(lab: StaticLab) -> None:
    set_mode(lab, "flow")
    (flow,) = flows_of(lab, 1)
    assert [(r.retval, r.cb[:2]) for r in runs(lab, [frame_of(lab, flow)])] == [(UNSPEC, (0, 0))]


def test_pinned_takes_the_member_that_the_destinations_downlink_says(lab: StaticLab) -> None:
    set_mode(lab, "pinned")
    rack = [host for host in lab.fabric.hosts if host.group("rack") == 2]
    flow = flows_of(lab, 1)[0]
    slices = [replace(flow, dst_ip=str(host.ports[0].address).partition("/")[0]) for host in rack]
    assert ports(lab, [frame_of(lab, f) for f in slices]) == ["eth1", "eth2", "eth3", "eth4", "eth1", "eth2"]


def test_a_steered_packet_leaves_as_the_kernel_would_have_sent_it(lab: StaticLab) -> None:
    set_mode(lab, "pinned")
    flow = flows_of(lab, 1)[0]
    before = frame_of(lab, flow)
    (run,) = runs(lab, [before])
    port = lab.fabric.by_name["rtsw1"].port(port_names(lab.handle("rtsw1"))[run.cb[1]])
    peer = lab.fabric.by_name[port.peer_node].port(port.peer_port)
    assert run.frame[:12] == bytes.fromhex((peer.mac + port.mac).replace(":", ""))
    if lab.fabric.policy.ip_version == 6:
        assert run.frame[21] == 63 and run.frame[12:21] + run.frame[22:] == before[12:21] + before[22:]
        return
    assert run.frame[22] == 63 and run.frame[26:] == before[26:]
    words = struct.unpack("!10H", run.frame[14:34])
    assert sum(words) % 0xFFFF == 0  # the checksum is right: ones' complement sum of the header is all ones


@pytest.mark.parametrize("lab", ["ipv4"], indirect=True)  # IPv6 has no header checksum
@pytest.mark.parametrize("checksum", [0x0000, 0xFEFF, 0xFFFE, 0xFF00, 0x00FF])
def test_the_checksum_follows_the_ttl_over_every_carry(lab: StaticLab, checksum: int) -> None:
    """As ip_decrease_ttl() has it, whatever stands in the field: RFC 1141."""
    set_mode(lab, "pinned")
    frame = bytearray(frame_of(lab, flows_of(lab, 1)[0]))
    frame[24:26] = struct.pack("!H", checksum)
    (run,) = runs(lab, [bytes(frame)])
    little = struct.unpack("<H", struct.pack("!H", checksum))[0] + 1  # htons(0x0100) on a little-endian machine
    assert run.frame[24:26] == struct.pack("<H", (little + (little >= 0xFFFF)) & 0xFFFF)


def test_packets_that_the_kernel_must_handle_are_never_steered(lab: StaticLab) -> None:
    seed = set_mode(lab, "pinned")
    flow = flows_of(lab, 1)[0]
    plain = frame_of(lab, flow)
    six = lab.fabric.policy.ip_version == 6
    ttl = 21 if six else 22
    changed = {
        "TTL 1": plain[:ttl] + b"\x01" + plain[ttl + 1 :],
        "TTL 0": plain[:ttl] + b"\x00" + plain[ttl + 1 :],
        "broadcast": b"\xff" * 6 + plain[6:],
        "multicast": b"\x01\x00\x5e\x00\x00\x01" + plain[6:],
        "another's MAC": b"\x02\x09\x09\x09\x09\x09" + plain[6:],
    }
    if not six:
        changed["IP options"] = roce_frame(
            flow, 64, "02:00:00:00:00:09", lab.fabric.by_name["rtsw1"].port("eth5").mac, 6
        )
    before = statistics(lab)
    found = runs(lab, list(changed.values()))
    assert {name: (run.retval, run.cb[1]) for name, run in zip(changed, found, strict=True)} == dict.fromkeys(
        changed, (UNSPEC, 0)
    )
    assert [run.cb[0] for run in found] == len(changed) * values(lab, [flow], seed)
    assert statistics(lab) - before == {"fell_back": len(changed)}


def test_a_worse_route_by_the_port_is_not_steered_to(lab: StaticLab) -> None:
    """A lookup by port finds the default route where the rack's route does not use the port; the kernel would not."""
    seed = set_mode(lab, "pinned")
    flow = flows_of(lab, 1)[0]
    first, second = ([h for h in lab.fabric.hosts if h.group("rack") == 2][at].ports[0].address for at in (0, 1))
    frames = [frame_of(lab, replace(flow, dst_ip=str(address).partition("/")[0])) for address in (first, second)]
    assert ports(lab, frames) == ["eth1", "eth2"]
    (prefix,) = (str(p) for p, n in lab.fabric.expected_next_hops["rtsw1"].items() if len(n) == 4)
    six = lab.fabric.policy.ip_version == 6
    via = ["via", GATEWAY6 if six else GATEWAY, "dev"]
    hops = {port: ["nexthop", *via, port, "onlink"] for port in UPLINKS}
    default = ["default", "metric", "2048", *via, "eth1", "onlink"]
    lab.ip("rtsw1", "-6" if six else "-4", "route", "add", *default)
    try:
        lab.ip("rtsw1", "route", "replace", prefix, *hops["eth2"], *hops["eth3"])
        assert ports(lab, frames) == [None, "eth2"]
        assert (
            runs(lab, frames[:1])[0].cb[0] == values(lab, [replace(flow, dst_ip=str(first).partition("/")[0])], seed)[0]
        )
    finally:
        lab.ip("rtsw1", "-6" if six else "-4", "route", "del", *default)
        lab.ip("rtsw1", "route", "replace", prefix, *(word for hop in hops.values() for word in hop))
    assert ports(lab, frames) == ["eth1", "eth2"]
    # Nor past a longer prefix that does not use the port; in IPv4 only where its metric differs.
    longer = [str(first).partition("/")[0], *([] if six else ["metric", "2048"])]
    lab.ip("rtsw1", "-6" if six else "-4", "route", "add", *longer, *via, "eth2", "onlink")
    assert ports(lab, frames) == [None, "eth2"]
    lab.ip("rtsw1", "-6" if six else "-4", "route", "del", *longer)
    assert ports(lab, frames) == ["eth1", "eth2"]


def test_a_frame_of_a_vlan_is_not_steered(lab: StaticLab) -> None:
    """The kernel takes the tag off before the program runs; it has no such VLAN, and drops the packet."""
    set_mode(lab, "pinned")
    frame = frame_of(lab, flows_of(lab, 1)[0])
    peer = lab.fabric.by_name["rtsw1"].port("eth5")
    with packet_socket(lab.handle(peer.peer_node).netns, peer.peer_port) as sender:
        counts = []
        for sent in (frame, frame[:12] + b"\x81\x00\x00\x64" + frame[12:]):
            before = statistics(lab)
            sender.send(sent)
            until(lambda: statistics(lab) != before)  # noqa: B023
            counts.append(statistics(lab) - before)
    assert counts == [{"steered": 1}, {"fell_back": 1}]


def test_lookups_are_not_counted_as_packets(lab: StaticLab) -> None:
    frame = frame_of(lab, flows_of(lab, 1)[0])
    for mode in ("pinned", "exact-match"):
        set_mode(lab, mode)
        before = statistics(lab)
        asked, meant = runs(lab, [frame], counted=False), runs(lab, [frame])
        assert [(run.retval, run.cb) for run in asked] == [(run.retval, run.cb) for run in meant]
        assert (statistics(lab) - before).total() == 1


def test_packets_longer_than_the_mtu_are_left_to_the_kernel(lab: StaticLab) -> None:
    set_mode(lab, "pinned")
    flow = flows_of(lab, 1)[0]
    frames = [frame_of(lab, flow, payload=1400 - size) for size in (0, 1)]
    (port,) = set(ports(lab, frames))
    try:
        lab.ip("rtsw1", "link", "set", str(port), "mtu", str(len(frames[1]) - 14))
        assert ports(lab, frames) == [None, port]
    finally:
        lab.ip("rtsw1", "link", "set", str(port), "mtu", "4200")


def test_exact_match_takes_what_the_table_says_and_hashes_the_rest(lab: StaticLab) -> None:
    (prefix,) = (p for p, n in lab.fabric.expected_next_hops["rtsw1"].items() if len(n) == 4)
    exact = {(50001 + at, ip_network(prefix)): row for at, row in enumerate([("eth3",), ("eth1", "eth2")])}
    seed = set_mode(lab, "exact-match", exact)
    flow = flows_of(lab, 1)[0]
    rows = [replace(flow, sport=sport) for sport in (50001, 50002, 50003)]
    before = statistics(lab)
    assert ports(lab, [frame_of(lab, row) for row in rows]) == ["eth3", "eth1", None]
    assert runs(lab, [frame_of(lab, rows[2])])[0].cb[0] == values(lab, rows[2:], seed)[0]
    assert statistics(lab) - before == {"steered": 2, "misses": 2}


def test_a_dead_port_is_replaced_by_its_backup_and_that_by_the_hash(lab: StaticLab) -> None:
    (prefix,) = (p for p, n in lab.fabric.expected_next_hops["rtsw1"].items() if len(n) == 4)
    rows = [("eth5",), ("eth5", "eth2"), ("eth5", "eth6")]  # to hosts: never next hops to the other rack
    set_mode(lab, "exact-match", {(50001 + at, ip_network(prefix)): row for at, row in enumerate(rows)})
    frames = [frame_of(lab, replace(flows_of(lab, 1)[0], sport=50001 + at)) for at in range(3)]
    before = statistics(lab)
    assert ports(lab, frames) == [None, "eth2", None]
    assert statistics(lab) - before == {"steered": 1, "backups": 1, "fell_back": 2}


def test_spray_takes_paths_round_robin_or_at_random(lab: StaticLab) -> None:
    frame = frame_of(lab, flows_of(lab, 1)[0])
    set_mode(lab, "spray", choice="round-robin")
    taken = ports(lab, [frame] * 40)
    assert Counter(taken) == dict.fromkeys(UPLINKS, 10) and all(a != b for a, b in pairwise(taken))
    set_mode(lab, "spray")
    chance = [run.cb[0] for run in runs(lab, [frame] * 400)]
    assert len(set(chance)) > 390
    assert np.bincount([value >> 30 for value in chance], minlength=4).min() > 50


def test_a_flowlet_keeps_its_path_until_a_gap(lab: StaticLab) -> None:
    flow = flows_of(lab, 1)[0]
    frame = frame_of(lab, flow)
    seed = set_mode(lab, "flowlet", gap_ns=500_000_000)  # a busy machine is never silent for so long
    (value,) = values(lab, [flow], seed)
    before = statistics(lab)
    assert {run.cb[0] for run in runs(lab, [frame] * 50)} == {value}
    for number in (1, 2):
        time.sleep(0.55)
        again = int(jhash2(np.array([[value, number]], dtype=np.uint32), seed)[0])
        assert {run.cb[0] for run in runs(lab, [frame] * 50)} == {again}
    assert statistics(lab) - before == {"repicks": 2}


def test_a_flowlet_by_load_takes_the_port_that_carried_least(lab: StaticLab) -> None:
    set_mode(lab, "flowlet", gap_ns=2_000_000_000, first="load")
    flows = [replace(flow, qpn=index) for index, flow in enumerate(flows_of(lab, 16))]
    first = ports(lab, [frame_of(lab, flow, payload=1000) for flow in flows])
    assert Counter(first) == dict.fromkeys(UPLINKS, 4)
    assert ports(lab, [frame_of(lab, flow, payload=1000) for flow in flows]) == first


def test_a_flowlet_by_load_chooses_again_after_a_gap(lab: StaticLab) -> None:
    set_mode(lab, "flowlet", gap_ns=200_000_000, first="load")
    frame = frame_of(lab, flows_of(lab, 1)[0], payload=1000)
    (first,) = set(ports(lab, [frame] * 50))
    time.sleep(0.25)  # one half-life and no more: that port carried most, still
    (second,) = set(ports(lab, [frame] * 10))
    assert second != first


def test_a_flowlet_by_load_leaves_a_dead_port_for_a_live_one(lab: StaticLab) -> None:
    set_mode(lab, "flowlet", gap_ns=5_000_000_000, first="load")
    flow = flows_of(lab, 1)[0]  # many queue pairs of it: enough for every port, whatever one has carried before
    frames = [frame_of(lab, replace(flow, qpn=qpn), payload=1000) for qpn in range(400)]
    frame = frames[ports(lab, frames).index("eth2")]
    try:
        link(lab, "down")
        assert ports(lab, [frame]) == [None]  # this one goes by hash
        (port,) = set(ports(lab, [frame] * 5))
        assert port in UPLINKS and port != "eth2"
    finally:
        link(lab, "up")


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_slices_are_dealt_over_next_hops_whose_number_is_no_power_of_two(family: str) -> None:
    with static_fabric("pinned", weights=(1, 1, 1), racks=3, hosts_per_rack=4, family=family) as made:
        handle = made.handle("rtsw1")
        indexes = {name: index for index, name in port_names(handle).items()}
        flow = next(flow for flow in some_flows(made.fabric, 20) if flow.first_hop == "rtsw1:eth4")
        mac = made.fabric.by_name["rtsw1"].port("eth4").mac
        with inside(handle.netns), Program.pinned(pin_dir(made.name, "rtsw1") / "hash") as program:
            for rack in (2, 3):
                hosts = [
                    str(h.ports[0].address).partition("/")[0] for h in made.fabric.hosts if h.group("rack") == rack
                ]
                sent = [roce_frame(replace(flow, dst_ip=host), 64, "02:00:00:00:00:09", mac) for host in hosts]
                taken = [run_on(program, frame, ifindex=indexes["eth4"]).cb[1] for frame in sent]
                assert taken == [indexes[port] for port in ("eth1", "eth2", "eth3", "eth1")]


def test_bytes_of_long_ago_do_not_count_as_load(lab: StaticLab) -> None:
    set_mode(lab, "flowlet", gap_ns=50_000_000, first="load")
    flow, *others = (replace(each, qpn=index) for index, each in enumerate(flows_of(lab, 5)))
    ports(lab, [frame_of(lab, flow, payload=1000)] * 50)
    time.sleep(1.2)  # 24 half-lives
    assert Counter(ports(lab, [frame_of(lab, each) for each in others])) == dict.fromkeys(UPLINKS, 1)


def test_a_new_rule_forgets_the_flowlets_of_the_previous_one(lab: StaticLab) -> None:
    flow = flows_of(lab, 1)[0]
    seed = set_mode(lab, "flowlet", gap_ns=50_000_000)
    (value,) = values(lab, [flow], seed)
    runs(lab, [frame_of(lab, flow)])
    time.sleep(0.1)
    assert runs(lab, [frame_of(lab, flow)])[0].cb[0] != value
    set_mode(lab, "flowlet", gap_ns=5_000_000_000)
    assert runs(lab, [frame_of(lab, flow)])[0].cb[0] == value


@pytest.mark.parametrize("mode", ["flow", "e-ecmp"])
def test_resilient_hashing_moves_what_used_the_dead_and_nothing_else(lab: StaticLab, mode: str) -> None:
    seed = set_mode(lab, mode, resilient=True)
    flows = flows_of(lab, 100)
    frames = [frame_of(lab, flow) for flow in flows]
    hashed = values(lab, [replace(f, qpn=0) for f in flows] if mode == "flow" else flows, seed)
    weights = [jhash2(np.array([[v, at] for at in range(4)], dtype=np.uint32), seed).tolist() for v in hashed]
    dead: set[str] = set()

    def wanted() -> list[str]:
        live = [at for at, name in enumerate(UPLINKS) if name not in dead]
        homes = [value % 256 % 4 for value in hashed]
        at = [home if home in live else max(live, key=w.__getitem__) for home, w in zip(homes, weights, strict=True)]
        return [UPLINKS[each] for each in at]

    was = ports(lab, frames)
    assert was == wanted()
    try:
        for name, state in (("eth2", "down"), ("eth4", "down"), ("eth2", "up"), ("eth4", "up")):
            link(lab, state, name)
            dead ^= {name}
            now = ports(lab, frames)
            assert now == wanted()
            gone = [was, now][state == "up"]
            assert {g for w, n, g in zip(was, now, gone, strict=True) if w != n} == {name}
            was = now
    finally:
        for name in dead:
            link(lab, "up", name)


def test_a_dead_member_falls_back_to_ecmp_and_comes_back(lab: StaticLab) -> None:
    seed = set_mode(lab, "pinned")
    rack = [host for host in lab.fabric.hosts if host.group("rack") == 2]
    flow = flows_of(lab, 1)[0]
    frames = [frame_of(lab, replace(flow, dst_ip=str(host.ports[0].address).partition("/")[0])) for host in rack[:4]]
    try:
        link(lab, "down")
        assert ports(lab, frames) == ["eth1", None, "eth3", "eth4"]
        second = replace(flow, dst_ip=str(rack[1].ports[0].address).partition("/")[0])
        assert runs(lab, frames[1:2])[0].cb[0] == values(lab, [second], seed)[0]
    finally:
        link(lab, "up")
    assert ports(lab, frames) == list(UPLINKS)
