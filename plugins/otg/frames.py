"""Frames of raw flows, from the headers of a configuration: Ethernet, VLANs, IPv4 or IPv6, UDP or TCP, other bytes;
or a PFC frame.

In:  headers in order, each with the values that its fields have in turn; the frame's bytes without FCS; the ends.
Out: frame i, of `variants` different ones; and what all frames of the flow have in common at the receiver.
A field that a configuration leaves out is computed: the addresses are those of the ends, the destination MAC is the
gateway's, lengths, types and checksums are right.
"""

from __future__ import annotations

import ipaddress
import math
import struct
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from heddle.base.ethernet import CLASSES
from heddle.endpoints.nic.frames import ip_checksum
from heddle.traffic.flow import Endpoint
from heddle.wire import layout as wire

OTHER: Final = 61  # protocol of a packet without UDP and TCP: any host internal protocol
_UNKNOWN: Final = 0xFFFF  # Ethernet type of a frame without IP
_ROOM: Final = 1 << 20  # bytes of frames that are kept for each flow
_VLANS: Final = 2
_PAUSE: Final = "pfcpause"
_PAUSE_LAYOUT: Final = struct.Struct(f"!6s6sHHH{CLASSES}H")
_UDP_BYTES: Final = 8
_TCP_BYTES: Final = 20
_IP_BYTES: Final = {"ipv4": wire.IPV4_BYTES, "ipv6": wire.IPV6_BYTES}
_TCP_FLAGS: Final = ("ecn_ns", "ecn_cwr", "ecn_echo", "ctl_urg", "ctl_ack", "ctl_psh", "ctl_rst", "ctl_syn", "ctl_fin")
Header = tuple[str, Mapping[str, Any]]
PROTOCOLS: Final = {"udp": wire.PROTO_UDP, "tcp": wire.PROTO_TCP}


def order_problem(names: Sequence[str]) -> str:
    """Why headers cannot follow each other like this; empty if they can."""
    at = 0
    if names and names[0] == _PAUSE:
        return f"has {names[1]} after {_PAUSE}" if len(names) > 1 else ""
    if not names or names[0] != "ethernet":
        return f"must begin with ethernet, or be {_PAUSE}"
    stages = (("ethernet", 1), ("vlan", _VLANS), ("ip", 1), ("l4", 1), ("custom", len(names)))
    kinds = ["ip" if each in _IP_BYTES else "l4" if each in PROTOCOLS else each for each in names]
    for index, kind in enumerate(kinds):
        while at < len(stages) and stages[at][0] != kind:
            at += 1
        if at == len(stages) or kinds[: index + 1].count(kind) > stages[at][1]:
            return f"has {names[index]} after {names[index - 1] if index else 'nothing'}"
        if kind == "l4" and "ip" not in kinds[:index]:
            return f"has {names[index]} without ipv4 or ipv6"
    return ""


@dataclass
class RawFrames:
    """The frames of one flow. size: of each, without FCS. payload: the bytes behind the headers, as long as needed."""

    headers: Sequence[Header]
    size: int
    payload: tuple[str, Mapping[str, Any] | None] | None
    src: Endpoint
    dst: Endpoint | None
    variants: int = field(init=False)

    def __post_init__(self) -> None:
        periods = [len(v) for _, each in self.headers for v in each.values() if isinstance(v, tuple)]
        self.variants = math.lcm(*periods) if periods else 1
        self._kept: OrderedDict[int, bytes] = OrderedDict()

    @property
    def least_bytes(self) -> int:
        """The bytes of all headers."""
        lengths = {
            _PAUSE: _PAUSE_LAYOUT.size,
            "ethernet": wire.ETH_BYTES,
            "vlan": 4,
            "udp": _UDP_BYTES,
            "tcp": _TCP_BYTES,
            **_IP_BYTES,
        }
        return sum(lengths[name] if name in lengths else len(each["bytes"]) for name, each in self.headers)

    def _header(self, *names: str) -> Header | None:
        return next((each for each in self.headers if each[0] in names), None)

    def frame(self, index: int) -> bytes:
        """The frame of a packet of the flow."""
        index %= self.variants
        found = self._kept.get(index)
        if found is None:
            found = self._made(index)
            self._kept[index] = found
            if len(self._kept) * self.size > _ROOM and len(self._kept) > 1:
                self._kept.popitem(last=False)
        return found

    def _made(self, index: int) -> bytes:
        body = b"".join(each["bytes"] for name, each in self.headers if name == "custom")
        body += self._filling(self.size - self.least_bytes)
        if self.headers[0][0] == _PAUSE:
            return self._pause(self.headers[0][1], index) + body
        ip, inner = self._header(*_IP_BYTES), OTHER
        if ip is not None and (found := self._header(*PROTOCOLS)) is not None:
            inner = PROTOCOLS[found[0]]
            body = self._transport(found, index, body, self._pseudo(ip, index))
        kind = _UNKNOWN
        if ip is not None:
            version = 4 if ip[0] == "ipv4" else 6
            kind = wire.LAYOUTS[version].ethertype
            body = (self._ipv4 if version == 4 else self._ipv6)(ip[1], index, body, inner)
        for _, each in reversed([header for header in self.headers if header[0] == "vlan"]):
            tag = _at(each, "priority", index) << 13 | _at(each, "cfi", index) << 12 | _at(each, "id", index)
            body = struct.pack(">HH", tag, kind) + body
            kind = _at(each, "tpid", index)
        ethernet = self.headers[0][1]
        to = _at(ethernet, "dst", index, _mac(self.src.gateway_mac))
        own = _at(ethernet, "src", index, _mac(self.src.mac))
        return (
            to.to_bytes(6, "big")
            + own.to_bytes(6, "big")
            + struct.pack(">H", _at(ethernet, "ether_type", index, kind))
            + body
        )

    def _pause(self, each: Mapping[str, Any], index: int) -> bytes:
        ends = (_at(each, name, index, _mac(self.src.mac)).to_bytes(6, "big") for name in ("dst", "src"))
        names = ("ether_type", "control_op_code", "class_enable_vector", *(f"pause_class_{n}" for n in range(CLASSES)))
        return _PAUSE_LAYOUT.pack(*ends, *(_at(each, name, index) for name in names))

    def _filling(self, size: int) -> bytes:
        how, data = self.payload or ("fixed", None)
        if how != "fixed":
            turn = bytes(range(256)) if how.endswith("byte") else b"".join(struct.pack(">H", i) for i in range(1 << 16))
            turn = turn if how.startswith("increment") else bytes(255 - each for each in turn)
        else:
            turn = data["pattern"] if data and data["pattern"] else b"\0"
            if data and not data["repeat"]:
                return turn[:size].ljust(size, b"\0")
        return (turn * (size // len(turn) + 1))[:size]

    def _addresses(self, ip: Header, index: int) -> tuple[bytes, bytes]:
        length = 4 if ip[0] == "ipv4" else 16
        return self._ip(ip, "src", index).to_bytes(length, "big"), self._ip(ip, "dst", index).to_bytes(length, "big")

    def _ip(self, ip: Header, name: str, index: int) -> int:
        end = self.src if name == "src" else self.dst
        own = ipaddress.ip_address(end.ip) if end is not None else None
        version = 4 if ip[0] == "ipv4" else 6
        return _at(ip[1], name, index, int(own) if own is not None and own.version == version else 0)

    def _pseudo(self, ip: Header, index: int) -> bytes:
        """The start of the header that checksums of UDP and TCP include: the addresses."""
        return b"".join(self._addresses(ip, index))

    def _transport(self, header: Header, index: int, body: bytes, addresses: bytes) -> bytes:
        name, each = header
        ports = _at(each, "src_port", index), _at(each, "dst_port", index)
        if name == "udp":
            head = struct.pack(">4H", *ports, _at(each, "length", index, _UDP_BYTES + len(body)), 0)
            sum_at = 6
        else:
            flags = sum(_at(each, bit, index) << place for place, bit in enumerate(reversed(_TCP_FLAGS)))
            numbers = _at(each, "seq_num", index), _at(each, "ack_num", index)
            head = struct.pack(">HHIIHHHH", *ports, *numbers, 5 << 12 | flags, _at(each, "window", index), 0, 0)
            sum_at = 16
        if each["checksum"] is not None and each["checksum"] >= 0:
            value = each["checksum"]
        else:
            pseudo = addresses + struct.pack(">HBBI", 0, 0, PROTOCOLS[name], len(head) + len(body))
            summed = pseudo + head + body
            value = ip_checksum(summed + b"\0" * (len(summed) % 2))
            value = value or 0xFFFF if name == "udp" else value
            value = value if each["checksum"] is None else value ^ 0x5555
        return head[:sum_at] + struct.pack(">H", value) + head[sum_at + 2 :] + body

    def _ipv4(self, each: Mapping[str, Any], index: int, body: bytes, inner: int) -> bytes:
        fixed = (
            wire.IPV4_NO_OPTIONS, _at(each, "priority", index),
            _at(each, "total_length", index, wire.IPV4_BYTES + len(body)), _at(each, "identification", index),
            _at(each, "dont_fragment", index) << 14, _at(each, "time_to_live", index),
            _at(each, "protocol", index, inner),
        )  # fmt: skip
        ends = self._addresses(("ipv4", each), index)
        right = ip_checksum(wire.IPV4_HEADER.pack(*fixed, 0, *ends))
        asked = each["header_checksum"]
        value = right if asked is None else right ^ 0x5555 if asked < 0 else asked
        return wire.IPV4_HEADER.pack(*fixed, value, *ends) + body

    def _ipv6(self, each: Mapping[str, Any], index: int, body: bytes, inner: int) -> bytes:
        first = 6 << 28 | _at(each, "traffic_class", index) << 20 | _at(each, "flow_label", index)
        size, after = _at(each, "payload_length", index, len(body)), _at(each, "next_header", index, inner)
        ends = self._addresses(("ipv6", each), index)
        return wire.IPV6_HEADER.pack(first, size, after, _at(each, "hop_limit", index), *ends) + body

    def signature(self) -> Signature | None:
        """What identifies these frames at the receiver; None without IP, as no switch routes them."""
        ip = self._header(*_IP_BYTES)
        if ip is None:
            return None
        version, found = (4 if ip[0] == "ipv4" else 6), dict[str, int]()
        single = {name: v[0] for name, v in ip[1].items() if isinstance(v, tuple) and len(v) == 1}
        single |= {name: self._ip(ip, name, 0) for name in ("src", "dst") if ip[1][name] is None}
        found |= {name: single[name] for name in ("src", "dst") if name in single}
        traffic_class = single.get("priority" if version == 4 else "traffic_class")
        if traffic_class is not None:
            found["dscp"] = traffic_class >> 2
        inner = self._header(*PROTOCOLS)
        protocol = ip[1]["protocol" if version == 4 else "next_header"]
        if protocol is None or len(protocol) == 1:
            found["protocol"] = protocol[0] if protocol else PROTOCOLS[inner[0]] if inner else OTHER
        if inner is not None:
            ports = ((name, inner[1][name]) for name in ("src_port", "dst_port"))
            found |= {name: values[0] for name, values in ports if len(values) == 1}
        return Signature(version, found)


def _mac(text: str) -> int:
    return int(text.replace(":", ""), 16)


def _at(header: Mapping[str, Any], name: str, index: int, computed: int = 0) -> int:
    """The value of a field in packet `index`. computed: where the configuration leaves it out."""
    values = header[name]
    return computed if values is None else int(values[index % len(values)])


_LD_WORD, _LD_HALF, _LD_BYTE, _AND, _JEQ, _RET = 0x20, 0x28, 0x30, 0x54, 0x15, 0x06
_ALL: Final = 0x40000
_L4_AT: Final = {4: wire.UDP_AT, 6: wire.LAYOUTS[6].udp_at}
# Field -> where it is in a frame, and its bytes; of fields that no switch changes.
_PLACES: Final[Mapping[int, Mapping[str, tuple[int, int]]]] = {
    4: {"protocol": (23, 1), "src": (26, 4), "dst": (30, 4)},
    6: {"protocol": (20, 1), "src": (22, 16), "dst": (38, 16)},
}
_Op = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Signature:
    """The fields that all frames of a flow have when they arrive: name -> value."""

    version: int
    values: Mapping[str, int]

    def distinct(self, other: Signature) -> bool:
        """Whether no frame can be of both."""
        return self.version != other.version or any(
            name in other.values and value != other.values[name] for name, value in self.values.items()
        )

    def program(self) -> list[_Op]:
        """A classic BPF filter that accepts these frames."""
        checks: list[tuple[int, int, int, int]] = [(_LD_HALF, 12, 0xFFFF, wire.LAYOUTS[self.version].ethertype)]
        for name, value in self.values.items():
            if name == "dscp":
                place = (_LD_BYTE, 15, 0xFC, value << 2) if self.version == 4 else (_LD_HALF, 14, 0x0FC0, value << 6)
                checks.append(place)
            elif name in ("src_port", "dst_port"):
                checks.append((_LD_HALF, _L4_AT[self.version] + 2 * (name == "dst_port"), 0xFFFF, value))
            else:
                at, size = _PLACES[self.version][name]
                if size == 1:
                    checks.append((_LD_BYTE, at, 0xFF, value))
                data = value.to_bytes(size, "big")
                checks += [
                    (_LD_WORD, at + word, 0xFFFFFFFF, int.from_bytes(data[word : word + 4], "big"))
                    for word in range(0, size, 4)
                    if size >= 4
                ]
        program: list[_Op] = []
        for number, (load, at, mask, value) in enumerate(checks):
            left = 3 * (len(checks) - number - 1) + 1  # instructions from the next check to the end
            program += [(load, 0, 0, at), (_AND, 0, 0, mask), (_JEQ, 0, left, value)]
        return [*program, (_RET, 0, 0, _ALL), (_RET, 0, 0, 0)]
