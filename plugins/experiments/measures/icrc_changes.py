"""Which changes of a RoCEv2 packet in flight its ICRC allows: TTL, ECN mark, UDP source port."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from heddle.endpoints.nic.frames import FlowHeader, SendBatch
from heddle.runs.measuring import Measure, Measuring
from heddle.wire import layout as wire
from heddle.wire.layout import verdict

_IP: Final = 14  # offset of the IP header in a frame
# Figure -> the byte of the IPv4 packet whose lowest bit is inverted.
_CHANGES: Final[Mapping[str, int]] = {"ttl": 8, "ecn": 1, "sport": wire.IPV4_BYTES + 1}


def _measure(at: Measuring) -> Mapping[str, float]:
    one, other = at.fabric.nics[0], at.fabric.nics[-1]
    if one.address is None or other.address is None:
        raise RuntimeError("NICs of a fabric have addresses")
    flow = FlowHeader(
        src_mac=one.mac, dst_mac=other.mac, src_ip=str(one.address.ip), dst_ip=str(other.address.ip),
        sport=50000, dqpn=2, tos=wire.TOS_DATA,
    )  # fmt: skip
    size = int(at.options["payload"])
    batch = SendBatch(size, slots=1)
    batch.put_data(0, flow, wire.WRITE_ONLY, 0, bytes(size), reth=(0, 0, size))
    frame = bytes(batch.frame(0))
    found = {"unchanged": verdict(frame, _IP)}
    for name in _CHANGES:
        changed = bytearray(frame)
        changed[_IP + at.options[name]] ^= 1
        found[name] = verdict(bytes(changed), _IP)
    return {name: float(each == "right") for name, each in found.items()}


MEASURE: Final = Measure(
    "Change a RoCEv2 packet as a switch could, and check its ICRC.",
    {
        "unchanged": "1 if the ICRC of the packet is right, else 0",
        "ttl": "the same with another TTL",
        "ecn": "the same with another ECN mark",
        "sport": "the same with another UDP source port",
    },
    _measure,
    {"payload": 1024, **_CHANGES},
    live=False,
    seconds=0.1,
)
