"""Hashing that changes under load loses and misleads no packet; other traffic goes by the kernel's own hash."""

from __future__ import annotations

import re
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from heddle.base.problems import MachineError
from heddle.base.process import run
from heddle.fabric.hashmodes import MODES
from heddle.kernel import grace
from heddle.kernel.libbpf import Map
from heddle.kernel.namespace import inside
from heddle.predict.forwarding import FlowArrays
from heddle.predict.hashes import e_ecmp_hash
from heddle.spec.routingpolicy import HashOptions, Udf
from heddle.switch.counters import read_counters
from heddle.switch.hashing import hashing
from heddle.switch.hashing.hashing import SwitchHashing, hashing_of, pin_dir
from heddle.switch.hashing.maps import Exact
from heddle.traffic.flow import Flow
from tests.machine import meanwhile, until
from tests.marks import deep
from tests.netns.sockets import ETH_P_ALL, packet_socket, waiting
from tests.netns.static_fabric import StaticLab, address, dropping, roce_frame, some_flows, static_fabric
from tests.readings import read_hashing

UPLINKS = ("eth1", "eth2", "eth3", "eth4")
WIRE = {"host": "1gbit", "fabric": "1gbit"}
SWAPS = 1000


@pytest.fixture(scope="module")
def lab() -> Iterator[StaticLab]:
    """IPv4, and what a host sends fits through any one port.

    Each mode: test_bpf_modes.py its program, test_paths_modes.py real packets, test_ipv6.py a live fabric of IPv6.
    """
    with static_fabric("flow", hosts_per_rack=4, link=WIRE, queues=dropping("32MB")) as made:
        yield made


def row_of(lab: StaticLab, mode: str, exact: Exact | None = None, **options: Any) -> SwitchHashing:
    row = hashing_of(lab.fabric, lab.fabric.by_name["rtsw1"], mode, HashOptions(**options))
    return replace(row, steering=replace(row.steering, exact=exact or {}))


def set_hashing_of(lab: StaticLab, row: SwitchHashing) -> None:
    hashing.change(lab.name, [(lab.handle("rtsw1"), row)], lab.fabric.policy.ip_version)


def flows_of(lab: StaticLab, count: int) -> list[Flow]:
    """Flows from host1 to the hosts of the other rack, in turn."""
    mine = [flow for flow in some_flows(lab.fabric, 8 * count) if flow.src == "host1"]
    rack = [host for host in lab.fabric.hosts if host.group("rack") == 2]
    ends = [rack[i % len(rack)] for i in range(count)]
    return [replace(flow, dst=end.name, dst_ip=address(end)) for flow, end in zip(mine, ends, strict=False)]


@contextmanager
def counted(lab: StaticLab, sent: Callable[[], int]) -> Iterator[dict[str, Counter[Flow | str]]]:
    """Port of rtsw1 -> flow -> packets, filled in when all that was sent has arrived; `arrived` has how many did."""
    before, taken = read_counters(lab.fabric)["rtsw1"], arrived(lab)
    found: dict[str, Counter[Flow | str]] = {port: Counter() for port in UPLINKS}
    yield found
    with suppress(AssertionError):  # the test says what is missing
        until(lambda: arrived(lab) - taken >= sent(), every=0.01)
    for row in read_counters(lab.fabric)["rtsw1"].since(before).flows:
        found[row.port][f"{row.src} {row.dst} {row.qpn}"] += row.packets
    found["arrived"] = Counter({"": arrived(lab) - taken})


def arrived(lab: StaticLab) -> int:
    with Map.pinned(pin_dir(lab.name, "_hosts") / "taken", 4, 16) as cells:
        packets, _ = struct.unpack("=2Q", cells.lookup(bytes(4)) or bytes(16))
    return int(packets)


def key(flow: Flow) -> str:
    return f"{flow.src_ip} {flow.dst_ip} {flow.qpn}"


def totals(found: dict[str, Counter[Flow | str]]) -> list[int]:
    return [sum(found[port].values()) for port in UPLINKS]


def ways(found: dict[str, Counter[Flow | str]], flow: Flow) -> set[str]:
    return {port for port in UPLINKS if found[port][key(flow)]}


def test_a_kernel_that_cannot_say_when_packets_have_passed_is_named_and_nothing_changes(
    lab: StaticLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_hashing_of(lab, row_of(lab, "pinned"))
    before = read_hashing(lab.name, lab.handle("rtsw1"))
    monkeypatch.setattr(grace, "_MEMBARRIER", dict.fromkeys(grace._MEMBARRIER, 10_000))  # no such system call
    with pytest.raises(MachineError, match="membarrier Function not implemented: a switch cannot be changed"):
        set_hashing_of(lab, row_of(lab, "spray"))
    assert read_hashing(lab.name, lab.handle("rtsw1")) == before


def test_a_port_that_is_gone_is_named_and_nothing_changes(lab: StaticLab) -> None:
    set_hashing_of(lab, row_of(lab, "pinned"))
    before = read_hashing(lab.name, lab.handle("rtsw1"))
    row = row_of(lab, "spray")
    gone = replace(row, steering=replace(row.steering, groups=(("eth1", "eth99"),), slots=(("eth1", "eth99"),)))
    with pytest.raises(MachineError, match="eth99 is missing: it was removed"):
        set_hashing_of(lab, gone)
    assert read_hashing(lab.name, lab.handle("rtsw1")) == before


def test_a_switch_set_up_by_another_version_is_reported(lab: StaticLab) -> None:
    active = pin_dir(lab.name, "rtsw1") / "active"
    active.rename(active.with_name("config"))  # what versions without live hashing had
    try:
        with pytest.raises(MachineError, match="made by another version of Heddle, or removed"):
            set_hashing_of(lab, row_of(lab, "pinned"))
    finally:
        active.with_name("config").rename(active)
    set_hashing_of(lab, row_of(lab, "pinned"))


class Load:
    """Frames of some flows, from their hosts' wire, in a with block; `sent` counts those that the port took."""

    def __init__(self, lab: StaticLab, flows: Sequence[Flow]) -> None:
        self.sent = 0
        host = lab.fabric.by_name["host1"].ports[0]
        gateway = lab.fabric.by_name[host.peer_node].port(host.peer_port)
        self._frames = [roce_frame(flow, 64, host.mac, gateway.mac) for flow in flows]
        self._stack, self._wire = ExitStack(), packet_socket(lab.handle("host1").netns, host.name)

    def _put(self) -> None:
        for frame in self._frames:
            with suppress(OSError):  # ENOBUFS: the host's own queue is full, before any switch
                self._wire.send(frame)
                self.sent += 1

    def __enter__(self) -> Load:
        self._stack.enter_context(self._wire)
        self._stack.enter_context(meanwhile(self._put, 0.0005))
        return self

    def __exit__(self, *args: object) -> None:
        self._stack.close()


@pytest.mark.deep
@pytest.mark.long
def test_a_table_swap_is_atomic(lab: StaticLab) -> None:
    """1,000 swaps under load: every packet of every flow is on one of the two ports that a whole state names.

    One state is a table and a rule of hashing, the other an empty table and another rule. The empty table under the
    first rule, which no packet may meet, would send each of these flows to a third port.
    """
    row = row_of(lab, "exact-match")
    other_row = row_of(lab, "exact-match", udf=Udf("l4", 0, 2))
    prefix = next(iter(row.steering.prefixes))
    both = [replace(flow, sport=50_000 + i, qpn=i) for i, flow in enumerate(flows_of(lab, 256))]
    wrong, hashed = (
        [UPLINKS[v >> 30] for v in e_ecmp_hash(FlowArrays.of(both), row.seed, each.options.udf).tolist()]
        for each in (row, other_row)
    )
    flows = [flow for flow, one, other in zip(both, wrong, hashed, strict=True) if one != other][:16]
    home = {flow: (one, other) for flow, one, other in zip(both, wrong, hashed, strict=True)}
    named = {flow: next(port for port in UPLINKS if port not in home[flow]) for flow in flows}
    table = row_of(lab, "exact-match", {(flow.sport, prefix): (port,) for flow, port in named.items()})
    states = [table, other_row]
    set_hashing_of(lab, states[1])
    with counted(lab, lambda: load.sent) as found, Load(lab, flows) as load:
        for swap in range(SWAPS):
            set_hashing_of(lab, states[swap % 2])
    assert load.sent > SWAPS
    assert found["arrived"][""] == sum(totals(found)) == load.sent
    assert [ways(found, flow) for flow in flows] == [{named[flow], home[flow][1]} for flow in flows]


@pytest.mark.deep
def test_the_change_of_every_mode_to_every_other_under_load_loses_nothing(lab: StaticLab) -> None:
    flows = flows_of(lab, 16)
    kinds = [row_of(lab, mode, resilient=False) for mode in MODES]
    kinds += [
        row_of(lab, "flow", policy="l3"),
        row_of(lab, "flow", policy="l4"),
        row_of(lab, "e-ecmp", resilient=True),
    ]
    kinds += [row_of(lab, "flowlet", first="load"), row_of(lab, "spray", choice="round-robin")]
    with counted(lab, lambda: load.sent) as found, Load(lab, flows) as load:
        for one in kinds:
            for other in kinds:
                set_hashing_of(lab, one)
                set_hashing_of(lab, other)
    assert load.sent > 1000
    assert found["arrived"][""] == sum(totals(found)) == load.sent
    assert set(found) == {*UPLINKS, "arrived"}


PORT, FLOWS = 9, 32
OUTGOING = 4


@pytest.mark.parametrize("mode", ["e-ecmp", deep("flow")])
def test_connected_udp_goes_where_the_kernel_says_for_its_5_tuple(mode: str) -> None:
    options = HashOptions(policy="l4") if mode == "flow" else HashOptions()
    with static_fabric("flow") as lab, ExitStack() as stack:
        row = hashing_of(lab.fabric, lab.fabric.by_name["rtsw1"], mode, options)
        hashing.change(lab.name, [(lab.handle("rtsw1"), row)])
        here = next(host for host in lab.fabric.hosts if host.group("rack") == 1)
        there = next(host for host in lab.fabric.hosts if host.group("rack") == 2).ports[0].address
        own = here.ports[0].address
        assert own is not None and there is not None
        netns = lab.handle("rtsw1").netns
        ears = {port: stack.enter_context(packet_socket(netns, port, ETH_P_ALL, seconds=0)) for port in UPLINKS}
        sports = []
        with inside(lab.handle(here.name).netns):
            for _ in range(FLOWS):
                sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                sender.connect((str(there.ip), PORT))  # gives the socket a random sk_txhash
                sender.send(b"no RoCEv2")
                sports.append(sender.getsockname()[1])
        asked = [
            "ip", "-n", lab.handle("rtsw1").netns.name, "route", "get", str(there.ip), "from", str(own.ip),
            "iif", here.ports[0].peer_port, "ipproto", "17", "dport", str(PORT), "sport",
        ]  # fmt: skip
        said = {sport: re.findall(r"dev (eth\d)", run([*asked, str(sport)]).out)[0] for sport in sports}
        left: dict[int, str] = {}

        def all_left() -> bool:
            left.update(_left(ears))
            return len(left) == FLOWS

        until(all_left, 10)
        assert left == said and len(set(said.values())) > 1


def _left(ears: dict[str, socket.socket]) -> dict[int, str]:
    """UDP source port -> the port that a packet to PORT left by."""
    return {
        int.from_bytes(frame[34:36], "big"): port
        for port, ear in ears.items()
        for frame, origin in waiting(ear)
        if origin[2] == OUTGOING and frame[12:14] == b"\x08\x00" and frame[36:38] == PORT.to_bytes(2, "big")
    }
