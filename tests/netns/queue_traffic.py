"""Traffic for the queues' tests: one rack without daemons, numbered packets to its last host, and who got which."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from heddle.base.process import run
from heddle.fabric.wiring import Port
from heddle.kernel.fib import read_names
from heddle.kernel.netlink import RTM_GETQDISC, RouteSocket, attributes
from heddle.switch.queues.cells import LabQueues
from heddle.switch.queues.classes import row
from heddle.wire.layout import ETHERTYPE_IPV4
from tests.machine import until
from tests.netns.queue_bench import DATA, LOSSLESS
from tests.netns.sockets import checksum, packet_socket, taking
from tests.netns.static_fabric import StaticLab, address, static_fabric

SIZE: Final = 1000  # bytes of a frame
_NUMBER: Final = struct.Struct("!I")
_PAYLOAD: Final = 14 + 20 + 8
_TCMSG: Final = struct.Struct("=B3xiIII")
_ROOT: Final = 0xFFFFFFFF  # TC_H_ROOT
_TCA_STATS2, _TCA_STATS_QUEUE = 7, 3


@dataclass
class Arrivals:
    """Numbers and ECN bits of the packets that came, in their order, and the frames themselves."""

    frames: list[bytes] = field(default_factory=list)

    @property
    def numbers(self) -> list[int]:
        return [_NUMBER.unpack_from(frame, _PAYLOAD)[0] for frame in list(self.frames)]

    @property
    def ecn(self) -> list[int]:
        return [frame[15] & 3 for frame in list(self.frames)]

    def wait(self, count: int, seconds: float = 60.0) -> None:
        """Until so many have come; AssertionError when they do not."""
        until(lambda: len(self.frames) >= count, seconds)


@dataclass(frozen=True)
class Rack:
    """Hosts of one RTSW; all packets go to the last one."""

    lab: StaticLab
    queues: LabQueues

    @property
    def target(self) -> Port:
        return self.lab.fabric.hosts[-1].ports[0]

    @property
    def egress(self) -> Port:
        """The switch's port to the target."""
        return self.lab.fabric.by_name[self.target.peer_node].port(self.target.peer_port)

    def cell(self, number: int = LOSSLESS) -> Any:
        return self.queues.cells[row(self.queues.ids[self.egress.node, self.egress.name], number)]

    def frame(self, number: int, tos: int = DATA, size: int = SIZE, sender: int = 0) -> bytes:
        """A numbered UDP packet from a host (an index) to the target, as it leaves there."""
        src = self.lab.fabric.hosts[sender]
        gateway = self.lab.fabric.by_name[src.ports[0].peer_node].port(src.ports[0].peer_port)
        ends = socket.inet_aton(address(src)) + socket.inet_aton(address(self.lab.fabric.hosts[-1]))
        head = struct.pack("!BBHHHBBH8s", 0x45, tos, size - 14, 0, 0x4000, 64, 17, 0, ends)
        head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
        udp = struct.pack("!4H", 20000 + sender, 9, size - 34, 0)
        start = bytes.fromhex((gateway.mac + src.ports[0].mac).replace(":", "")) + b"\x08\x00" + head + udp
        return start + _NUMBER.pack(number) + bytes(size - len(start) - _NUMBER.size)

    def wire(self, sender: int = 0) -> socket.socket:
        """A packet socket on a sender's NIC; it waits where more would not fit into the NIC's queue."""
        return self._socket(self.lab.fabric.hosts[sender].ports[0], send=256 << 10)

    def at_switch(self) -> socket.socket:
        """A packet socket on the switch's port to the target: a burst here comes faster than any link."""
        return self._socket(self.egress, send=64 << 20)

    def _socket(self, port: Port, protocol: int = 0, **sizes: int) -> socket.socket:
        return packet_socket(self.lab.handle(port.node).netns, port.name, protocol, **sizes)

    def burst(self, count: int, tos: int = DATA) -> None:
        """So many packets at the switch's port, numbered from 0, as fast as this machine can."""
        # They are built first: on a slow machine that takes longer than sending them.
        frames = [self.frame(number, tos) for number in range(count)]
        with self.at_switch() as wire:
            for frame in frames:
                wire.send(frame)

    def ecn_of_burst(self, count: int, tos: int = DATA) -> list[int]:
        """ECN bits, by number, of packets that come to the switch's port faster than they leave; all arrive."""
        with self.listening() as found:
            self.burst(count, tos)
            found.wait(count)
        assert found.numbers == list(range(count))
        return found.ecn

    @contextlib.contextmanager
    def listening(self) -> Iterator[Arrivals]:
        """Take down what comes to the target, behind the programs at its ingress."""
        found = Arrivals()

        def take(frame: bytes, origin: Any) -> None:
            if origin[2] != socket.PACKET_OUTGOING and frame[23] == 17:
                found.frames.append(frame)

        with taking(self._socket(self.target, ETHERTYPE_IPV4, receive=64 << 20), take):
            yield found

    def backlog(self) -> int:
        """Bytes that the kernel says wait at the switch's port, in all classes: what `tc -s` prints, by netlink."""
        with RouteSocket(self.lab.handle(self.egress.node).netns) as netlink:
            index = {name: number for number, name in read_names(netlink).items()}[self.egress.name]
            for body in netlink.dump(RTM_GETQDISC, _TCMSG.pack(0, 0, 0, 0, 0)):
                if _TCMSG.unpack_from(body)[1] == index and _TCMSG.unpack_from(body)[3] == _ROOT:
                    statistics = attributes(attributes(body, _TCMSG.size)[_TCA_STATS2], 0)
                    return int(struct.unpack_from("=4xI", statistics[_TCA_STATS_QUEUE])[0])
        raise LookupError(self.egress.ref)

    def backlog_by_tc(self) -> int:
        """The same as tc itself says it."""
        said = run(["tc", "-n", self.lab.handle(self.egress.node).netns.name, "-s", "-j", "qdisc", "show", "dev",
                    self.egress.name]).out  # fmt: skip
        (root,) = [each for each in json.loads(said) if each["kind"] == "htb"]
        return int(root["backlog"])

    def reaches(self, count: int, what: Callable[[], int] | None = None) -> None:
        """Until so many packets have been admitted to the switch's port, or `what` says so; AssertionError if never."""
        until(lambda: (what() if what else int(self.cell()["in_packets"])) == count)

    def at_rest(self) -> None:
        """Every book of the lab closed, in good time: nothing held, and as much out as in. AssertionError if not."""
        with contextlib.suppress(AssertionError):
            until(lambda: not self._open_books())
        assert not (wrong := self._open_books()), wrong

    def _open_books(self) -> list[str]:
        q = self.queues
        sums = {
            "depth": q.cells["depth"], "in - out": q.cells["in_bytes"] - q.cells["out_bytes"],
            "packets": q.cells["in_packets"] - q.cells["out_packets"], "occupancy": q.ingress["occupancy"],
            "transit": q.transit, "used": q.switches["used"], "shared": q.switches["shared_used"],
            "headroom": q.switches["headroom_used"], "strays": q.cells["strays"],
        }  # fmt: skip
        return [f"{name}: {values[values != 0]}" for name, values in sums.items() if values.any()]


@contextlib.contextmanager
def rack(hosts: int = 3, **keys: Any) -> Iterator[Rack]:
    """A rack of so many hosts, up for the length of a with block. No agent: pauses are not answered."""
    queues = {**keys.pop("queues", {}), "pfc": {"enabled": False}}
    with (
        static_fabric("flow", weights=(1,), racks=1, hosts_per_rack=hosts, queues=queues, **keys) as lab,
        LabQueues.pinned(lab.fabric) as mapped,
    ):
        yield Rack(lab, mapped)


def send_from(rack: Rack, senders: Sequence[int], count: int, tos: int = DATA, size: int = SIZE) -> None:
    """So many packets of each sender, all at once, at the rate of their NICs; numbered sender * 2^24 + n."""

    # They are built first: on a slow machine that takes longer than sending them.
    frames = [[rack.frame(sender << 24 | number, tos, size, sender) for number in range(count)] for sender in senders]

    def one(sender: int, mine: Sequence[bytes]) -> None:
        with rack.wire(sender) as wire:
            for frame in mine:
                wire.send(frame)

    threads = [threading.Thread(target=one, args=each) for each in zip(senders, frames, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
