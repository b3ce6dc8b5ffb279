"""Differences between IPv4 and IPv6 fabrics, as numbers and networks. Only this module has logic per IP version.

In:  the word of a fabric file's key `family`.
Out: Family. `Address`, `Interface` and `Network` are of either version.
Sources: RFC 1918 (private IPv4), RFC 4193 (unique local IPv6: fd00::/8; fc00::/8 is not defined), RFC 3021 and
RFC 6164 (/31 and /127 on point-to-point links).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network, ip_address
from socket import inet_ntoa
from typing import Any, Final, Literal, TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Interface: TypeAlias = IPv4Interface | IPv6Interface
Network: TypeAlias = IPv4Network | IPv6Network
Version: TypeAlias = Literal[4, 6]


class _Hashed:
    """A network whose hash is computed once: that of `ipaddress` takes longer than all else of a look-up in a table."""

    @cached_property
    def _hash(self) -> int:
        return super().__hash__()

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self: Any) -> tuple[Any, ...]:
        return network, (self.version, int(self.network_address), self.prefixlen)


# With the names of the standard library's, as which they are shown and sent to shards.
_NETWORKS: Final[Mapping[Version, Any]] = {
    4: type("IPv4Network", (_Hashed, IPv4Network), {}), 6: type("IPv6Network", (_Hashed, IPv6Network), {}),
}  # fmt: skip


@cache
def network(version: Version, base: int, length: int) -> Network:
    """The network of a prefix length that starts at an address, as an integer; one object for each. ValueError when
    there is none.
    """
    found: Network = _NETWORKS[version]((base, length))
    return found


def interned(found: Network) -> Network:
    """The one object of `network` that is equal to this one."""
    return network(4 if found.version == 4 else 6, int(found.network_address), found.prefixlen)


# UDP 8, BTH 12, RETH 16, ImmDt 4, ICRC 4: the largest overhead of a RoCEv2 packet after its IP header.
_BEHIND_IP: Final = 44
_TIER_ROOM: Final = 4096  # router ids per tier
_ROUTER_IDS: Final = 0x0AFF0000  # 10.255.0.0, as in IPv4 fabrics with the default pool


_KINDS: Final[Mapping[Version, Any]] = {
    4: (IPv4Address, IPv4Interface, IPv4Network), 6: (IPv6Address, IPv6Interface, IPv6Network),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Family:
    """One IP version as fabrics use it; lengths are prefix lengths.

    pool, front_pool: those of the back-end and of the front-end, by default.
    racks:     the shortest and the longest prefix of a rack.
    allowed:   the networks that a pool must be in.
    pool_most: the longest prefix of a pool.
    last:      the pool's last block of this length is for loopbacks.
    overhead:  bytes of a RoCEv2 packet without its payload, from the IP header to the ICRC, at most.
    """

    word: str
    version: Version
    name: str
    bits: int
    pool: str
    front_pool: str
    rack_prefix: int
    racks: tuple[int, int]
    allowed: tuple[Network, ...]
    pool_most: int
    last: int
    pool_why: str
    pool_hint: str
    overhead: int

    @property
    def link(self) -> int:
        """The prefix length of a host link: two addresses, the even one the switch's."""
        return self.bits - 1

    def end(self, number: int) -> Interface:
        """One end of a host link. number: its address as an integer."""
        return IPv4Interface((number, self.link)) if self.version == 4 else IPv6Interface((number, self.link))

    def network(self, base: int, length: int) -> Network:
        """The network of a prefix length that starts at an address, as an integer."""
        return network(self.version, base, length)

    def ends(self, number: int) -> tuple[Interface, Interface]:
        """Both ends of a host link: the host's, the switch's. number: the switch's address, the even one.

        Equal to `end` of both, with one network object. The constructors check what is known here, and a large fabric
        has tens of thousands of links.
        """
        address, interface, network = _KINDS[self.version]
        netmask, shared = _netmask(self.version), object.__new__(network)
        shared.network_address, shared.netmask, shared._prefixlen = address(number), netmask, self.link
        shared.hosts = shared.__iter__
        odd, even = found = object.__new__(interface), object.__new__(interface)
        for end, at in ((odd, number + 1), (even, number)):
            address.__init__(end, at)
            end.network, end.netmask, end._prefixlen = shared, netmask, self.link
        return found

    def loopbacks(self, pool: Network) -> Network:
        """The pool's last block: the loopbacks of all switches."""
        rest = self.bits - self.last
        return self.network(int(pool.broadcast_address) >> rest << rest, self.last)

    def loopback(self, pool: Network, tier: int, index: int) -> Address:
        """A switch's loopback address, from the pool's last block: by the code of its tier and its index there.

        IPv4 has 4,096 per tier. An IPv6 address shows tier and index: fd00::ffff:0:0:1:7 is rtsw7's.
        """
        base = int(self.loopbacks(pool).network_address)
        if self.version == 4:
            return IPv4Address(base + tier * _TIER_ROOM + index)
        return IPv6Address(base + (tier << 16) + index)

    def router_id(self, loopback: Address, tier: int, index: int) -> IPv4Address:
        """The BGP router id (RFC 4271, section 4.2; RFC 6286): in IPv4 the loopback, in IPv6 a separate number."""
        return loopback if isinstance(loopback, IPv4Address) else IPv4Address(_ROUTER_IDS + tier * _TIER_ROOM + index)


@cache
def _netmask(version: Version) -> Address:
    """The netmask of host links."""
    family = IPV4 if version == 4 else IPV6
    return family.network(0, family.link).netmask


def text_of(address: Interface) -> str:
    """The address of an interface, without its prefix length."""
    return inet_ntoa(int(address).to_bytes(4)) if address.version == 4 else str(address.ip)


def as_ipv6(address: str) -> bytes:
    """An address of either version as 16 octets; IPv4 is ::ffff:a.b.c.d."""
    found = ip_address(address)
    return found.packed if found.version == 6 else bytes(10) + b"\xff\xff" + found.packed


def from_ipv6(octets: bytes) -> str:
    """The usual text form of an address of either version that has 16 octets."""
    address = IPv6Address(octets)
    return str(address.ipv4_mapped or address)


IPV4: Final = Family(
    word="ipv4",
    version=4,
    name="IPv4",
    bits=32,
    pool="10.0.0.0/8",
    front_pool="172.16.0.0/12",
    rack_prefix=24,
    racks=(16, 30),
    # Not `is_private` of Python: it includes loopback and class E, which no kernel forwards.
    allowed=(IPv4Network("10.0.0.0/8"), IPv4Network("172.16.0.0/12")),
    pool_most=14,
    last=16,
    pool_why="must be a private network of /14 or larger",
    pool_hint="try 10.0.0.0/8 or 172.16.0.0/12",
    overhead=20 + _BEHIND_IP,
)
IPV6: Final = Family(
    word="ipv6",
    version=6,
    name="IPv6",
    bits=128,
    pool="fd00::/48",
    front_pool="fd01::/48",
    rack_prefix=64,
    racks=(64, 126),
    allowed=(IPv6Network("fd00::/8"),),
    pool_most=56,
    last=64,
    pool_why="must be a unique local network (in fd00::/8) of /56 or larger",
    pool_hint="try fd00::/48",
    overhead=40 + _BEHIND_IP,
)
FAMILIES: Final[Mapping[str, Family]] = {each.word: each for each in (IPV4, IPV6)}
