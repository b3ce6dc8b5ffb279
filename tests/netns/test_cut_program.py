"""The programs of cut links, `cut_out` and `cut_in`: one shard's end by real devices, and the other shard as datagrams.

A test run of a program has no stamp (skb->hash), no classid and no tunnel key, so most of these tests send frames: a
port, its stub, the tunnel, and behind it a socket that sees and sends what another shard would.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import pytest

from heddle.base.ethernet import pfc_frame
from heddle.base.process import run
from heddle.kernel.fib import port_names
from heddle.kernel.libbpf import run_on
from heddle.kernel.namespace import NodeHandle, inside
from heddle.shards.carrier import beat_header
from heddle.switch.hashing.hashing import PINS
from heddle.switch.links import cuts
from heddle.switch.queues.cells import LINK_DOWN
from heddle.switch.queues.classes import OWNER, base_of, classid, port_ids, row
from tests.machine import until
from tests.netns.claimed import namespace_of
from tests.netns.port_pair import tc
from tests.netns.queue_bench import DATA, LOSSLESS, SHOT, Bench, bench, ipv4, ipv6
from tests.netns.sockets import ETH_P_ALL, packet_socket

REDIRECT: Final = 7  # TC_ACT_REDIRECT
MTU: Final = 4200
HERE, THERE = "10.77.0.1", "10.77.0.2"
HERE_6, THERE_6 = "fd00:77::1", "fd00:77::2"
PORT: Final = 24789
SHARD: Final = ("rtsw2", "host3", "host4")
_VXLAN: Final = 8  # bytes of its header: flags, and the VNI in bytes 4 to 6
_OUTGOING: Final = 4  # PACKET_OUTGOING


def received(sock: socket.socket, count: int = 1) -> list[bytes]:
    """The next frames that arrive at a device, in order, not those that it sends; fewer if none comes for a second."""
    found: list[bytes] = []
    waited = 0
    while len(found) < count and waited < 20:
        try:
            data, (*_, kind, _, _) = sock.recvfrom(1 << 16)
        except TimeoutError:
            waited += 1
            continue
        if kind != _OUTGOING:
            found.append(data)
    return found


@dataclass
class CutBench:
    """A port of a switch whose link is cut. port: sends and receives at the port; there: as the other shard.

    near, far: ids of its ends in this shard; own_vni, vni: their numbers in the whole fabric, which are others.
    here: the address of the tunnel. cables: the namespace of the stub and the tunnel.
    """

    bench: Bench
    near: int
    far: int
    own_vni: int
    vni: int
    port: socket.socket
    there: socket.socket
    here: str
    cables: Path

    def cell(self, number: int = LOSSLESS) -> Any:
        """Counters of a class of the port."""
        return self.bench.queues.cells[row(self.near, number)]

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Frames and bytes that were sent, and that were received."""
        rows = self.bench.queues.cuts
        out, back = rows[self.far], rows[self.near]
        return int(out["sent"]), int(out["sent_bytes"]), int(back["received"]), int(back["received_bytes"])

    def crossed(self, frame: bytes) -> tuple[int, bytes]:
        """Send a frame out of the port; the VNI and the frame that reach the other shard."""
        self.port.send(frame)
        outer = received_datagram(self.there)
        return int.from_bytes(outer[4:7]), outer[_VXLAN:]

    def arrive(self, vni: int, frame: bytes) -> None:
        """Send a frame from the other shard."""
        self.there.sendto(struct.pack("!II", 0x08 << 24, vni << 8) + frame, (self.here, PORT))


def received_datagram(sock: socket.socket) -> bytes:
    sock.settimeout(2.0)
    return sock.recvfrom(1 << 16)[0]


def _uplink(made: Bench) -> tuple[str, str, int, int]:
    """rtsw2's first port to another switch: its names, its id, and the id of the port at the other end."""
    fabric, ids = made.queues.fabric, {**made.queues.ids, **made.queues.far_ids}
    port = next(each for each in fabric.by_name["rtsw2"].ports if each.peer_node.startswith("ctsw"))
    return port.node, port.name, ids[port.node, port.name], ids[port.peer_node, port.peer_port]


def _programs(made: Bench, space: Path, device: str, number: int) -> list[str]:
    pins, base = PINS / made.queues.fabric.name / OWNER, base_of(number, index_of(space, device))
    lines = [f"qdisc add dev {device} clsact"]
    for hook, program in (("egress", "enqueue"), ("ingress", "dequeue")):
        what = f"bpf direct-action object-pinned {pins / program} classid {classid(base)}"
        lines.append(f"filter add dev {device} {hook} pref 5 handle 1 {what}")
    return lines


def index_of(space: Path, device: str) -> int:
    return next(index for index, name in port_names(NodeHandle("", space)).items() if name == device)


def _make(space: Path, stack: ExitStack) -> None:
    """A namespace whose kernel sends nothing by itself."""
    run(["ip", "netns", "add", space.name])
    stack.callback(run, ["ip", "netns", "del", space.name], check=False)
    run(["ip", "netns", "exec", space.name, "sysctl", "-q", "-w", "net.ipv6.conf.default.disable_ipv6=1"])


@contextmanager
def cut_bench(underlay: int = 9000, addresses: tuple[str, str] = (HERE, THERE)) -> Iterator[CutBench]:
    """The port, its stub and the tunnel. underlay, addresses: of the network between the shards."""
    with bench(SHARD) as made, ExitStack() as stack:
        node, name, near, far = _uplink(made)
        vnis = port_ids(replace(made.queues.fabric, shard=None))
        port_at = made.queues.fabric.by_name[node].port(name)
        own_vni, vni = vnis[node, name], vnis[port_at.peer_node, port_at.peer_port]
        assert not {own_vni, vni} & {near, far}
        lab = made.queues.fabric.name
        spaces = {each: namespace_of(lab, each) for each in (node, "_cables", "under", "there")}
        for space in spaces.values():
            _make(space, stack)

        def at(where: str, *words: str) -> None:
            run(["nsenter", f"--net={spaces[where]}", "ip", *words])

        stub = f"{cuts.stub_name(near)} netns {spaces['_cables'].name} mtu {MTU}"
        run(["ip", *f"link add {name} netns {spaces[node].name} mtu {MTU} type veth peer name {stub}".split()])
        wire = f"eth0 netns {spaces['there'].name} mtu {underlay}"
        run(["ip", *f"link add eth0 netns {spaces['under'].name} mtu {underlay} type veth peer name {wire}".split()])
        at("under", *cuts.tunnel_line(spaces["_cables"].name, PORT).split())
        for where, address in zip(("under", "there"), map(ip_address, addresses), strict=True):
            run(["nsenter", f"--net={spaces[where]}", "sysctl", "-q", "-w", "net.ipv6.conf.eth0.disable_ipv6=0"])
            words = (f"{address}/24",) if address.version == 4 else (f"{address}/64", "nodad")
            at(where, "addr", "add", *words, "dev", "eth0")
            at(where, "link", "set", "eth0", "up")
        for where, device in ((node, name), ("_cables", cuts.stub_name(near)), ("_cables", cuts.TUNNEL)):
            at(where, "link", "set", device, "up")
        tc(spaces[node], _programs(made, spaces[node], name, near))
        end = cuts.CutEnd(node, name, near, far, ip_address(addresses[1]), vni, own_vni)
        cuts.attach(made.queues.fabric, spaces["_cables"], [end])
        port = stack.enter_context(packet_socket(spaces[node], name, ETH_P_ALL, seconds=0.05))
        with inside(spaces["there"]):
            family = socket.AF_INET6 if ":" in addresses[1] else socket.AF_INET
            there = stack.enter_context(socket.socket(family, socket.SOCK_DGRAM))
        there.bind((addresses[1], PORT))
        yield CutBench(made, near, far, own_vni, vni, port, there, addresses[0], spaces["_cables"])


@pytest.fixture
def port() -> Iterator[Bench]:
    with bench() as made:
        yield made


@pytest.fixture(params=[(HERE, THERE), (HERE_6, THERE_6)], ids=["IPv4", "IPv6"])
def cut(request: pytest.FixtureRequest) -> Iterator[CutBench]:
    """The cut between shards that reach each other by IPv4, and by IPv6."""
    with cut_bench(addresses=request.param) as made:
        yield made


def fields(cell: Any) -> dict[str, Any]:
    names = ("depth", "high_water", "in_packets", "in_bytes", "out_packets", "out_bytes", "drop_bytes", "strays")
    return {name: int(cell[name]) for name in names}


OTHER: Final = bytes(12) + b"\x88\xb6" + bytes(46)
PAUSE: Final = pfc_frame(bytes(5) + b"\1", {LOSSLESS: 500})
FRAMES: Final = [ipv4(DATA, size) for size in (60, 1514, MTU + 14)] + [
    ipv6(0, 200),
    bytes(12) + b"\x08\x06" + bytes(46),
]


def test_a_cut_takes_frames_off_the_queue_as_a_whole_link_does(cut: CutBench) -> None:
    before = {number: fields(cut.cell(number)) for number in range(8)}
    for frame in FRAMES:
        vni, came = cut.crossed(frame)
        assert (vni, came) == (cut.vni, frame)
    found = {number: fields(cut.cell(number)) for number in range(8)}
    for number in range(8):
        for key in ("in_packets", "in_bytes", "out_packets", "out_bytes"):
            found[number][key] -= before[number][key]
    with bench() as made, ExitStack() as stack:  # the same frames on a whole link
        node, name, near, far = _uplink(made)
        spaces = [namespace_of(made.queues.fabric.name, each) for each in (node, "peer")]
        for space in spaces:
            _make(space, stack)
        ends = f"{name} netns {spaces[0].name} mtu {MTU} type veth peer name peer netns {spaces[1].name} mtu {MTU}"
        run(["ip", *f"link add {ends}".split()])
        for space, device, number in ((spaces[0], name, near), (spaces[1], "peer", far)):
            tc(space, _programs(made, space, device, number))
            run(["nsenter", f"--net={space}", "ip", "link", "set", device, "up"])
        shown = ["nsenter", f"--net={spaces[0]}", "ip", "-br", "link", "show", name]
        until(lambda: run(shown).out.split()[1] == "UP")  # before that the kernel drops what is sent
        with (
            packet_socket(spaces[0], name, ETH_P_ALL) as port,
            packet_socket(spaces[1], "peer", ETH_P_ALL, seconds=0.05) as peer,
        ):
            for frame in FRAMES:
                port.send(frame)
            assert received(peer, len(FRAMES)) == FRAMES
        assert {number: fields(made.queues.cells[row(near, number)]) for number in range(8)} == found
        assert not made.queues.cuts["sent"].any() and not made.queues.transit.any()
    assert not cut.bench.queues.transit.any() and not cut.bench.queues.switches["used"].any()


def test_every_size_crosses_with_the_id_of_the_port_that_receives_it(cut: CutBench) -> None:
    total = 0
    for size in (34, 41, 60, 1450, 1500, 4096, MTU + 13, MTU + 14):
        frame = ipv4(DATA, MTU + 14)[:size]  # the short ones end before what their header says
        assert cut.crossed(frame) == (cut.vni, frame)
        total += size
    assert cut.crossed(OTHER[:15]) == (cut.vni, OTHER[:15])
    assert cut.counts == (9, total + 15, 0, 0)
    assert not cut.bench.queues.cells["depth"].any() and not cut.bench.queues.cells["strays"].any()


def test_frames_arrive_at_the_port_of_their_vni_and_are_not_counted_as_leaving_a_queue(cut: CutBench) -> None:
    frames = [OTHER[:15], *(ipv4(DATA, MTU + 14)[:size] for size in (34, 41, 60, 1500, MTU + 14))]
    for frame in frames:
        cut.arrive(cut.own_vni, frame)
    assert received(cut.port, len(frames)) == frames
    assert cut.counts == (0, 0, len(frames), sum(map(len, frames)))
    assert not any(cut.bench.queues.cells[name].any() for name in ("in_packets", "out_packets", "strays", "drops"))


def test_a_pause_frame_crosses_unchanged_and_is_counted_where_it_arrives(cut: CutBench) -> None:
    gates, at = cut.bench.queues.gates["pfc_received"], row(cut.near, LOSSLESS)
    assert cut.crossed(PAUSE) == (cut.vni, PAUSE)
    assert not gates.any() and not cut.bench.queues.cells["out_packets"].any()
    cut.arrive(cut.own_vni, PAUSE)
    until(lambda: gates[at] == 1)
    assert gates.sum() == 1 and cut.counts == (1, len(PAUSE), 1, len(PAUSE))


def test_a_frame_for_a_port_that_is_not_here_is_dropped_and_counted_nowhere(cut: CutBench) -> None:
    rows, own = len(cut.bench.queues.arrivals), cut.own_vni
    for vni in (0, cut.vni, cut.near, cut.far, own + 1, rows - 1, rows, 0xFFFF, 0x10000 + own, 0xFFFFFF):
        cut.arrive(vni, ipv4(DATA))
    cut.arrive(cut.own_vni, ipv4(0))
    assert received(cut.port) == [ipv4(0)]
    assert cut.counts == (0, 0, 1, 100) and cut.bench.queues.cuts["received"].sum() == 1


def test_what_is_no_whole_frame_of_a_tunnel_is_dropped(cut: CutBench) -> None:
    for size in range(14):
        cut.arrive(cut.own_vni, ipv4(DATA)[:size])
    for datagram in (b"", b"\x08", bytes(8), bytes(8) + ipv4(DATA), b"\x08\0\0\0\0\0"):
        cut.there.sendto(datagram, (cut.here, PORT))
    cut.arrive(cut.own_vni, ipv4(0))
    assert received(cut.port) == [ipv4(0)] and cut.counts == (0, 0, 1, 100)


def test_a_beat_crosses_to_the_shard_of_its_port_and_to_no_port(cut: CutBench) -> None:
    with packet_socket(cut.cables, cuts.TUNNEL, cuts.BEAT, seconds=2.0) as own:
        for size in (60, MTU):
            frame = beat_header(cut.far, cut.own_vni, cuts.BEAT) + bytes(size)
            own.send(frame)
            outer = received_datagram(cut.there)
            assert (outer[4:7], outer[_VXLAN:]) == ((1 << 23 | cut.vni).to_bytes(3), frame)
            answer = beat_header(99, cut.vni, cuts.BEAT) + bytes(size)
            cut.arrive(1 << 23 | cut.own_vni, answer)
            assert own.recv(1 << 16) == answer
        for nowhere in (0, cut.far + 1, 1 << 23, 0xFFFFFFFF):
            with suppress(OSError):  # ENOBUFS: the sender hears that its frame was dropped
                own.send(beat_header(nowhere, cut.own_vni, cuts.BEAT) + bytes(60))
        own.send(frame)
        assert received_datagram(cut.there)[_VXLAN:] == frame
    assert received(cut.port) == [] and cut.counts == (0, 0, 0, 0)


def test_a_link_that_is_down_sends_nothing_over_its_tunnel(cut: CutBench) -> None:
    cut.bench.queues.links["flags"][cut.near] = LINK_DOWN
    with suppress(OSError):  # ENOBUFS: the sender hears that its frame was dropped
        cut.port.send(ipv4(DATA))
    until(cut.cell()["drops"].any)
    cut.bench.queues.links["flags"][cut.near] = 0
    assert cut.crossed(ipv4(0)) == (cut.vni, ipv4(0)) and cut.counts[0] == 1


def test_frames_of_the_mtu_cross_a_network_of_a_smaller_one() -> None:
    with cut_bench(1450) as cut:
        for size in (1400, 1450, MTU + 14):
            assert cut.crossed(ipv4(DATA, size)) == (cut.vni, ipv4(DATA, size))
            cut.arrive(cut.own_vni, ipv4(DATA, size))
            assert received(cut.port) == [ipv4(DATA, size)]


def test_a_stub_without_a_tunnel_drops_and_counts_nothing(port: Bench) -> None:
    """By test runs: no stamp, and port 0, which leads nowhere until its row says so."""
    program, table = port.queues.program("cut_out"), port.queues.cuts
    assert run_on(program, ipv4(DATA)).retval == SHOT and not table["sent"].any()
    table["tunnel"][0], table["remote"][0] = 1, (int(ip_address(THERE)), 0, 0, 0)
    for frame in (OTHER[:15], ipv4(DATA, 3000), ipv6(0), PAUSE):
        assert run_on(program, frame).retval == REDIRECT
    assert (table["sent"][0], table["sent_bytes"][0]) == (4, 15 + 3000 + 100 + len(PAUSE))
    assert not port.queues.cells["out_packets"].any() and not port.queues.cells["strays"].any()


def test_what_did_not_come_by_a_tunnel_goes_to_no_stub(port: Bench) -> None:
    port.queues.cuts["stub"] = 1
    for frame in (OTHER[:15], ipv4(DATA, 3000), PAUSE):
        assert run_on(port.queues.program("cut_in"), frame).retval == SHOT
    assert not port.queues.cuts["received"].any()
