"""The keys of fabric files of all shapes. Strict: an unknown key, a wrong type or a value out of range is an error.

In:  plain data (`heddle/spec/load.py` reads the YAML and turns errors into problems with lines and hints).
Out: FabricSpec, frozen; each shape adds its keys in heddle/spec/shapes/. Nothing here depends on the machine.
Checks that need more than one key raise ValueError through `at(path, ...)`, so that the loader can name the key. Here
are the checks within one group, and those without which no fabric can be built. heddle/fabric/checks.py makes all
others on the built fabric. `queues` is in queuespec.py, `routing` in routingspec.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, model_validator

from heddle.base.families import FAMILIES, IPV4, Family, Network, Version
from heddle.base.units import scale_of
from heddle.spec.delayspec import SHAPE, DelaySpec, LinkDelay
from heddle.spec.keys import Rate, Size, Strict, at
from heddle.spec.linkspec import JitterSpec, LengthSpec, LinkJitter, LinkLength, LinkShare, ShareSpec
from heddle.spec.queuespec import QueuesSpec
from heddle.spec.routingspec import RoutingSpec

SLOWEST_BPS: Final = 10**6
MOST_HOSTS: Final = 2**16 - 1  # a MAC address has two octets for a node's number
MOST_SWITCHES: Final = 4095  # of a level: each has a block of 4,096 loopbacks
FASTEST_BPS: Final = 10**10


_LinkRate = Annotated[Rate, Field(ge=SLOWEST_BPS, le=FASTEST_BPS)]


class LinkSpec(Strict):
    """Rates in bit/s of a frame's bytes from Ethernet header to ICRC; mtu is the IP MTU in bytes."""

    host: Rate = Field(default=100 * 10**6, ge=SLOWEST_BPS, le=FASTEST_BPS)
    fabric: Rate = Field(default=100 * 10**6, ge=SLOWEST_BPS, le=FASTEST_BPS)
    mtu: Size = Field(default=4200, ge=1280, le=65535)
    delay: LinkDelay = DelaySpec()  # of the hardware, one way; multiplied by k here
    length: LinkLength = LengthSpec()  # of the cable: another way to write its delay
    delay_at: Literal["host", "link"] = "host"  # link: by netem, behind each port's queue
    jitter: LinkJitter = JitterSpec()
    loss: LinkShare = ShareSpec()
    corrupt: LinkShare = ShareSpec()
    duplicate: LinkShare = ShareSpec()
    reorder: LinkShare = ShareSpec()
    exceptions: dict[str, _LinkRate] = Field(
        default={}
    )  # of a node's links (ctsw2) or a port's (rtsw1:eth3), both ways

    @model_validator(mode="after")
    def _delays_agree(self) -> LinkSpec:
        for word in ("host", "fabric"):
            if getattr(self.length, word) and getattr(self.delay, word) not in (0, SHAPE):
                why = "and link.delay both set the delay of these links"
                hint = "remove one: a cable has 5 ns per metre"
                raise at(f"link.length.{word}", why, hint, given=[f"link.delay.{word}"])
        delayed = any((self.length.host, self.length.fabric, self.delay.host, self.delay.fabric))
        if self.delay_at == "link":
            if not delayed:
                raise at("link.delay_at", "has no effect: no link has a delay", "set link.delay or link.length")
            return self
        for key in ("jitter", "reorder"):
            own = getattr(self, key)
            if own.host or own.fabric:
                why = "needs packets that wait on the link: link.delay_at is host"
                raise at(f"link.{key}", why, "set link.delay_at: link", given=["link.delay_at"])
        return self


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
