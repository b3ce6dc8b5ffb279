"""`up` of an edited fabric changes the running lab: what stays loses no packet, and the lab is as the file says."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from heddle.base import state
from heddle.base.problems import CheckError, InputError
from heddle.kernel.fib import read_fib
from heddle.kernel.namespace import inside
from heddle.lab import lifecycle as life
from heddle.lab.lab import Lab
from heddle.lab.opening import open_lab
from heddle.switch.queues.cells import LabQueues
from heddle.switch.queues.classes import policies_of
from heddle_plugins.engineering import labchange
from tests.conftest import Up
from tests.netns.collectives import proven, ran
from tests.netns.live import failed

PORT: Final = 7000
FLOWS: Final = 16
PACE_S: Final = 0.0005
SMALL: Final = ("racks=3", "hosts_per_rack=1")


@pytest.fixture
def changed(lab_name: Callable[[], str], up: Up) -> Iterator[Callable[..., Lab]]:
    """changed("ctsw=3") is `up` of preset tiny with those sizes, of one lab, which goes down with the test."""
    name = lab_name()

    def bring(*overrides: str) -> Lab:
        return up(name, *SMALL, *overrides, change=True).lab

    try:
        yield bring
    finally:
        life.down(name)


class Stream:
    """Numbered UDP packets from one host to another over all spines. lost: valid afterwards."""

    def __init__(self, lab: Lab, source: str, target: str) -> None:
        self.to = str(lab.fabric.by_name[target].ports[0].address.ip)  # type: ignore[union-attr]
        with inside(lab.handle(target).netns):
            self.inlet = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with inside(lab.handle(source).netns):
            self.outlets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(FLOWS)]
        self.inlet.bind((self.to, PORT))
        self.inlet.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self.inlet.settimeout(0.2)
        self.sent, self.got, self.over = 0, set[int](), threading.Event()
        self.threads = [threading.Thread(target=each, daemon=True) for each in (self._send, self._receive)]

    def _send(self) -> None:
        while not self.over.is_set():
            self.outlets[self.sent % FLOWS].sendto(struct.pack("!I", self.sent), (self.to, PORT))
            self.sent += 1
            time.sleep(PACE_S)

    def _receive(self) -> None:
        ended = 0
        while ended < 2:  # the last packets are under way
            try:
                self.got.add(struct.unpack("!I", self.inlet.recv(64))[0])
            except TimeoutError:
                ended += self.over.is_set()

    @property
    def lost(self) -> int:
        return self.sent - len(self.got)


@contextmanager
def streaming(lab: Lab, source: str, target: str) -> Iterator[Stream]:
    found = Stream(lab, source, target)
    for thread in found.threads:
        thread.start()
    time.sleep(0.2)
    try:
        yield found
    finally:
        time.sleep(0.2)
        found.over.set()
        for thread in found.threads:
            thread.join()
        for each in (found.inlet, *found.outlets):
            each.close()


def routes(lab: Lab) -> dict[str, dict[str, set[str]]]:
    """Switch -> prefix -> the nodes that are next hops, from the kernels."""
    found: dict[str, dict[str, set[str]]] = {}
    for node in lab.fabric.switches:
        peers = {port.name: port.peer_node for port in node.ports}
        table = read_fib(lab.handle(node.name)).routes
        found[node.name] = {str(p): {peers[h.port] for h in hops if h.port in peers} for p, hops in table.items()}
    return found


def rules(lab: Lab) -> dict[tuple[str, str], list[tuple[object, ...]]]:
    """(node, peer) -> the thresholds of the port between them, from the maps."""
    with LabQueues.pinned(lab.fabric) as live:
        rows, ids = live.policies(), live.ids
        return {
            (port.node, port.peer_node): [tuple(each) for each in rows[ids[port.node, port.name] * 8 :][:8]]
            for node in lab.fabric.nodes
            for port in node.ports
        }


@pytest.mark.long("six changes and three labs")
def test_a_rack_and_a_spine_come_and_go_without_a_loss_between_others(changed: Callable[..., Lab], up: Up) -> None:
    small = changed()
    before = {node.name: [(port.name, port.mac, port.address) for port in node.ports] for node in small.fabric.nodes}
    places = small.fabric.places
    with streaming(small, "host1", "host2") as stream:
        changed("racks=4")
        large = changed("racks=4", "ctsw=3")
        assert not failed(large), failed(large)
    assert stream.sent > 1000 and stream.lost == 0
    # What was there has its names and numbers; the new spine took the next free port.
    for name, ports in before.items():
        assert [(p.name, p.mac, p.address) for p in large.fabric.by_name[name].ports][: len(ports)] == ports
        assert large.fabric.places[name].first == places[name].first
    assert large.fabric.by_name["rtsw1"].port("eth4").peer_node == "ctsw3"
    ran(open_lab(large.name), qps=8, placement="cyclic")
    proven(large)
    # The lab is as one that was brought up from that file.
    fresh = up(f"{large.name[:10]}f", *SMALL, "racks=4", "ctsw=3").lab
    try:
        assert routes(fresh) == routes(large)
        assert rules(fresh) == rules(large)
    finally:
        life.down(fresh.name)
    with streaming(large, "host1", "host2") as stream:
        again = changed()
        assert not failed(again), failed(again)
    assert stream.sent > 500 and stream.lost == 0
    assert again.fabric.places == places
    assert {node.name for node in again.fabric.nodes} == {*before}
    assert not any(path.name.endswith(("ctsw3", "rtsw4", "host4")) for path in Path("/run/netns").iterdir())
    ran(open_lab(again.name), qps=8, placement="cyclic")
    proven(again)


@pytest.mark.long("it shows that the test above can fail")
def test_without_a_drain_packets_are_lost(changed: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch) -> None:
    lab = changed("ctsw=3")
    monkeypatch.setattr(labchange._Change, "_drain", lambda self: None)
    # FRR 10.3 advertises a wrong MAC when a port goes that has a session, which `up` reports.
    with streaming(lab, "host1", "host2") as stream, suppress(CheckError):
        changed("ctsw=2")
    assert stream.lost > 0


def test_a_rate_and_thresholds_change_without_a_loss(changed: Callable[..., Lab]) -> None:
    lab = changed()
    with streaming(lab, "host1", "host2") as stream:
        other = changed("link.fabric=50mbit", "queues.ecn.kmax=300KB")
    assert stream.lost == 0
    assert not failed(other, ["queues", "thresholds", "programs"])
    with LabQueues.pinned(other.fabric) as live:
        assert (live.policies() == live.expected(policies_of(other.fabric))).all()
        assert live.links["rate"][live.ids["rtsw1", "eth1"]] == 50_000_000


def test_what_cannot_change_is_named_and_nothing_is_changed(changed: Callable[..., Lab]) -> None:
    lab = changed()
    before = state.read_record(lab.name)
    with pytest.raises(InputError, match=r"host2 +would be another node: its group is rack 2, not rack 1"):
        changed("hosts_per_rack=2")
    with pytest.raises(InputError, match=r"routing\.ecmp: spray +was requested, but the running lab uses flow"):
        changed("racks=4", "routing.ecmp=spray")
    assert state.read_record(lab.name) == before and not failed(lab, ["links", "routes"])


def test_a_killed_change_is_repeated_by_up(changed: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch) -> None:
    lab = changed()

    def killed(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(labchange._Change, "_configure", killed)
    with pytest.raises(KeyboardInterrupt):
        changed("racks=4")
    monkeypatch.undo()
    with pytest.raises(InputError, match="is not up: its `up` is running or was killed"):
        open_lab(lab.name)
    again = changed("racks=4")
    assert "rtsw4" in again.fabric.by_name and not failed(again, ["links", "routes", "queues"])
