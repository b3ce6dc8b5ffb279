"""The maps by which a port's program passes frames to a user's device, and their counters (switch/bpf/wire.h).

In:  a fabric whose lab is up, the number of a port. Out: its wire set or removed; WireCounts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from heddle.base.families import as_ipv6
from heddle.base.resources import HERE
from heddle.fabric.wiring import Port
from heddle.kernel.libbpf import Map, Object, loaded
from heddle.switch.hashing.hashing import pin_dir
from heddle.switch.install import NIC_MAPS
from heddle.switch.queues.portqueues import HOSTS

WIRE: Final = struct.Struct("=3I6s6s16s11Q")
_KEY: Final = struct.Struct("=I")
# Why the edge drops a frame, in the order of `enum apart`: a word, and what it says.
APART: Final[Mapping[str, str]] = {
    "spoofed": "with another source address than the port's",
    "jumbo": "longer than the MTU",
    "vlan": "with a VLAN tag",
    "multicast": "to many receivers",
    "malformed": "malformed",
    "other": "of another protocol than IP",
}


@dataclass(frozen=True, slots=True)
class WireCounts:
    """Frames and bytes from and to a device, since it was attached. marked: frames to it with the mark CE.

    apart: frames from it that were dropped at the edge, by the words of APART.
    """

    in_packets: int
    in_bytes: int
    out_packets: int
    out_bytes: int
    marked: int
    apart: Mapping[str, int]

    def since(self, before: WireCounts | None) -> WireCounts:
        """What was counted after `before`."""
        if before is None:
            return self
        mine = (self.in_packets, self.in_bytes, self.out_packets, self.out_bytes, self.marked)
        theirs = (before.in_packets, before.in_bytes, before.out_packets, before.out_bytes, before.marked)
        apart = {word: count - before.apart[word] for word, count in self.apart.items()}
        a, b, c, d, e = (now - then for now, then in zip(mine, theirs, strict=True))
        return WireCounts(a, b, c, d, e, apart)

    def apart_text(self) -> str:
        """`3 spoofed (with another source address than the port's), 1 jumbo (...)`; empty if there are none."""
        return ", ".join(f"{count:,} {word} ({APART[word]})" for word, count in self.apart.items() if count)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "in_packets": self.in_packets, "in_bytes": self.in_bytes, "out_packets": self.out_packets,
            "out_bytes": self.out_bytes, "marked": self.marked, "apart": dict(self.apart),
        }  # fmt: skip


class WireMaps:
    """The maps of a lab's hosts. MachineError where they are missing."""

    def __init__(self, lab: str) -> None:
        pins = pin_dir(lab, HOSTS)
        self.wires = Map.pinned(pins / "wires", _KEY.size, NIC_MAPS["wires"])
        try:
            self._wired = Map.pinned(pins / "wired", _KEY.size, NIC_MAPS["wired"])
        except BaseException:
            self.wires.close()
            raise

    def __enter__(self) -> WireMaps:
        return self

    def __exit__(self, *_: object) -> None:
        self.wires.close()
        self._wired.close()

    @contextmanager
    def programs(self) -> Iterator[Object]:
        """The programs of the edge, loaded with these maps, for a with block. What is attached stays behind it."""
        with loaded(HERE.bpf_object("edge"), shared={"wires": self.wires}) as found:
            yield found

    def prepare(self, number: int, port: Port, outer: int, inner: int) -> None:
        """Make the row of a port. outer, inner: interface indexes of the port, and of the wire's end beside it."""
        mac = bytes.fromhex(port.mac.replace(":", ""))
        address = as_ipv6(str(port.address.ip)) if port.address is not None else bytes(16)
        row = WIRE.pack(outer, inner, port.mtu, mac, mac, address, *[0] * 11)
        self.wires.update(_KEY.pack(number), row)

    def open(self, number: int) -> None:
        """From now on the port passes all frames on to the wire."""
        self._wired.update(_KEY.pack(number), _KEY.pack(1))

    def close(self, number: int) -> None:
        """Undo both; without effect on a port that is not attached."""
        self._wired.update(_KEY.pack(number), _KEY.pack(0))
        self.wires.delete(_KEY.pack(number))

    def counts(self, number: int) -> WireCounts | None:
        """What a port's wire has counted; None for one that is not attached."""
        row = self.wires.lookup(_KEY.pack(number))
        if row is None:
            return None
        in_packets, in_bytes, out_packets, out_bytes, marked, *apart = WIRE.unpack(row)[6:]
        return WireCounts(in_packets, in_bytes, out_packets, out_bytes, marked, dict(zip(APART, apart, strict=True)))
