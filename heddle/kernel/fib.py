"""A switch's forwarding table, read from its kernel by three netlink dumps, without a process.

In:  a node handle.
Out: Fib: prefix -> next hops *in the kernel's order*, since hash-threshold selection depends on that order
     (fib_select_multipath, nexthop_select_path_hthr) and not on the order in a configuration.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from ipaddress import IPv6Network, ip_network
from typing import Any, Final, NamedTuple

from heddle.base.families import Address, Network, Version, network
from heddle.kernel import netlink as nl
from heddle.kernel.namespace import NodeHandle
from heddle.kernel.uapi import NHMSG, RTA_DST, RTA_OIF, RTMSG, RTNEXTHOP

RT_TABLE_MAIN: Final = 254
RTN_UNICAST: Final = 1
_ALIKE: Final = 64  # sets of interfaces whose routes are kept as read
_MOST_SEEN: Final = 4096  # routes of each
_DISCARDING: Final = frozenset({6, 7, 8})  # RTN_BLACKHOLE, RTN_UNREACHABLE, RTN_PROHIBIT
AF: Final[Mapping[int, int]] = {4: socket.AF_INET, 6: socket.AF_INET6}
# IPv6 prefixes of each interface in the main table that are not used for routing: link-local (RFC 4291), multicast.
_OF_INTERFACES: Final = (IPv6Network("fe80::/10"), IPv6Network("ff00::/8"))
LINK_LOCAL: Final = IPv6Network("fe80::/64")
_LINK_LOCAL_BYTES: Final = LINK_LOCAL.network_address.packed
_RTPROT_KERNEL: Final = 2
_DEAD: Final = 0x1  # RTNH_F_DEAD; with ignore_routes_with_linkdown, also set for a link without carrier

_RTA_GATEWAY, _RTA_PRIORITY, _RTA_MULTIPATH, _RTA_VIA, _RTA_NH_ID = 5, 6, 9, 18, 30
_NHA_ID, _NHA_GROUP, _NHA_BLACKHOLE, _NHA_OIF, _NHA_GATEWAY, _NHA_RES_GROUP, _NHA_RES_BUCKET = 1, 2, 4, 5, 6, 12, 13
_BUCKET_INDEX, _BUCKET_NH_ID = 1, 3  # NHA_RES_BUCKET_INDEX, NHA_RES_BUCKET_NH_ID

_U32: Final = struct.Struct("=I")
_GROUP_ENTRY: Final = struct.Struct("=IBBH")


@dataclass(frozen=True, slots=True)
class NextHop:
    """One next hop. gateway is empty for a connected prefix; weight is at least 1; dead next hops get no traffic."""

    port: str
    ifindex: int
    gateway: str
    weight: int = 1
    dead: bool = False


@dataclass(frozen=True)
class Fib:
    """The main table of one switch. A prefix without next hops discards (blackhole, unreachable, prohibit).

    buckets: for prefixes with a resilient nexthop group, the index of the current next hop of each bucket.
    """

    switch: str
    routes: Mapping[Network, tuple[NextHop, ...]]  # all of one version of IP
    buckets: Mapping[Network, tuple[int, ...]] = field(default_factory=dict)

    @cached_property
    def _by_length(self) -> tuple[tuple[int, Mapping[int, Network]], ...]:
        """(mask, network as an integer -> prefix), the longest prefixes first."""
        lengths: dict[int, dict[int, Network]] = {}
        bits = 0
        for prefix in self.routes:
            bits = prefix.max_prefixlen
            lengths.setdefault(prefix.prefixlen, {})[int(prefix.network_address)] = prefix
        ones = (1 << bits) - 1
        return tuple((ones >> (bits - length) << (bits - length), lengths[length]) for length in sorted(lengths)[::-1])

    def match(self, address: Address | int) -> Network | None:
        """The longest prefix that contains `address` and is usable; or else the longest one; or None.

        A route whose next hops are all dead does not hide a shorter prefix (fib_table_lookup, fib6_table_lookup).
        """
        number, dead = int(address), None
        for mask, networks in self._by_length:
            found = networks.get(number & mask)
            if found is not None and _usable(self.routes[found]):
                return found
            dead = dead or found
        return dead

    def lookup(self, address: Address | int) -> tuple[NextHop, ...]:
        """The next hops for `address` by `match`; empty when nothing matches or the route discards."""
        prefix = self.match(address)
        return () if prefix is None else self.routes[prefix]

    def to_json(self) -> dict[str, Any]:
        """Plain data: routes: prefix -> list of [port, ifindex, gateway, weight, dead]; buckets: prefix -> indexes."""
        return {
            "switch": self.switch,
            "routes": {
                str(network): [[h.port, h.ifindex, h.gateway, h.weight, h.dead] for h in hops]
                for network, hops in self.routes.items()
            },
            "buckets": {str(network): list(numbers) for network, numbers in self.buckets.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Fib:
        routes = {
            ip_network(prefix): tuple(NextHop(str(p), int(i), str(g), int(w), bool(d)) for p, i, g, w, d in hops)
            for prefix, hops in data["routes"].items()
        }
        buckets = {ip_network(prefix): tuple(map(int, numbers)) for prefix, numbers in data.get("buckets", {}).items()}
        return cls(str(data["switch"]), routes, buckets)


def _usable(hops: tuple[NextHop, ...]) -> bool:
    """Whether the kernel stops at a route: it discards, or has a live next hop."""
    return not hops or not all(hop.dead for hop in hops)


def read_fib(handle: NodeHandle, version: Version = 4) -> Fib:
    """The main table of a node in one version of IP, with nexthop groups resolved.

    For IPv6, without the link-local network of every interface and the node's own addresses on `lo`.
    Raises MachineError when the namespace does not exist.
    """
    with nl.RouteSocket(handle.netns) as netlink:
        return fib_of(netlink, handle.name, read_names(netlink), version)


def fib_of(netlink: nl.RouteSocket, switch: str, names: Mapping[int, str], version: Version) -> Fib:
    """The same, read by an open socket. names: ifindex -> interface name."""
    objects = _Objects(netlink, names)
    found: dict[Network, _Row] = {}
    seen = _seen(version, *names.items())
    for body in _dump(netlink, nl.RTM_GETROUTE, RTMSG.pack(AF[version], 0, 0, 0, RT_TABLE_MAIN, 0, 0, 0, 0)):
        row = seen.rows[body] if body in seen.rows else _row(body, names, objects, version, seen)
        if row is not None and found.setdefault(row.prefix, row).rank > row.rank:
            found[row.prefix] = row
    buckets = {prefix: dealt for prefix, row in found.items() if row.number and (dealt := objects.buckets(row.number))}
    return Fib(switch, {prefix: row.hops for prefix, row in found.items()}, buckets)


class _Row(NamedTuple):
    """One route. rank: fib_table_lookup takes the lowest metric with a live next hop. number: nexthop id, or 0."""

    prefix: Network
    hops: tuple[NextHop, ...]
    rank: tuple[bool, int]
    number: int


@dataclass(frozen=True, slots=True)
class _Seen:
    """Messages and what they say, None for a route that does not count; and their next hops.

    Most routes of a switch have the same next hops, and most switches the same routes, byte for byte.
    """

    rows: dict[bytes, _Row | None]
    hops: dict[bytes, tuple[NextHop, ...]]


@lru_cache(_ALIKE)
def _seen(version: Version, *names: tuple[int, str]) -> _Seen:
    """What was read where interfaces have these names."""
    return _Seen({}, {})


def _row(body: bytes, names: Mapping[int, str], objects: _Objects, version: Version, seen: _Seen) -> _Row | None:
    """A route of the main table; None for others, those of link-local networks and the node's own addresses."""
    _, length, _, tos, table, _, _, kind, flags = RTMSG.unpack_from(body)
    attrs = nl.attributes(body, RTMSG.size)
    found = None
    if table == RT_TABLE_MAIN and tos == 0 and (kind == RTN_UNICAST or kind in _DISCARDING):
        prefix = _network(attrs.get(RTA_DST, b""), length, version)
        same = b"" if _RTA_NH_ID in attrs or kind in _DISCARDING else attrs.get(_RTA_MULTIPATH, b"")
        hops = seen.hops.get(same)
        if hops is None:
            hops = () if kind in _DISCARDING else _hops(attrs, flags, names, objects)
        # An IPv6 address of the node itself is also in table local, which is searched first.
        own = bool(hops) and all(hop.port == "lo" for hop in hops)
        near = isinstance(prefix, IPv6Network) and any(prefix.subnet_of(each) for each in _OF_INTERFACES)
        if not own and not near:
            found = _Row(prefix, hops, (not _usable(hops), _u32(attrs.get(_RTA_PRIORITY))), _u32(attrs.get(_RTA_NH_ID)))
        if same:
            seen.hops[same] = hops
    if _RTA_NH_ID not in attrs:  # an object may change while its routes stay
        if len(seen.rows) >= _MOST_SEEN:
            seen.rows.clear()
            seen.hops.clear()
        seen.rows[body] = found
    return found


def local_routes(netlink: nl.RouteSocket) -> set[int]:
    """The interfaces (ifindex) of the socket's namespace that have the route fe80::/64."""
    found = set()
    wanted = RTMSG.pack(AF[6], 0, 0, 0, RT_TABLE_MAIN, _RTPROT_KERNEL, 0, 0, 0)
    for body in _dump(netlink, nl.RTM_GETROUTE, wanted):
        if RTMSG.unpack_from(body)[1] == LINK_LOCAL.prefixlen:
            attrs = nl.attributes(body, RTMSG.size)
            if attrs.get(RTA_DST) == _LINK_LOCAL_BYTES:
                found.add(_u32(attrs.get(RTA_OIF)))
    return found


def port_names(handle: NodeHandle) -> dict[int, str]:
    """ifindex -> interface name, of every interface of a node."""
    with nl.RouteSocket(handle.netns) as netlink:
        return read_names(netlink)


def route_hops(message: bytes, names: Mapping[int, str]) -> tuple[NextHop, ...]:
    """The next hops in one route message that lists them all (an answer to RTM_F_FIB_MATCH)."""
    attrs = nl.attributes(message, RTMSG.size)
    fields = RTMSG.unpack_from(message)
    if fields[7] != RTN_UNICAST:
        return ()
    return _own_hops(attrs, fields[8], names)


class _Objects:
    """The namespace's nexthop objects, which FRR uses for all its routes; buckets are read only when needed."""

    def __init__(self, netlink: nl.RouteSocket, names: Mapping[int, str]) -> None:
        self._netlink = netlink
        self._single: dict[int, NextHop | None] = {}
        self._group: dict[int, list[tuple[int, int]]] = {}
        self._resilient: set[int] = set()
        self._dealt: dict[int, dict[int, int]] | None = None  # group -> bucket -> member; read on the first use
        for body in _dump(netlink, nl.RTM_GETNEXTHOP, NHMSG.pack(0, 0, 0, 0, 0)):
            flags = NHMSG.unpack_from(body)[4]
            attrs = nl.attributes(body, NHMSG.size)
            number = _u32(attrs.get(_NHA_ID))
            if _NHA_GROUP in attrs:
                # The kernel stores weight - 1; the high byte exists since kernel 6.12 and is zero before.
                entries = _GROUP_ENTRY.iter_unpack(attrs[_NHA_GROUP])
                self._group[number] = [(member, low + (high << 8) + 1) for member, low, high, _ in entries]
                if _NHA_RES_GROUP in attrs:
                    self._resilient.add(number)
            elif _NHA_BLACKHOLE in attrs:
                self._single[number] = None
            else:
                gateway = _address(attrs.get(_NHA_GATEWAY))
                self._single[number] = _hop(names, _u32(attrs.get(_NHA_OIF)), gateway, 1, flags)

    def resolve(self, number: int) -> tuple[NextHop, ...] | None:
        """The next hops of a nexthop id; None when the kernel did not report them (they changed meanwhile)."""
        if number in self._single:
            single = self._single[number]
            return () if single is None else (single,)
        if number not in self._group:
            return None
        hops: list[NextHop] = []
        for member, weight in self._group[number]:
            hop = self._single.get(member)
            if hop is None:
                return None
            hops.append(NextHop(hop.port, hop.ifindex, hop.gateway, weight, hop.dead))
        return tuple(hops)

    def buckets(self, number: int) -> tuple[int, ...]:
        """The index of the member of each bucket of a resilient group; empty for any other id."""
        if number not in self._resilient:
            return ()
        if self._dealt is None:
            self._dealt = {}
            for body in _dump(self._netlink, nl.RTM_GETNEXTHOPBUCKET, NHMSG.pack(0, 0, 0, 0, 0)):
                attrs = nl.attributes(body, NHMSG.size)
                bucket = nl.attributes(attrs[_NHA_RES_BUCKET], 0)
                index = struct.unpack("=H", bucket[_BUCKET_INDEX])[0]
                self._dealt.setdefault(_u32(attrs.get(_NHA_ID)), {})[index] = _u32(bucket.get(_BUCKET_NH_ID))
        dealt = self._dealt.get(number, {})
        members = {member: at for at, (member, _) in enumerate(self._group[number])}
        if sorted(dealt) != list(range(len(dealt))) or not set(dealt.values()) <= set(members):
            return ()  # it changed during the read: the caller reads again, or finds other routes afterwards
        return tuple(members[dealt[index]] for index in range(len(dealt)))


def _hops(attrs: Mapping[int, bytes], flags: int, names: Mapping[int, str], objects: _Objects) -> tuple[NextHop, ...]:
    if _RTA_NH_ID in attrs:
        resolved = objects.resolve(_u32(attrs[_RTA_NH_ID]))
        if resolved is not None:
            return resolved
    return _own_hops(attrs, flags, names)


def _own_hops(attrs: Mapping[int, bytes], flags: int, names: Mapping[int, str]) -> tuple[NextHop, ...]:
    if _RTA_MULTIPATH in attrs:
        return _multipath(attrs[_RTA_MULTIPATH], names)
    if RTA_OIF not in attrs:
        return ()
    return (_hop(names, _u32(attrs[RTA_OIF]), _gateway(attrs), 1, flags),)


def _multipath(data: bytes, names: Mapping[int, str]) -> tuple[NextHop, ...]:
    hops: list[NextHop] = []
    offset = 0
    while offset + RTNEXTHOP.size <= len(data):
        length, flags, weight, ifindex = RTNEXTHOP.unpack_from(data, offset)
        if length < RTNEXTHOP.size:
            raise ValueError(f"struct rtnexthop of {length} bytes")
        attrs = nl.attributes(data[offset : offset + length], RTNEXTHOP.size)
        hops.append(_hop(names, ifindex, _gateway(attrs), weight + 1, flags))
        offset += (length + 3) & ~3
    return tuple(hops)


def _hop(names: Mapping[int, str], ifindex: int, gateway: str, weight: int, flags: int) -> NextHop:
    return NextHop(names.get(ifindex, f"if{ifindex}"), ifindex, gateway, weight, bool(flags & _DEAD))


@cache  # the switches of a lab have the same prefixes
def _network(raw: bytes, length: int, version: Version) -> Network:
    """The destination of a route; raw is empty for a default route."""
    return network(version, int.from_bytes(raw), length)


def _gateway(attrs: Mapping[int, bytes]) -> str:
    if _RTA_VIA in attrs:  # an IPv6 next hop of an IPv4 route: struct rtvia, a family and an address
        return _address(attrs[_RTA_VIA][2:])
    return _address(attrs.get(_RTA_GATEWAY))


def _address(raw: bytes | None) -> str:
    if not raw:
        return ""
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


def _u32(raw: bytes | None) -> int:
    return 0 if raw is None else int(_U32.unpack_from(raw)[0])


def read_names(netlink: nl.RouteSocket) -> dict[int, str]:
    """ifindex -> interface name, read by an open socket."""
    return {each.ifindex: each.name for each in nl.interfaces(netlink)}


def _dump(netlink: nl.RouteSocket, kind: int, body: bytes) -> list[bytes]:
    """A dump; empty if the kernel has no such table yet (ENOENT) or no nexthop objects (before 5.3)."""
    try:
        return netlink.dump(kind, body)
    except nl.NetlinkError as error:
        if error.errno in (errno.ENOENT, errno.EOPNOTSUPP):
            return []
        raise
