"""Packet trimming in real queues: what arrives at a host, how much of the line data has, and what is counted."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from heddle.base.problems import InputError
from heddle.base.process import run
from heddle.fabric.wiring import Port
from heddle.kernel.namespace import inside
from heddle.lab.dscpclasses import wrong_classes
from heddle.switch.queues.cells import LabQueues, class_row
from heddle.switch.queues.classes import policies_of
from heddle.wire.dissect import dissect
from heddle_plugins.experiments.openloop import open_loop
from tests.machine import until
from tests.netns.sockets import checksum, packet_socket, taking
from tests.netns.static_fabric import GATEWAY6, StaticLab, address, static_fabric

QUEUE, TRIMMED, LAST_HOP = 5, 12, 16
WHOLE, SHORT = 4110, 270  # bytes of a frame: 4 KB of IP, 256 bytes of IP
BUFFER: Final = 300_000
ECT0: Final = 2
DATA: Final = 4 << 2 | ECT0
QUEUES: Final = {"lossless": [], "buffer": BUFFER, "trimming": {"queue": QUEUE}}
_TCPDUMP: Final = struct.Struct("=IHHiIII")  # the header of a file, as tcpdump writes it


@dataclass
class Trimming:
    """A lab whose hosts all send to the last one. offered: packets that they sent; frames: what arrived."""

    lab: StaticLab
    queues: LabQueues
    frames: list[bytes] = field(default_factory=list)
    offered: int = 0

    def frame(self, sender: int, number: int) -> bytes:
        """A numbered RoCEv2 packet of 4 KB, from a host (an index) to the last one."""
        hosts = self.lab.fabric.hosts
        src, dst = hosts[sender], hosts[-1]
        gateway = self.lab.fabric.by_name[src.ports[0].peer_node].port(src.ports[0].peer_port)
        start = bytes.fromhex((gateway.mac + src.ports[0].mac).replace(":", ""))
        size = WHOLE - 14
        if self.lab.fabric.policy.ip_version == 4:
            ends = socket.inet_aton(address(src)) + socket.inet_aton(address(dst))
            head = struct.pack("!BBHHHBBH8s", 0x45, DATA, size, 0, 0x4000, 64, 17, 0, ends)
            head = b"\x08\x00" + head[:10] + struct.pack("!H", checksum(head)) + head[12:]
        else:
            ends = b"".join(socket.inet_pton(socket.AF_INET6, address(each)) for each in (src, dst))
            head = b"\x86\xdd" + struct.pack("!IHBB32s", 6 << 28 | DATA << 20, size - 40, 17, 64, ends)
        udp = struct.pack("!4H", 49152 + sender, 4791, WHOLE - 12 - len(head), 0)
        bth = struct.pack("!BBHII", 0x07, 0, 0xFFFF, 77, number)
        made = start + head + udp + bth
        return made + bytes(WHOLE - len(made))

    def counts(self, *names: str) -> dict[str, int]:
        """Sums over all ports, of class 0."""
        own = self.queues.cells[0::8]
        return {name: int(own[name].sum()) for name in names}

    def at_rest(self) -> None:
        """Until nothing waits anywhere."""
        until(lambda: not self.queues.cells["depth"].any())
        assert not self.queues.switches["used"].any() and not self.queues.switches["shared_used"].any()
        assert not self.queues.cells["strays"].any() and not self.queues.ingress["occupancy"].any()

    def sent(self, senders: Sequence[int], count: int) -> None:
        """So many packets of each sender at the rate of its NIC, and then silence."""
        built = [[self.frame(sender, number) for number in range(count)] for sender in senders]

        def one(port: Port, mine: Sequence[bytes]) -> None:
            with packet_socket(self.lab.handle(port.node).netns, port.name, send=256 << 10) as wire:
                for each in mine:
                    wire.send(each)

        ports = [self.lab.fabric.hosts[sender].ports[0] for sender in senders]
        threads = [threading.Thread(target=one, args=each) for each in zip(ports, built, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.at_rest()
        self.offered += len(senders) * count
        until(lambda: len(self.frames) + self.counts("drops")["drops"] == self.offered)


@contextlib.contextmanager
def trimming(**keys: Any) -> Iterator[Trimming]:
    with (
        static_fabric("flow", weights=(1,), queues=QUEUES, link={"host": "50mbit", "fabric": "50mbit"}, **keys) as lab,
        LabQueues.pinned(lab.fabric) as queues,
    ):
        found, target = Trimming(lab, queues), lab.fabric.hosts[-1].ports[0]

        def take(frame: bytes, origin: Any) -> None:
            if origin[2] != socket.PACKET_OUTGOING and b"\x12\xb7" in frame[34:60]:
                found.frames.append(frame)

        kind = 0x0800 if lab.fabric.policy.ip_version == 4 else 0x86DD
        wire = packet_socket(lab.handle(target.node).netns, target.name, kind, receive=64 << 20)
        with taking(wire, take):
            yield found


def tshark(frames: Sequence[bytes], path: Path, *fields: str) -> list[list[str]]:
    """The fields that tshark reads in each frame."""
    rows = b"".join(struct.pack("=4I", 0, 0, len(each), len(each)) + each for each in frames)
    path.write_bytes(_TCPDUMP.pack(0xA1B2C3D4, 2, 4, 0, 0, 65535, 1) + rows)
    wanted = [word for each in fields for word in ("-e", each)]
    checked = ("-o", "ip.check_checksum:TRUE")
    said = run(["tshark", "-n", *checked, "-r", str(path), "-T", "fields", "-E", "separator=|", *wanted]).out
    return [line.split("|") for line in said.splitlines()]


@pytest.mark.needs("tshark")
@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
@pytest.mark.parametrize(("racks", "mark"), [(1, LAST_HOP), (2, TRIMMED)])
def test_each_packet_arrives_whole_or_in_the_form_of_sonic(racks: int, mark: int, family: str, tmp_path: Path) -> None:
    """Senders of one rack fill the port to the host, or that to the CTSW. Each packet arrives once, in one form."""
    count, hosts = 300, 3
    with trimming(racks=racks, hosts_per_rack=hosts, family=family) as found:
        found.sent(range(hosts - (racks == 1)), count)
        senders = hosts - (racks == 1)
        frames = found.frames
        trims = found.counts("trims", "trim_sent", "trim_bytes", "drops")
    whole = [each for each in frames if len(each) == WHOLE]
    short = [each for each in frames if len(each) == SHORT]
    at = 20 if family == "ipv4" else 40
    numbers = sorted(struct.unpack_from("!H14xI", each, 14 + at) for each in frames)
    assert len(whole) + len(short) == len(frames) == senders * count
    assert numbers == sorted((49152 + sender, n) for sender in range(senders) for n in range(count)), "each once"
    assert {dissect(each, len(each)).kind for each in short} == {"RoCE trimmed"}
    assert {dissect(each, len(each)).kind for each in whole} == {"RoCE data"}
    cut = len(short) * (WHOLE - SHORT)
    assert trims == {"trims": len(short), "trim_sent": len(short), "trim_bytes": cut, "drops": 0}
    words: tuple[str, ...]
    # While the senders sent, the line carried as much as one of them sends; the rest waited in the buffer.
    assert 0.98 * count * WHOLE <= senders * count * WHOLE - cut <= count * WHOLE + BUFFER
    if family == "ipv4":
        words = ("frame.len", "ip.len", "udp.length", "ip.dsfield.dscp", "ip.dsfield.ecn", "ip.checksum.status")
        rows = tshark(short, tmp_path / "frames", *words)
        assert {tuple(row) for row in rows} == {(str(SHORT), "4096", "4076", str(mark), "2", "1")}
    else:
        words = ("frame.len", "ipv6.plen", "udp.length", "ipv6.tclass.dscp", "ipv6.tclass.ecn")
        rows = tshark(short, tmp_path / "frames", *words)
        assert {tuple(row) for row in rows} == {(str(SHORT), "4056", "4056", str(mark), "2")}


def test_a_change_of_size_and_action_loses_nothing_and_drop_sends_no_heads() -> None:
    """While two senders fill a port: another size, then none of them trimmed. Each packet is there or counted."""
    with trimming(racks=1, hosts_per_rack=3) as found:
        count, usual = 400, found.lab.fabric.policy.queues

        def change() -> None:
            for least, keys in ((40, {"size": 512}), (80, {"enabled": False})):
                until(partial(more_trims, least))
                changed: Any = keys
                queues = replace(usual, trimming=replace(usual.trimming, **changed))
                found.queues.set_policies(policies_of(found.lab.fabric, queues))

        def more_trims(least: int) -> bool:
            return found.counts("trims")["trims"] > least

        changing = threading.Thread(target=change)
        changing.start()
        found.sent((0, 1), count)
        changing.join()
        sizes = Counter(map(len, found.frames))
        counts = found.counts("trims", "trim_sent", "drops")
        before = len(found.frames), counts["trims"]
        found.sent((0, 1), count)
        after = found.counts("trims", "drops")
    assert {*sizes} == {WHOLE, SHORT, 14 + 512} and sizes[SHORT] > 40
    assert counts["trims"] == counts["trim_sent"] == sizes[SHORT] + sizes[526]
    assert sizes.total() + counts["drops"] == 2 * count
    assert after["trims"] == before[1] and after["drops"] > counts["drops"]
    late = found.frames[before[0] :]
    assert {*map(len, late)} == {WHOLE} and len(late) + after["drops"] - counts["drops"] == 2 * count


def test_exempt_dscps_in_the_kernel_are_compared_with_the_file() -> None:
    with trimming(racks=1, hosts_per_rack=2) as found:
        queues = found.lab.fabric.policy.queues
        assert not [*wrong_classes(found.queues, queues)]
        others = replace(queues, control=7, trimming=replace(queues.trimming, exempt=(4, 5)))
        row = found.queues._views["dscp"]
        row["whole"], row["control"] = class_row(others)["whole"], others.control
        assert [f"{each.what} {each.why}" for each in wrong_classes(found.queues, queues)] == [
            "control is class 7, not 6", "DSCP 0 can be trimmed, and should not",
            "DSCP 4, 5 is never trimmed, and should be",
        ]  # fmt: skip
        found.queues.set_classes(queues)
        assert not [*wrong_classes(found.queues, queues)]


def test_a_packet_trimmed_inside_a_segment_routing_tunnel_arrives_in_the_form_of_sonic() -> None:
    """The kernel encapsulates at the first switch, which also trims, and decapsulates at the last one (RFC 8986)."""
    count, sid = 300, "fd00:ffff::1"
    with trimming(racks=2, hosts_per_rack=3, family="ipv6") as found:
        lab, port = found.lab, found.lab.fabric.hosts[-1].ports[0]
        host = address(found.lab.fabric.hosts[-1])
        for node in ("rtsw1", "ctsw1"):
            lab.ip(node, "-6", "route", "add", sid, "via", GATEWAY6, "dev", "eth1" if node == "rtsw1" else "eth2")
        lab.ip("rtsw1", "sr", "tunsrc", "set", "fd00:ffff::2")
        lab.ip("rtsw1", *f"-6 route add {host} encap seg6 mode encap segs {sid} dev eth1".split())
        with inside(lab.handle("rtsw2").netns):
            for each in ("all", "eth1"):
                Path(f"/proc/sys/net/ipv6/conf/{each}/seg6_enabled").write_text("1")
        decap = f"-6 route add {sid} encap seg6local action End.DX6 nh6 {host} dev {port.peer_port}"
        lab.ip("rtsw2", *decap.split())
        found.sent((0, 1), count)
        frames, trims = found.frames, found.counts("trims", "trim_sent", "drops")
    outer = 40 + 24
    short = [each for each in frames if len(each) == SHORT - outer]
    assert {*map(len, frames)} == {WHOLE, SHORT - outer} and len(frames) == 2 * count
    assert trims == {"trims": len(short), "trim_sent": len(short), "drops": 0} and len(short) > 100
    assert {dissect(each, len(each)).kind for each in short} == {"RoCE trimmed"}
    lengths = {(struct.unpack_from("!H", each, 18)[0], struct.unpack_from("!H", each, 58)[0]) for each in short}
    assert lengths == {(WHOLE - 54, WHOLE - 54)}, "the original ones of the inner packet"
    assert {struct.unpack_from("!I", each, 14)[0] >> 22 & 63 for each in short} == {TRIMMED}


def test_sockets_of_the_kernel_drop_what_was_trimmed_and_their_programs_recover() -> None:
    """The kernel counts the heads as truncated packets. A program that sends what is missing again gets all there."""
    count, port = 300, 5000
    with trimming(racks=1, hosts_per_rack=3) as found:
        *senders, last = found.lab.fabric.hosts
        spaces = [found.lab.handle(each.name).netns for each in (*senders, last)]
        to, got = (address(last), port), Counter[bytes]()

        def udp(space: Path) -> socket.socket:
            with inside(space):
                made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            made.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, DATA)
            return made

        def truncated() -> int:
            with inside(spaces[-1]):
                names, values = Path("/proc/thread-self/net/netstat").read_text().splitlines()[2:4]
            return int(dict(zip(names.split(), values.split(), strict=True))["InTruncatedPkts"])

        def send(space: Path, numbers: Sequence[bytes]) -> None:
            with udp(space) as out:
                for number in numbers:
                    out.sendto(number + bytes(WHOLE - 42 - len(number)), to)

        with udp(spaces[-1]) as into:
            into.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
            into.bind(to)
            with taking(into, lambda data, _: got.update([data[:8]])):
                all_ = [[struct.pack("!II", at, n) for n in range(count)] for at in range(len(senders))]
                threads = [threading.Thread(target=send, args=each) for each in zip(spaces, all_, strict=False)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                found.at_rest()
                trims = found.counts("trims", "trim_sent")["trim_sent"]
                until(lambda: got.total() + truncated() == 2 * count)
                assert truncated() == trims > 100
                missing = [number for numbers in all_ for number in numbers if not got[number]]
                send(spaces[0], missing)
                until(lambda: got.total() == 2 * count)
        assert max(got.values()) == 1 and len(missing) == trims


def test_an_open_loop_counts_each_trim_and_refuses_senders_that_are_not_there() -> None:
    with trimming(racks=1, hosts_per_rack=4) as found:
        loop = open_loop(found.lab.fabric, found.lab.handles(), 3, 4036, 0.5)
        assert loop.left == 0 == loop.dropped and loop.data > 0 and found.counts("trims")["trims"] > 100
        for senders in (0, 4):
            with pytest.raises(InputError, match="is not 1 to 3"):
                open_loop(found.lab.fabric, found.lab.handles(), senders, 4036, 0.5)
