"""Fields of packet headers in Open Traffic Generator: one value, several in turn, counters, or computed.

In:  the JSON of a field. Out: a tuple of integers that packets have in turn; None: the server computes the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from heddle.base.ethernet import CLASSES, MAC_CONTROL, PFC_ADDRESS, PFC_OPCODE
from heddle_plugins.otg.rules import U32, At, Rule, address, choice, fields, listed, mac, number, only, word

MOST_VALUES: Final = 4096  # of one field
Values = tuple[int, ...]


def pattern(scalar: Rule, bits: int, default: int | None, *, automatic: bool = False) -> Rule:
    """A field of so many bits. default: where it is absent; None: it is computed. automatic: the choice `auto` is."""
    counter = fields({"start": scalar, "step": scalar, "count": number(1, 1, U32)})
    options = {
        "value": scalar,
        "values": listed(scalar, MOST_VALUES, 1),
        "increment": counter,
        "decrement": counter,
    }
    if automatic:
        options["auto"] = Rule(lambda value, _: value)  # what a server would report there
    chosen = choice("auto" if automatic else "value", options)

    def read(value: Any, at: At) -> Any:
        how, found = chosen.read(value, at)
        if how == "auto":
            return None
        if how in ("increment", "decrement"):
            return _counted(found or {}, -1 if how == "decrement" else 1, bits, default or 0, at.inside(how))
        if how == "values":
            return tuple(each or 0 for each in found)
        return None if found is None and default is None else (found if found is not None else default or 0,)

    return Rule(read, None if default is None else (default,))


def _counted(counter: Mapping[str, Any], sign: int, bits: int, default: int, at: At) -> Values:
    count = counter.get("count") or 1
    if count > MOST_VALUES:
        at.inside("count").wrong(f"is {count}", f"use up to {MOST_VALUES} values")
        return (0,)
    start, step = counter.get("start"), counter.get("step")
    start, step = default if start is None else start, 1 if step is None else step
    return tuple((start + sign * index * step) % (1 << bits) for index in range(count))


def integer(bits: int, default: int | None, *, automatic: bool = False) -> Rule:
    """A field of a number."""
    return pattern(number(None, 0, (1 << bits) - 1), bits, default, automatic=automatic)


def macs(default: int | None = None, *, automatic: bool = False) -> Rule:
    """A field of a MAC address; an absent one without a default is computed."""
    return pattern(mac(), 48, default, automatic=automatic)


def addresses(version: int) -> Rule:
    """A field of an IP address; an absent one is computed."""
    return pattern(address(version), 32 if version == 4 else 128, None)


def checksum() -> Rule:
    """A checksum: None for the right one, -1 for a wrong one, or its value."""
    chosen = choice("generated", {"generated": word("good", "good", "bad"), "custom": number(0, 0, 0xFFFF)})

    def read(value: Any, at: At) -> Any:
        how, found = chosen.read(value, at)
        return found if how == "custom" else -1 if found == "bad" else None

    return Rule(read)


_PRIORITY: Final = choice(
    "dscp",
    {
        "raw": integer(8, 0),
        "dscp": fields({"phb": integer(6, 0), "ecn": integer(2, 0)}, always=True),
    },
)


def priority() -> Rule:
    """The traffic class of IPv4: one value of 8 bits for each packet."""

    def read(value: Any, at: At) -> Any:
        how, found = _PRIORITY.read(value, at)
        if how == "raw":
            return found
        phb, ecn = (found or {}).get("phb") or (0,), (found or {}).get("ecn") or (0,)
        if len(phb) > 1 and len(ecn) > 1:
            at.wrong("has several values of phb and of ecn", "use several of one of them")
        return tuple(dscp << 2 | mark for dscp in phb for mark in ecn)

    return Rule(read, (0,))


_ONE_HEADER: Final = "options and fragments are not built"
HEADERS: Final[Mapping[str, Rule]] = {
    "ethernet": fields({
        "dst": macs(automatic=True), "src": macs(), "ether_type": integer(16, None, automatic=True),
    }, always=True),
    "pfcpause": fields({
        "dst": macs(int.from_bytes(PFC_ADDRESS, "big")), "src": macs(), "ether_type": integer(16, MAC_CONTROL),
        "control_op_code": integer(16, PFC_OPCODE), "class_enable_vector": integer(16, 0),
        **{f"pause_class_{number}": integer(16, 0) for number in range(CLASSES)},
    }, always=True),
    "vlan": fields({
        "priority": integer(3, 0), "cfi": integer(1, 0), "id": integer(12, 1), "tpid": integer(16, 0x8100),
    }, always=True),
    "ipv4": fields({
        "priority": priority(), "identification": integer(16, 0), "dont_fragment": integer(1, 0),
        "time_to_live": integer(8, 64), "protocol": integer(8, None, automatic=True),
        "total_length": integer(16, None, automatic=True), "header_checksum": checksum(),
        "src": addresses(4), "dst": addresses(4), "options": only([], _ONE_HEADER),
    }, always=True),
    "ipv6": fields({
        "traffic_class": integer(8, 0), "flow_label": integer(20, 0), "hop_limit": integer(8, 64),
        "next_header": integer(8, None, automatic=True), "payload_length": integer(16, None, automatic=True),
        "src": addresses(6), "dst": addresses(6),
    }, always=True),
    "udp": fields({
        "src_port": integer(16, 0), "dst_port": integer(16, 0), "length": integer(16, None), "checksum": checksum(),
    }, always=True),
    "tcp": fields({
        "src_port": integer(16, 0), "dst_port": integer(16, 0), "seq_num": integer(32, 0), "ack_num": integer(32, 0),
        "ecn_ns": integer(1, 0), "ecn_cwr": integer(1, 0), "ecn_echo": integer(1, 0),
        "ctl_urg": integer(1, 0), "ctl_ack": integer(1, 0), "ctl_psh": integer(1, 0), "ctl_rst": integer(1, 0),
        "ctl_syn": integer(1, 0), "ctl_fin": integer(1, 0), "window": integer(16, 0), "checksum": checksum(),
    }, always=True),
}  # fmt: skip
