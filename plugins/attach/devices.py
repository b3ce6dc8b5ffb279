"""Devices of users over netlink: what they are, and the messages that make, set and restore them.

In:  a socket in the namespace of the device. Out: Device; requests for `RouteSocket.change_all`.
A process of `ip` or `tc` for each device would take longer than all of its messages.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_interface, ip_network
from pathlib import Path
from typing import Final, NamedTuple

from heddle.base.problems import MachineError, Problem
from heddle.kernel import netlink as nl
from heddle.kernel import uapi
from heddle.kernel.ipsettings import ip_settings
from heddle.switch.queues.tcmessages import CLSACT, NEW, TCA_BPF_CLASSID, TCA_BPF_NAME

_RTM_DELLINK, _RTM_NEWADDR, _RTM_DELADDR, _RTM_DELQDISC = 17, 20, 21, 37
_IFA_ADDRESS, _IFA_LOCAL, _IFA_F_NODAD = 1, 2, 0x02
_RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY, _RTA_PREFSRC = 4, 5, 6, 7
_MAIN, _RTPROT_STATIC, _RTN_UNICAST = 254, 4, 1
_IFLA_INFO_DATA, _VETH_INFO_PEER, _IFLA_NET_NS_FD, _IFLA_AF_SPEC, _IFLA_INET6_ADDR_GEN_MODE = 2, 1, 28, 26, 8
_NO_ADDRESS: Final = b"\1"  # IN6_ADDR_GEN_MODE_NONE
_TCA_BPF_FD, _TCA_BPF_FLAGS, _DIRECT_ACTION = 6, 8, 1
_HOOKS: Final = {"ingress": 0xFFF2, "egress": 0xFFF3}  # TC_H_MIN_INGRESS, TC_H_MIN_EGRESS
_NAME_BYTES: Final = 15
_LONGEST: Final = 65_535  # ETH_MAX_MTU
TAP: Final = "tun"  # the kernel's kind of a TAP


@dataclass(frozen=True, slots=True)
class Device:
    """An interface. kind: of virtual ones (`veth`, `tun`); empty for a NIC. master: of a bridge or bond; 0: none.

    clsact: whether it has a place for programs of tc. addresses, routes: of it, without link-local ones.
    """

    name: str
    index: int
    kind: str
    mtu: int
    mac: str
    up: bool
    carrier: bool
    master: int
    clsact: bool
    addresses: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()


def devices(netlink: nl.RouteSocket) -> dict[str, Device]:
    """Every interface of the socket's namespace, by name."""
    found = [*nl.interfaces(netlink)]
    names = {each.ifindex: each.name for each in found}
    hooked = {each.ifindex for each in nl.qdiscs(netlink) if each.kind == "clsact"}
    addresses: dict[str, list[str]] = {}
    routes: dict[str, list[str]] = {}
    for line in ip_settings(netlink, names, 0):
        words = line.removeprefix("-6 ").split()
        if words[0] in ("addr", "route") and "dev" in words:
            kept = addresses if words[0] == "addr" else routes
            kept.setdefault(words[words.index("dev") + 1], []).append(words[1])
    return {each.name: _device(each, hooked, addresses, routes) for each in found}


def _device(
    each: nl.NetInterface, hooked: set[int], addresses: dict[str, list[str]], routes: dict[str, list[str]]
) -> Device:
    info = nl.attributes(each.attrs.get(uapi.IFLA_LINKINFO, b""), 0)
    number = {key: int.from_bytes(each.attrs.get(key, b""), "little") for key in (uapi.IFLA_MTU, uapi.IFLA_MASTER)}
    return Device(
        each.name, each.ifindex, info.get(uapi.IFLA_INFO_KIND, b"").rstrip(b"\0").decode(), number[uapi.IFLA_MTU],
        each.attrs.get(uapi.IFLA_ADDRESS, b"").hex(":"), bool(each.flags & uapi.IFF_UP),
        bool(each.flags & uapi.IFF_LOWER_UP), number[uapi.IFLA_MASTER], each.ifindex in hooked,
        tuple(sorted(addresses.get(each.name, ()))), tuple(sorted(routes.get(each.name, ()))),
    )  # fmt: skip


class LinkStep(NamedTuple):
    """A request, and what it does, for the user who reads that it was refused."""

    what: str
    change: nl.Change


def do(
    netlink: nl.RouteSocket, where: str, steps: Sequence[LinkStep], hint: Callable[[int], str] = lambda _: ""
) -> None:
    """Make changes in order. MachineError with the first one that is refused. hint: by errno."""
    refusals: list[Problem] = []

    def refused(number: int, error: nl.NetlinkError) -> None:
        code = error.errno or errno.EIO
        refusals.append(Problem(where, steps[number].what, f"was refused: {os.strerror(code)}", hint(code)))

    netlink.change_all([each.change for each in steps], refused)
    if refusals:
        raise MachineError(refusals[0])


def undo(netlink: nl.RouteSocket, steps: Sequence[LinkStep]) -> None:
    """Make changes in order; what is gone already is left out."""
    netlink.change_all([each.change for each in steps], lambda *_: None)


def veth(inner: str, far: str, space: int, mtu: int, mac: str) -> LinkStep:
    """A veth: `inner` here, `far` in the namespace behind the descriptor. mtu, mac: of `far`; an empty MAC: any.

    `inner` takes frames of every length, so that the program there counts those that are too long: a veth drops what
    is longer than the MTU of its peer (is_skb_forwardable).
    """
    other = uapi.IFINFOMSG.pack(0, 0, 0, 0, 0) + _name(far) + _u32(uapi.IFLA_MTU, mtu) + _u32(_IFLA_NET_NS_FD, space)
    other += nl.attribute(uapi.IFLA_ADDRESS, bytes.fromhex(mac.replace(":", ""))) if mac else b""
    info = nl.attribute(uapi.IFLA_INFO_KIND, b"veth\0")
    info += nl.attribute(_IFLA_INFO_DATA, nl.attribute(_VETH_INFO_PEER, other))
    body = uapi.IFINFOMSG.pack(0, 0, 0, 0, 0) + _name(inner) + _u32(uapi.IFLA_MTU, _LONGEST)
    return LinkStep(f"a veth to {far}", (nl.RTM_NEWLINK, body + nl.attribute(uapi.IFLA_LINKINFO, info), NEW))


def silent(index: int) -> LinkStep:
    """Keep the kernel from giving an interface a link-local address: then it sends nothing by itself."""
    mode = nl.attribute(_IFLA_INET6_ADDR_GEN_MODE, _NO_ADDRESS)
    spec = nl.attribute(_IFLA_AF_SPEC, nl.attribute(socket.AF_INET6, mode))
    return LinkStep("no link-local address", (nl.RTM_SETLINK, uapi.IFINFOMSG.pack(0, 0, index, 0, 0) + spec, 0))


def removed(name: str) -> LinkStep:
    """Remove an interface."""
    return LinkStep(f"remove {name}", (_RTM_DELLINK, uapi.IFINFOMSG.pack(0, 0, 0, 0, 0) + _name(name), 0))


def with_mtu(index: int, mtu: int) -> LinkStep:
    """Set an MTU, in bytes."""
    body = uapi.IFINFOMSG.pack(0, 0, index, 0, 0) + _u32(uapi.IFLA_MTU, mtu)
    return LinkStep(f"MTU {mtu}", (nl.RTM_SETLINK, body, 0))


def set_up(index: int, *, up: bool = True) -> LinkStep:
    """Set an interface up or down."""
    body = uapi.IFINFOMSG.pack(0, 0, index, uapi.IFF_UP if up else 0, uapi.IFF_UP)
    return LinkStep(f"set {'up' if up else 'down'}", (nl.RTM_SETLINK, body, 0))


def address(index: int, text: str, *, add: bool = True) -> LinkStep:
    """Add an address such as 10.0.0.1/31, or remove it."""
    found = ip_interface(text)
    family, nodad = (socket.AF_INET, 0) if found.version == 4 else (socket.AF_INET6, _IFA_F_NODAD)
    body = uapi.IFADDRMSG.pack(family, found.network.prefixlen, nodad, 0, index)
    body += nl.attribute(_IFA_LOCAL, found.ip.packed) + nl.attribute(_IFA_ADDRESS, found.ip.packed)
    return LinkStep(f"address {text}", (_RTM_NEWADDR if add else _RTM_DELADDR, body, NEW if add else 0))


def route(index: int, text: str, *, add: bool = True) -> LinkStep:
    """Add a route, or remove it. text: `PREFIX via GATEWAY metric N src ADDRESS`."""
    prefix, _, gateway, _, metric, _, source = text.split()
    network = ip_network(prefix)
    family = socket.AF_INET if network.version == 4 else socket.AF_INET6
    body = uapi.RTMSG.pack(family, network.prefixlen, 0, 0, _MAIN, _RTPROT_STATIC, 0, _RTN_UNICAST, 0)
    body += nl.attribute(uapi.RTA_DST, network.network_address.packed)
    body += nl.attribute(_RTA_GATEWAY, ip_interface(gateway).ip.packed) + _u32(_RTA_OIF, index)
    body += _u32(_RTA_PRIORITY, int(metric)) + nl.attribute(_RTA_PREFSRC, ip_interface(source).ip.packed)
    return LinkStep(f"route {text}", (nl.RTM_NEWROUTE if add else nl.RTM_DELROUTE, body, NEW if add else 0))


def hook(index: int) -> LinkStep:
    """The place for programs of a device."""
    return LinkStep("clsact", (nl.RTM_NEWQDISC, _clsact(index) + nl.attribute(uapi.TCA_KIND, b"clsact\0"), NEW))


def unhooked(index: int) -> LinkStep:
    """Remove it, with the programs."""
    return LinkStep("clsact", (_RTM_DELQDISC, _clsact(index), 0))


def program(index: int, side: str, name: str, fd: int, classid: int) -> LinkStep:
    """A loaded program at `ingress` or `egress` of a device. classid: what the program reads as tc_classid."""
    options = nl.attribute(_TCA_BPF_FD, struct.pack("=i", fd)) + nl.attribute(TCA_BPF_NAME, name.encode() + b"\0")
    options += _u32(_TCA_BPF_FLAGS, _DIRECT_ACTION) + _u32(TCA_BPF_CLASSID, classid)
    info = 10 << 16 | socket.htons(3)  # preference, ETH_P_ALL
    head = uapi.TCMSG.pack(0, index, 1, CLSACT & 0xFFFF0000 | _HOOKS[side], info)
    body = head + nl.attribute(uapi.TCA_KIND, b"bpf\0") + nl.attribute(nl.NESTED | uapi.TCA_OPTIONS, options)
    return LinkStep(f"program {name}", (nl.RTM_NEWTFILTER, body, nl.NLM_F_CREATE))


def device_name(name: str) -> str:
    """A name that the kernel accepts for a device that Heddle makes: the start of it, where it is longer."""
    return name[:_NAME_BYTES]


def identity(space: Path) -> tuple[int, int] | None:
    """The numbers of a namespace: device and inode; None where the path leads to none."""
    try:
        found = space.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _clsact(index: int) -> bytes:
    return uapi.TCMSG.pack(0, index, CLSACT & 0xFFFF0000, CLSACT, 0)


def _name(text: str) -> bytes:
    return nl.attribute(uapi.IFLA_IFNAME, text.encode() + b"\0")


def _u32(kind: int, value: int) -> bytes:
    return nl.attribute(kind, struct.pack("=I", value))
