"""The addresses, rules and routes of a namespace that were set by commands: lines of what `ip ... add` takes.

In:  a socket in the namespace, or commands such as `ip addr add 10.0.0.1/31 dev eth1`.
Out: lines in one spelling: `addr 10.0.0.1/31 dev eth1`, `-6 route fd00::/16 via fd00::1 dev eth1`, `rule pref 32766
     from all table 254`. Without what the kernel adds by itself, loopback and link-local addresses.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from ipaddress import ip_interface, ip_network
from typing import Final

from heddle.kernel.fib import route_hops
from heddle.kernel.netlink import RTM_GETADDR, RTM_GETROUTE, NetInterface, RouteSocket, attributes
from heddle.kernel.uapi import IFADDRMSG, RTA_DST, RTMSG

_RTM_GETRULE: Final = 34
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_FRA_DST, _FRA_SRC, _FRA_IIF, _FRA_PRIORITY, _FRA_MARK, _FRA_TABLE, _FRA_OIF = 1, 2, 3, 6, 10, 15, 17  # fib_rules.h
_TO_TABLE, _INVERT = 1, 2  # FR_ACT_TO_TBL, FIB_RULE_INVERT
_RULE_WORDS: Final = {6: "blackhole", 7: "unreachable", 8: "prohibit"}  # FR_ACT_*
_RTA_TABLE, _RTPROT_KERNEL, _RTPROT_RA = 15, 2, 9
_MAIN, LOCAL_TABLE = 254, 255
_KINDS: Final = {1: "", 2: "local ", 6: "blackhole ", 7: "unreachable ", 8: "prohibit "}  # RTN_*
_LINK_LOCAL: Final = b"\xfe\x80"
_FAMILIES: Final = {socket.AF_INET: "", socket.AF_INET6: "-6 "}
_AF_SPEC, _I32 = 26, struct.Struct("=i")  # IFLA_AF_SPEC
# Of each family IFLA_INET_CONF or IFLA_INET6_CONF, and places in that array: IPV4_DEVCONF_* - 1 of ip.h, DEVCONF_*
# of ipv6.h (include/uapi/linux).
_CONF: Final[Mapping[int, tuple[str, int, Mapping[str, int]]]] = {
    socket.AF_INET: ("ipv4", 1, {"forwarding": 0, "rp_filter": 7, "ignore_routes_with_linkdown": 28}),
    socket.AF_INET6: ("ipv6", 2, {"forwarding": 0, "disable_ipv6": 26, "ignore_routes_with_linkdown": 39}),
}
OF_PORTS: Final = frozenset(key for _, _, keys in _CONF.values() for key in keys)
# The rules of every namespace (fib_default_rules_init, fib6_rules_net_init).
_USUAL: Final = ("pref 0 from all table 255", "pref 32766 from all table 254", "pref 32767 from all table 253")
_ROWS_ALIKE: Final = 1024  # what is kept as read: most ports and namespaces have the same bytes
_FIRST_PREF: Final = 32765  # of a rule without one: below the second rule (fib_default_rule_pref)


def ip_settings(netlink: RouteSocket, names: Mapping[int, str], table: int) -> frozenset[str]:
    """What is in this namespace now. names: ifindex -> interface. table: whose routes are read; 0: all tables."""
    return frozenset([*_addresses(netlink, names), *_rules(netlink), *_routes(netlink, names, table)])


def port_sysctls(found: Iterable[NetInterface]) -> dict[str, Mapping[tuple[str, str], str]]:
    """Interface -> (`net.ipv4.conf`, `forwarding`) and the like, each key in OF_PORTS -> value."""
    values = dict[str, Mapping[tuple[str, str], str]]()
    for each in found:
        families = attributes(each.attrs.get(_AF_SPEC, b""), 0)
        rows = ((key, kind, families.get(key, b"")) for key, (_, kind, _) in _CONF.items())
        values[each.name] = _conf(*(attributes(family, 0).get(kind, b"") for _, kind, family in rows))
    return values


@lru_cache(_ROWS_ALIKE)
def _conf(*arrays: bytes) -> Mapping[tuple[str, str], str]:
    """The values of an interface. arrays: of each family in _CONF."""
    return {
        (f"net.{version}.conf", key): str(_I32.unpack_from(array, 4 * place)[0])
        for array, (version, _, places) in zip(arrays, _CONF.values(), strict=True)
        for key, place in places.items()
        if 4 * place + 4 <= len(array)
    }


def _addresses(netlink: RouteSocket, names: Mapping[int, str]) -> Iterator[str]:
    for family, flag in _FAMILIES.items():
        for body in netlink.dump(RTM_GETADDR, IFADDRMSG.pack(family, 0, 0, 0, 0)):
            _, length, _, _, index = IFADDRMSG.unpack_from(body)
            attrs = attributes(body, IFADDRMSG.size)
            raw = attrs.get(_IFA_LOCAL) or attrs[_IFA_ADDRESS]
            if family == socket.AF_INET6 and raw.startswith(_LINK_LOCAL):
                continue  # every port has one
            address = ip_interface((raw, length))
            if not address.is_loopback and not address.is_link_local:
                yield f"{flag}addr {address} dev {names.get(index, f'if{index}')}"


def _rules(netlink: RouteSocket) -> Iterator[str]:
    for body in netlink.dump(_RTM_GETRULE, RTMSG.pack(0, 0, 0, 0, 0, 0, 0, 0, 0)):
        yield from _rule(body)


@lru_cache(_ROWS_ALIKE)
def _rule(body: bytes) -> tuple[str, ...]:
    """The line of a rule; none for one of another family."""
    family, to, source, _, table, _, _, action, flags = RTMSG.unpack_from(body)  # struct fib_rule_hdr
    if family not in _FAMILIES:
        return ()
    attrs = attributes(body, RTMSG.size)
    words = [f"pref {_number(attrs.get(_FRA_PRIORITY))}", *(["not"] if flags & _INVERT else [])]
    words.append(f"from {ip_network((attrs[_FRA_SRC], source)) if _FRA_SRC in attrs else 'all'}")
    words += [f"to {ip_network((attrs[_FRA_DST], to))}"] if _FRA_DST in attrs else []
    for key, word in ((_FRA_IIF, "iif"), (_FRA_OIF, "oif")):
        words += [f"{word} {attrs[key].rstrip(bytes(1)).decode()}"] if key in attrs else []
    words += [f"fwmark {_number(attrs[_FRA_MARK])}"] if _FRA_MARK in attrs else []
    number = _number(attrs.get(_FRA_TABLE)) or table
    words.append(f"table {number}" if action == _TO_TABLE else _RULE_WORDS.get(action, f"action {action}"))
    return (f"{_FAMILIES[family]}rule {' '.join(words)}",)


def _routes(netlink: RouteSocket, names: Mapping[int, str], table: int) -> Iterator[str]:
    for family, flag in _FAMILIES.items():
        for body in netlink.dump(RTM_GETROUTE, RTMSG.pack(family, 0, 0, 0, table, 0, 0, 0, 0)):
            _, length, _, _, own, proto, _, kind, flags = RTMSG.unpack_from(body)
            if proto in (_RTPROT_KERNEL, _RTPROT_RA) or kind not in _KINDS or flags & 0x200:  # RTM_F_CLONED
                continue
            attrs = attributes(body, RTMSG.size)
            prefix = ip_network((attrs.get(RTA_DST, bytes(4 if family == socket.AF_INET else 16)), length))
            hops = route_hops(body, names)
            vias = [f"{'via ' * bool(hop.gateway)}{hop.gateway} dev {hop.port}".strip() for hop in hops]
            yield f"{flag}route {_route(_KINDS[kind], prefix, vias, _number(attrs.get(_RTA_TABLE)) or own)}"


def _route(kind: str, prefix: object, vias: Iterable[str], table: int) -> str:
    hops = sorted(vias)
    over = " ".join(f"nexthop {hop}" for hop in hops) if len(hops) > 1 else "".join(hops)
    return " ".join(f"{kind}{prefix} {over} {'' if table == _MAIN else f'table {table}'}".split())


def _number(raw: bytes | None) -> int:
    return 0 if raw is None else int(struct.unpack_from("=I", raw)[0])


def commanded(commands: Iterable[str]) -> frozenset[str]:
    """What these commands of a rendered topology set in a new namespace, with the rules that every namespace has."""
    found = [f"{flag}rule {rule}" for flag in _FAMILIES.values() for rule in _USUAL[: 3 if not flag else 2]]
    prefs = {4: _FIRST_PREF, 6: _FIRST_PREF}
    for words in (line.removeprefix("ip -6").removeprefix("ip").split() for line in commands):
        match words:
            case ["addr", "add", text, "dev", port]:
                address = ip_interface(text)
                found.append(f"{'-6 ' * (address.version == 6)}addr {address} dev {port}")
            case ["route", "add", text, *rest]:
                prefix, table = ip_network(text), int(rest.pop()) if "table" in rest else _MAIN
                vias = " ".join(word for word in rest if word != "table").split("nexthop ")
                line = _route("", prefix, filter(None, (each.strip() for each in vias)), table)
                found.append(f"{'-6 ' * (prefix.version == 6)}route {line}")
            case ["rule", "add", "from", text, "table", number]:
                source = ip_network(text)
                pref = prefs[source.version]
                prefs[source.version] -= 1
                found.append(f"{'-6 ' * (source.version == 6)}rule pref {pref} from {source} table {number}")
    return frozenset(found)
