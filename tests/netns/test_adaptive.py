"""Mode `adaptive`: the first packet of a burst takes the live way whose queue for its class is least deep."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest

from heddle.kernel.fib import port_names
from heddle.kernel.libbpf import Program
from heddle.kernel.namespace import inside
from heddle.kernel.testrun import run_on
from heddle.switch.hashing.hashing import pin_dir
from heddle.switch.queues.cells import LabQueues
from heddle.switch.queues.portids import row
from heddle.traffic.flow import Flow
from tests.marks import deep
from tests.netns.static_fabric import StaticLab, noticing_fabric, roce_frame, send, some_flows, static_fabric
from tests.netns.test_bpf_modes import UPLINKS, flows_of, link, ports, set_mode, statistics

pytestmark = pytest.mark.root

LONG_NS = 5_000_000_000  # no flow is silent for so long here
DATA = 26 << 2  # class 3
PLAIN = 0  # class 0


@pytest.fixture(scope="module", params=["ipv4", "ipv6"])
def lab(request: pytest.FixtureRequest) -> Iterator[StaticLab]:
    with noticing_fabric(request.param) as made:
        yield made


@pytest.fixture
def queues(lab: StaticLab) -> Iterator[LabQueues]:
    with LabQueues.pinned(lab.fabric) as mapped:
        yield mapped
        depths(lab, mapped, {})


def depths(lab: StaticLab, queues: LabQueues, by_class: Mapping[int, Sequence[int]]) -> None:
    """Let so many bytes of each class seem to wait at the four uplinks of rtsw1."""
    for number in range(8):
        for port, depth in zip(UPLINKS, by_class.get(number, (0, 0, 0, 0)), strict=True):
            queues.cells["depth"][row(queues.ids["rtsw1", port], number)] = depth


def frames_of(lab: StaticLab, qpns: Sequence[int], tos: int = DATA, flow: Flow | None = None) -> list[bytes]:
    mac = lab.fabric.by_name["rtsw1"].port("eth5").mac
    made = []
    for qpn in qpns:
        frame = roce_frame(replace(flow or flows_of(lab, 1)[0], qpn=qpn), 200, "02:00:00:00:00:09", mac)
        if lab.fabric.policy.ip_version == 6:
            made.append(frame[:14] + bytes((0x60 | tos >> 4, tos << 4 & 0xF0)) + frame[16:])
        else:
            made.append(frame[:15] + bytes((tos,)) + frame[16:])
    return made


def test_new_bursts_take_the_path_with_the_shortest_queue_of_their_class(lab: StaticLab, queues: LabQueues) -> None:
    set_mode(lab, "adaptive", gap_ns=LONG_NS)
    for turn, best in enumerate(UPLINKS):
        other = UPLINKS[(turn + 1) % 4]
        depths(
            lab, queues,
            {3: [1000 if port == best else 1001 + 500 * n for n, port in enumerate(UPLINKS)],
             0: [0 if port == other else 90_000 for port in UPLINKS]},
        )  # fmt: skip
        qpns = range(1000 * turn, 1000 * turn + 20)
        assert set(ports(lab, frames_of(lab, qpns))) == {best}
        assert set(ports(lab, frames_of(lab, [qpn + 500 for qpn in qpns], PLAIN))) == {other}


def test_paths_of_equal_depth_share_new_bursts(lab: StaticLab, queues: LabQueues) -> None:
    set_mode(lab, "adaptive", gap_ns=LONG_NS)
    depths(lab, queues, {3: (4000, 4000, 9000, 4000)})
    found = Counter(ports(lab, frames_of(lab, range(300))))
    assert set(found) == {"eth1", "eth2", "eth4"} and min(found.values()) > 60  # 100 each on average


def test_a_burst_keeps_its_path_and_the_next_one_compares_queues_again(lab: StaticLab, queues: LabQueues) -> None:
    set_mode(lab, "adaptive", gap_ns=300_000_000)
    (frame,) = frames_of(lab, [7])
    before = statistics(lab)
    depths(lab, queues, {3: (0, 5000, 5000, 5000)})
    assert set(ports(lab, [frame] * 20)) == {"eth1"}
    depths(lab, queues, {3: (5000, 5000, 5000, 0)})
    assert set(ports(lab, [frame] * 20)) == {"eth1"}
    time.sleep(0.35)
    assert set(ports(lab, [frame] * 20)) == {"eth4"}
    assert statistics(lab) - before == {"steered": 60, "repicks": 1}


def test_a_dead_next_hop_is_not_chosen_even_with_an_empty_queue(lab: StaticLab, queues: LabQueues) -> None:
    set_mode(lab, "adaptive", gap_ns=LONG_NS)
    depths(lab, queues, {3: (6000, 0, 6000, 5000)})
    (frame,) = frames_of(lab, [1])
    assert ports(lab, [frame]) == ["eth2"]
    try:
        link(lab, "down")
        assert ports(lab, [frame]) == [None]  # this one goes by hash
        assert set(ports(lab, [frame] * 5)) == {"eth4"}
        assert set(ports(lab, frames_of(lab, range(10, 30)))) == {"eth4"}
    finally:
        link(lab, "up")


def test_every_port_of_every_switch_is_read_under_its_own_number() -> None:
    """rtsw2's ports are not rtsw1's, though their interfaces may have the same indexes."""
    with (
        static_fabric("adaptive", weights=(1, 1), racks=2, hosts_per_rack=1) as made,
        LabQueues.pinned(made.fabric) as mapped,
    ):
        for port, depth in (("eth1", 9000), ("eth2", 0)):
            mapped.cells["depth"][row(mapped.ids["rtsw1", port], 0)] = depth
            mapped.cells["depth"][row(mapped.ids["rtsw2", port], 0)] = 9000 - depth
        for switch, best in (("rtsw1", "eth2"), ("rtsw2", "eth1")):
            flow = next(flow for flow in some_flows(made.fabric, 40) if flow.first_hop == f"{switch}:eth3")
            frame = roce_frame(flow, 64, "02:00:00:00:00:09", made.fabric.by_name[switch].port("eth3").mac)
            names = port_names(made.handle(switch))
            (index,) = (number for number, name in names.items() if name == "eth3")
            with inside(made.handle(switch).netns), Program.pinned(pin_dir(made.name, switch) / "hash") as program:
                assert names[run_on(program, frame, ifindex=index).cb[1]] == best


@pytest.mark.parametrize("mode", ["adaptive", deep("flowlet")])
def test_bursts_avoid_a_slow_path_by_depth_but_not_by_hash(mode: str) -> None:
    """One of two uplinks has a tenth of the rate. What is steered is charged to where it came in, as what is routed."""
    link_rates = {"host": "40mbit", "fabric": "40mbit", "exceptions": {"rtsw1:eth1": "4mbit"}}
    routing = {"ecmp": mode, "hash": {"gap": "5s"}}
    with (
        static_fabric(mode, weights=(1, 1), racks=2, hosts_per_rack=1, link=link_rates, routing=routing) as made,
        LabQueues.pinned(made.fabric) as mapped,
    ):
        flow = next(flow for flow in some_flows(made.fabric, 40) if flow.src == "host1")
        send(made, {replace(flow, qpn=qpn): 8 for qpn in range(80)}, payload=1000)
        slow, fast = (mapped.cells[row(mapped.ids["rtsw1", port], 0)] for port in ("eth1", "eth2"))
        share = int(slow["in_packets"]) / (int(slow["in_packets"]) + int(fast["in_packets"]))
        came_in = mapped.ingress["high_water"][row(mapped.ids["rtsw1", "eth3"], 0)]
        assert (share < 0.3) if mode == "adaptive" else (share > 0.3), share
        assert came_in >= slow["high_water"] * 0.8 > 0
