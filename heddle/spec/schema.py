"""The keys of fabric files of all shapes. Strict: an unknown key, a wrong type or a value out of range is an error.

In:  plain data (`heddle/spec/load.py` reads the YAML and turns errors into problems with lines and hints).
Out: FabricSpec, frozen; each shape adds its keys in heddle/spec/shapes/. Nothing here depends on the machine.
Checks that need more than one key raise ValueError through `at(path, ...)`, so that the loader can name the key. Here
are the checks within one group, and those without which no fabric can be built. heddle/fabric/checks.py makes all
others on the built fabric. `link` and `queues` are in linkspec.py and queuespec.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, model_validator

from heddle.base.families import FAMILIES, IPV4, Family, Network, Version
from heddle.base.units import scale_of
from heddle.spec.keys import Duration, Strict, at
from heddle.spec.linkspec import LinkSpec
from heddle.spec.queuespec import QueuesSpec


class UdfSpec(Strict):
    """Bytes that are hashed in addition to addresses and ports. `offset` counts from the start of header `base`."""

    base: Literal["l3", "l4", "bth"] = "bth"
    offset: int = Field(default=5, ge=0, le=127)
    bytes: int = Field(default=3, ge=1, le=4)


class HashSpec(Strict):
    """Options of the modes of `routing.ecmp`. A mode ignores the keys of others; they count when a lab changes mode."""

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
            why = f"has no effect with policy: {self.policy}"
            raise at("routing.hash.fields", why, "remove it, or set policy: fields", given=["routing.hash.policy"])
        return self


class RoutingSpec(Strict):
    """Control plane and path choice."""

    bgp: Literal["unnumbered"] = "unnumbered"
    ecmp: Literal["flow", "e-ecmp", "flowlet", "spray", "pinned", "exact-match", "adaptive"] = "flow"
    # per-switch: each switch has its own seed; per-tier: each tier has one; shared: all have the same (polarisation); a
    # number: all have this one. See heddle/fabric/hashmodes.py.
    seed: Literal["per-switch", "per-tier", "shared"] | Annotated[int, Field(ge=1, le=2**32 - 1)] = "per-switch"
    hash: HashSpec = HashSpec()
    resilient: bool = False  # a hash selects a bucket, and each bucket belongs to one next hop
    ucmp: bool = False  # next hops are weighted by the bandwidth behind them (BGP link-bandwidth community)
    loopbacks: bool = False  # switches announce their loopbacks; RoCEv2 traffic needs only the racks' prefixes

    @model_validator(mode="after")
    def _weights_count(self) -> RoutingSpec:
        whys = {
            "routing.ecmp: pinned selects the path by the destination's slice": self.ecmp == "pinned",
            "routing.resilient gives each next hop as many buckets": self.resilient,
            "hash.choice: round-robin uses each next hop in turn": (self.ecmp, self.hash.choice)
            == ("spray", "round-robin"),
            "routing.ecmp: adaptive compares queue depths": self.ecmp == "adaptive",
            "hash.first: load compares loads": (self.ecmp, self.hash.first) == ("flowlet", "load"),
        }
        for why, so in whys.items():
            if self.ucmp and so:
                given = ["routing.ecmp", "routing.resilient", "routing.hash"]
                raise at("routing.ucmp", f"has no effect: {why}", "remove it, or set ecmp: flow", given=given)
        return self

    @model_validator(mode="after")
    def _hashing_counts(self) -> RoutingSpec:
        chosen = self.hash
        if self.resilient and self.ecmp == "flow" and (chosen.policy, chosen.fields) != _FIVE_TUPLE:
            why = "has no effect with resilient: true, where the BPF program hashes the 5-tuple"
            key = "policy" if chosen.policy != "fields" else "fields"
            given = ["routing.ecmp", "routing.resilient"]
            raise at(f"routing.hash.{key}", why, "remove one of the two", given=given)
        return self


_FIVE_TUPLE: Final = (HashSpec().policy, HashSpec().fields)


MOST_HOSTS: Final = 2**16 - 1  # a MAC address has two octets for a node's number
MOST_SWITCHES: Final = 4095  # of a level: each has a block of 4,096 loopbacks


class RoceSpec(Strict):
    """Settings of the hosts' NICs."""

    ib_mtu: Literal[256, 512, 1024, 2048, 4096] = 4096  # payload bytes per packet


class AddressingSpec(Strict):
    """Each rack gets a prefix of length `rack_prefix` from the pool, in order; the pool's last block is for loopbacks.

    The defaults here are those of IPv4; FabricSpec replaces them with those of its family.
    """

    pool: str = IPV4.pool
    rack_prefix: int = IPV4.rack_prefix

    @property
    def network(self) -> Network:
        """The pool as a network."""
        return ip_network(self.pool)

    def of_family(self, family: Family) -> AddressingSpec:
        """A checked copy, with the family's defaults for keys that the file does not set. ValueError by `at`."""
        given = {key: getattr(self, key) for key in self.model_fields_set}
        found = AddressingSpec(**{"pool": family.pool, "rack_prefix": family.rack_prefix, **given})
        low, high = family.racks
        if not low <= found.rack_prefix <= high:
            why = f"is below {low}" if found.rack_prefix < low else f"is above {high}"
            raise at("addressing.rack_prefix", why, f"allowed: {low} to {high}", given=["family"])
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


class FabricSpec(Strict):
    """The keys that all shapes share."""

    synonyms: ClassVar[Mapping[str, str]] = {"hash": "routing.hash", "topology": "shape"}
    # Words of the shape's switch levels, from the leaves up: the keys of `queues.buffer`.
    levels: ClassVar[tuple[str, ...]] = ()
    # The function that builds its fabric, `module:name`; empty for heddle/fabric/shapes/SHAPE.py.
    builder: ClassVar[str] = ""

    name: str = Field(pattern=r"^[a-z][a-z0-9]{0,11}$", examples=["zone"])
    shape: str
    family: Literal["ipv4", "ipv6"] = "ipv4"
    link: LinkSpec = LinkSpec()
    scale: Annotated[int, Field(ge=1)] | None = None  # k: rates are divided by it; default 400G / link.host
    routing: RoutingSpec = RoutingSpec()
    queues: QueuesSpec = QueuesSpec()
    roce: RoceSpec = RoceSpec()
    addressing: AddressingSpec = AddressingSpec()

    @property
    def k(self) -> int:
        """The scale factor of every printed bandwidth."""
        return self.scale or scale_of(self.link.host)

    @property
    def ip(self) -> Family:
        """The IP version of hosts and routes, and its numbers."""
        return FAMILIES[self.family]

    @property
    def ip_version(self) -> Version:
        """4 or 6."""
        return self.ip.version

    @model_validator(mode="after")
    def _of_its_family(self) -> FabricSpec:
        # Not by assignment, since the model is frozen. Nothing else uses this object yet.
        object.__setattr__(self, "addressing", self.addressing.of_family(self.ip))
        return self
