"""What a fabric file may say. Strict: an unknown key, a wrong type or a value out of range is an error.

In:  plain data (see `heddle/spec/load.py`, which reads YAML and turns errors into problems with lines and hints).
Out: FabricSpec, frozen. Nothing here looks at the machine: a spec that is right here is right everywhere.
Checks that need more than one key raise ValueError through `at(path, ...)`, so that the loader can name the key. What
`queues` may say is in queuespec.py.
"""

from __future__ import annotations

from ipaddress import ip_network
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from heddle.base.families import FAMILIES, IPV4, Family, Network, Version
from heddle.fabric import buffers
from heddle.fabric.linkrates import unknown
from heddle.spec.keys import Duration, Rate, Size, Strict, at
from heddle.spec.queuespec import QueuesSpec

ROCE_OVERHEAD: Final = IPV4.overhead  # the most that an IPv4 packet carries beside its payload, bytes
_MOST_HOSTS: Final = 2**16 - 1  # a MAC address has two octets for a node's number
_MOST_SWITCHES: Final = 4095  # of a tier: each has a block of 4,096 loopbacks
_SLOWEST: Final = 10**6  # bit/s
_FASTEST: Final = 10**10
# What `scale` relates to: a 400 Gb/s NIC, as in the fabric that is rebuilt here.
HARDWARE_RATE_BPS: Final = 400 * 10**9


_LinkRate = Annotated[Rate, Field(ge=_SLOWEST, le=_FASTEST)]


class LinkSpec(Strict):
    """Rates in bit/s of a frame's bytes from Ethernet header to ICRC; mtu is the IP MTU in bytes."""

    host: Rate = Field(default=100 * 10**6, ge=10**6, le=10**10)
    fabric: Rate = Field(default=100 * 10**6, ge=10**6, le=10**10)
    mtu: Size = Field(default=4200, ge=1280, le=65535)
    exceptions: dict[str, _LinkRate] = Field(
        default={}
    )  # of a node's links (ctsw2) or a port's (rtsw1:eth3), both ways


class UdfSpec(Strict):
    """Bytes that are hashed beside addresses and ports: so many from `offset` on, counted from a header's start."""

    base: Literal["l3", "l4", "bth"] = "bth"
    offset: int = Field(default=5, ge=0, le=127)
    bytes: int = Field(default=3, ge=1, le=4)


class HashSpec(Strict):
    """What the modes of `routing.ecmp` go by. Each key counts in the modes that use it, also when a lab is switched."""

    policy: Literal["fields", "l3", "l4"] = "fields"  # flow
    fields: list[Literal["src", "dst", "proto", "flowlabel", "sport", "dport"]] = Field(
        default=["src", "dst", "proto", "sport", "dport"], min_length=1
    )
    udf: UdfSpec = UdfSpec()
    gap: Duration = Field(default=20_000_000, ge=1_000, le=10**10)  # flowlet, adaptive
    first: Literal["hash", "load"] = "hash"  # flowlet
    choice: Literal["random", "round-robin"] = "random"  # spray
    buckets: int = Field(default=256, ge=1, le=1024)  # resilient

    @model_validator(mode="after")
    def _fields_count(self) -> HashSpec:
        twice = [field for field in dict.fromkeys(self.fields) if self.fields.count(field) > 1]
        if twice:
            raise at("routing.hash.fields", f"has {twice[0]} twice", "keep one of the two")
        if self.policy != "fields" and self.fields != type(self).model_fields["fields"].default:
            why = f"has no effect under policy: {self.policy}"
            raise at("routing.hash.fields", why, "leave it out, or take policy: fields", given=["routing.hash.policy"])
        return self


class RoutingSpec(Strict):
    """Control plane and path choice."""

    bgp: Literal["unnumbered"] = "unnumbered"
    ecmp: Literal["flow", "e-ecmp", "flowlet", "spray", "pinned", "exact-match", "adaptive"] = "flow"
    # per-switch: every switch hashes differently; per-tier: each tier does; shared: all alike (polarisation); a number:
    # all have that one. See heddle/fabric/seeds.py.
    seed: Literal["per-switch", "per-tier", "shared"] | Annotated[int, Field(ge=1, le=2**32 - 1)] = "per-switch"
    hash: HashSpec = HashSpec()
    resilient: bool = False  # a hash chooses a bucket, and a bucket has a home among the next hops
    ucmp: bool = False  # next hops weighted by the bandwidth behind them (BGP link-bandwidth community)

    @model_validator(mode="after")
    def _weights_count(self) -> RoutingSpec:
        whys = {
            "routing.ecmp: pinned takes a way by the destination's slice": self.ecmp == "pinned",
            "routing.resilient gives each way as many buckets": self.resilient,
            "hash.choice: round-robin takes each way in turn": (self.ecmp, self.hash.choice)
            == ("spray", "round-robin"),
            "routing.ecmp: adaptive looks at depths": self.ecmp == "adaptive",
            "hash.first: load looks at loads": (self.ecmp, self.hash.first) == ("flowlet", "load"),
        }
        for why, so in whys.items():
            if self.ucmp and so:
                given = ["routing.ecmp", "routing.resilient", "routing.hash"]
                raise at("routing.ucmp", f"has no effect: {why}", "leave it out, or take ecmp: flow", given=given)
        return self

    @property
    def by_program(self) -> bool:
        """Whether RoCEv2 is hashed or steered by the switches' BPF program, and not by the kernel alone."""
        return self.ecmp != "flow" or self.resilient


class RoceSpec(Strict):
    """What the hosts' NICs do."""

    ib_mtu: Literal[256, 512, 1024, 2048, 4096] = 4096  # payload bytes a packet


class AddressingSpec(Strict):
    """Racks take prefixes of this length from the pool, in order; the pool's last block is for loopbacks.

    The defaults here are those of IPv4; FabricSpec puts its family's in their place.
    """

    pool: str = IPV4.pool
    rack_prefix: int = IPV4.rack_prefix

    @property
    def network(self) -> Network:
        """The pool as a network."""
        return ip_network(self.pool)

    def of_family(self, family: Family) -> AddressingSpec:
        """With the family's defaults in place of what the file does not say, and checked; ValueError by `at`."""
        given = {key: getattr(self, key) for key in self.model_fields_set}
        found = AddressingSpec(**{"pool": family.pool, "rack_prefix": family.rack_prefix, **given})
        low, high = family.racks
        if not low <= found.rack_prefix <= high:
            why = f"is below {low}" if found.rack_prefix < low else f"is above {high}"
            raise at("addressing.rack_prefix", why, f"legal here: {low} to {high}", given=["family"])
        try:
            pool = found.network
        except ValueError as error:
            why = f"is not an {family.name} network: {error}"
            raise at("addressing.pool", why, f"try {family.pool}", given=["family"]) from None
        if pool.version != family.version:
            why, other = f"is not an {family.name} network", "ipv6" if pool.version == 6 else "ipv4"
            hint = f"try {family.pool}, or family: {other}"
            raise at("addressing.pool", why, hint, given=["family"])
        if pool.prefixlen > family.pool_most or not any(_inside(pool, space) for space in family.allowed):
            raise at("addressing.pool", family.pool_why, family.pool_hint, given=["family"])
        return found


def _inside(network: Network, space: Network) -> bool:
    """Whether all of a network is in another of its version."""
    return network.network_address in space and network.prefixlen >= space.prefixlen


_FIVE_TUPLE: Final = (HashSpec().policy, HashSpec().fields)


class FabricSpec(Strict):
    """One fabric file."""

    name: str = Field(pattern=r"^[a-z][a-z0-9]{0,11}$")
    shape: Literal["clos"] = "clos"
    family: Literal["ipv4", "ipv6"] = "ipv4"
    zones: int = Field(default=1, ge=1, le=64)
    racks: int = Field(ge=1, le=1024)  # of a zone, as ctsw
    ctsw: int = Field(ge=1, le=128)
    atsw: int | None = Field(default=None, ge=1, le=128)
    oversubscription: float | None = Field(
        default=None, gt=0, le=1000
    )  # of the top: a zone's racks' rate to the ATSWs'
    hosts_per_rack: int = Field(default=2, ge=1, le=1024)
    nics_per_host: int = Field(default=1, ge=1, le=16)
    link: LinkSpec = LinkSpec()
    scale: Annotated[int, Field(ge=1)] | None = None  # k: rates are divided by it; default 400G / link.host
    routing: RoutingSpec = RoutingSpec()
    queues: QueuesSpec = QueuesSpec()
    roce: RoceSpec = RoceSpec()
    addressing: AddressingSpec = AddressingSpec()

    @property
    def k(self) -> int:
        """The scale factor that every printed bandwidth is emulated by."""
        return self.scale or max(1, round(HARDWARE_RATE_BPS / self.link.host))

    @property
    def all_racks(self) -> int:
        """Racks of all zones."""
        return self.zones * self.racks

    @property
    def top_rate(self) -> int:
        """Bit/s of a link from a CTSW to an ATSW.

        A zone's CTSWs take racks * ctsw * link.fabric from below and have ctsw * atsw links upwards.
        """
        if self.oversubscription is None:
            return self.link.fabric
        return round(self.racks * self.link.fabric / ((self.atsw or 1) * self.oversubscription))

    @property
    def port_counts(self) -> dict[str, tuple[int, int]]:
        """Kind of node -> how many there are, and how many ports each has."""
        nics = self.hosts_per_rack * self.nics_per_host
        return {
            "rtsw": (self.all_racks, self.ctsw + nics),
            "ctsw": (self.zones * self.ctsw, self.racks + (self.atsw or 0)),
            "atsw": (self.atsw or 0, self.zones * self.ctsw),
            "host": (self.all_racks * self.hosts_per_rack, self.nics_per_host),
        }

    @model_validator(mode="after")
    def _third_tier_fits(self) -> FabricSpec:
        if self.zones > 1 and self.atsw is None:
            raise at("zones", "are joined by ATSWs, and there is no atsw", "try atsw: 2", given=["atsw"])
        if self.zones == 1 and self.atsw is not None:
            raise at("atsw", "has nothing to join: there is one zone", "try zones: 2, or leave it out", given=["zones"])
        for key, count in (("racks", self.all_racks), ("ctsw", self.zones * self.ctsw)):
            if count > _MOST_SWITCHES:
                why = f"makes {count} in {self.zones} zones, and there are loopback addresses for {_MOST_SWITCHES}"
                raise at(key, why, f"try {key}: {_MOST_SWITCHES // self.zones}", given=["zones"])
        if self.oversubscription is None:
            return self
        if self.atsw is None:
            raise at(
                "oversubscription", "is that of the links to ATSWs, and there are none", "try zones: 2 and atsw: 2"
            )
        if not _SLOWEST <= self.top_rate <= _FASTEST:
            why = f"gives links to ATSWs {self.top_rate / 10**6:g} Mbit/s; 1 to 10,000 can be emulated"
            fit = self.racks * self.link.fabric / (self.atsw * min(max(self.top_rate, _SLOWEST), _FASTEST))
            raise at("oversubscription", why, f"try {fit:g}", given=["racks", "link.fabric", "atsw"])
        return self

    @model_validator(mode="after")
    def _exceptions_exist(self) -> FabricSpec:
        for name in self.link.exceptions:
            wrong = unknown(name, self.port_counts)
            if wrong is not None:
                given = ["racks", "zones", "ctsw", "atsw", "hosts_per_rack", "nics_per_host"]
                raise at(f"link.exceptions.{name}", *wrong, given=given)
        return self

    @property
    def ip(self) -> Family:
        """The version of IP that hosts and routes have."""
        return FAMILIES[self.family]

    @property
    def ip_version(self) -> Version:
        """4 or 6."""
        return self.ip.version

    @model_validator(mode="after")
    def _hashing_fits(self) -> FabricSpec:
        routing, chosen = self.routing, self.routing.hash
        if "flowlabel" in chosen.fields and self.family == "ipv4":
            raise at("routing.hash.fields", "has flowlabel, which IPv4 does not have", "leave it out", given=["family"])
        if routing.resilient and routing.ecmp == "flow" and (chosen.policy, chosen.fields) != _FIVE_TUPLE:
            why = "has no effect with resilient: true, under which the program hashes the 5-tuple"
            key = "policy" if chosen.policy != "fields" else "fields"
            given = ["routing.ecmp", "routing.resilient"]
            raise at(f"routing.hash.{key}", why, "leave one of the two out", given=given)
        most = max(self.ctsw, self.atsw or 0)
        if routing.resilient and chosen.buckets < most:
            why = f"are fewer than the {most} ways that share them"
            given = ["routing.resilient", "ctsw", "atsw"]
            raise at("routing.hash.buckets", why, f"try {max(256, 2 * most)}", given=given)
        return self

    @model_validator(mode="after")
    def _of_its_family(self) -> FabricSpec:
        # Not by assignment: what is checked here is not yet anybody's.
        object.__setattr__(self, "addressing", self.addressing.of_family(self.ip))
        return self

    @model_validator(mode="after")
    def _fits(self) -> FabricSpec:
        family = self.ip
        need = self.roce.ib_mtu + family.overhead
        if self.link.mtu < need:
            raise at(
                "link.mtu",
                f"is below {need}: IB MTU {self.roce.ib_mtu} and {family.overhead} bytes of headers",
                f"try mtu: {max(need, 4200)}, or a smaller roce.ib_mtu",
                given=["roce.ib_mtu", "family"],
            )
        nics = self.hosts_per_rack * self.nics_per_host
        room = 2 ** (family.bits - self.addressing.rack_prefix) // 2  # a /31 or /127 a NIC
        if nics > room:
            fit = family.bits - (2 * nics - 1).bit_length()
            raise at(
                "hosts_per_rack",
                f"asks for {nics} NICs a rack, and a /{self.addressing.rack_prefix} has room for {room}",
                f"try addressing.rack_prefix: {fit}" if fit >= family.racks[0] else "use more racks",
                given=["nics_per_host", "addressing.rack_prefix"],
            )
        if self.all_racks * self.hosts_per_rack > _MOST_HOSTS:
            why = f"makes {self.all_racks * self.hosts_per_rack} hosts, and there are MAC addresses for {_MOST_HOSTS}"
            fit = _MOST_HOSTS // self.all_racks
            raise at("hosts_per_rack", why, f"try hosts_per_rack: {fit}", given=["racks", "zones"])
        pool = self.addressing.network
        length = self.addressing.rack_prefix
        racks = 2 ** (length - pool.prefixlen) - 2 ** max(0, length - family.last)
        if self.all_racks > racks:
            why = f"are more than the {racks} prefixes that {pool} holds"
            why = why if self.zones == 1 else f"in {self.zones} zones {why}"
            raise at(
                "racks", why, "try a longer addressing.rack_prefix", given=["addressing.rack_prefix", "addressing.pool"]
            )
        return self

    @model_validator(mode="after")
    def _queues_fit(self) -> FabricSpec:
        buffers.check(self)
        return self
