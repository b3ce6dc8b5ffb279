"""Two networks that run: hosts reach each other in both, and no packet of one passes a port of the other."""

from __future__ import annotations

import socket

import pytest

from heddle.base.events import Silent
from heddle.fabric.wiring import BACKEND, FRONTEND
from heddle.kernel.namespace import inside
from heddle.lab.lab import Lab
from heddle.lab.outages import clear_faults, link_down, set_fault
from heddle.runs.store import History
from heddle.spec.impairments import LinkFault
from heddle_plugins.engineering.diagnosis.diagnosis import diagnose
from tests.conftest import Borrow
from tests.netns.collectives import proven, ran
from tests.netns.live import failed, in_node

SMALL = ("racks=2", "ctsw=2", "frontend.storage=1", "frontend.preprocess=1")


@pytest.fixture(scope="module")
def lab(borrow: Borrow, runtime: str) -> Lab:
    """Two racks; RSWs of trainers, of storage and of preprocessing below two FSWs."""
    return borrow("frontend", *SMALL, runtime=runtime)


def sent(lab: Lab, host: str, address: str) -> None:
    """One datagram."""
    with inside(lab.handle(host).netns), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.sendto(bytes(100), (address, 9))


def test_both_networks_work_and_a_run_uses_the_ports_of_its_own(lab: Lab) -> None:
    assert failed(lab) == {}
    ran(lab, collective="all-to-all", algorithm="", sizes=(1 << 14,), iters=1, warmup=0)
    apart = proven(lab).separation
    assert apart is not None and apart.crossings == () and apart.ports == {BACKEND: 12, FRONTEND: 24 - 2}
    storage, trainer = lab.fabric.servers("storage")[0].name, lab.fabric.ends(FRONTEND)["host1"][0]
    assert trainer.address is not None
    with link_down(lab, "rsw1:eth1"):
        in_node(lab, storage, f"ping -c 1 -W 2 {trainer.address.ip}")
        assert failed(lab, {"links", "routes", "reachability"}).keys() == {"links", "routes"}
        ran(lab, collective="all-to-all", algorithm="", sizes=(1 << 14,), iters=1, warmup=0)
        proven(lab)


def test_a_packet_of_the_other_network_and_a_route_to_it_are_named(lab: Lab) -> None:
    there = "172.16.0.3"  # host2's address in the front-end
    sent(lab, "host1", there)
    assert failed(lab, {"separation"}) == {}
    in_node(lab, "host1", f"ip route add {there}/32 via 10.0.0.0 dev eth1")
    try:
        sent(lab, "host1", there)
        assert failed(lab, {"separation"}) == {
            "separation": f"host1 sends to {there}/32 (frontend) by eth1, a port of backend"
        }
        in_node(lab, "rtsw1", f"ip route add {there}/32 via 10.0.0.3 dev eth4")
        sent(lab, "host1", there)
        found = failed(lab, {"separation"})["separation"]
        assert f"rtsw1:eth4 (backend) sent 1 packets, 142 bytes, from 10.0.0.1 to {there}" in found
    finally:
        in_node(lab, "host1", f"ip route del {there}/32")
        in_node(lab, "rtsw1", f"ip route del {there}/32")


def test_uplinks_are_those_of_the_network_that_a_run_uses(lab: Lab) -> None:
    ran(lab, transport="tcp", network=FRONTEND, collective="restore", algorithm="", sizes=(1 << 18,), iters=1, warmup=0)
    front = proven(lab).uplinks
    assert {each.partition(":")[0][:3] for each in front.switches} == {"rsw"}
    assert front.left_out == 2  # of the RSW of preprocessing
    ran(lab, collective="all-to-all", algorithm="", sizes=(1 << 14,), iters=1, warmup=0)
    assert proven(lab).uplinks.switches == ("rtsw1", "rtsw2")


def test_a_fault_in_the_network_that_a_run_did_not_use_is_found_by_probes(lab: Lab) -> None:
    run = ran(lab, ranks=2, sizes=(1 << 14,))
    before = diagnose(History.of(lab).open(run.id), lab, Silent())
    assert "link-lossy" not in [each.cause for each in before.findings]
    set_fault(lab, ["rsw1:eth1"], LinkFault(loss=1 / 8))
    try:
        found = diagnose(History.of(lab).open(run.id), lab, Silent()).verdict
        assert found is not None and (found.cause, found.object) == ("link-lossy", "rsw1:eth1")
    finally:
        clear_faults(lab)
