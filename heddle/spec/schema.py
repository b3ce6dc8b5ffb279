"""The keys of fabric files of all shapes. Strict: an unknown key, a wrong type or a value out of range is an error.

In:  plain data (`heddle/spec/load.py` reads the YAML and turns errors into problems with lines and hints).
Out: FabricSpec, frozen; each shape adds its keys in heddle/spec/shapes/. Nothing here depends on the machine.
Checks that need more than one key raise ValueError through `at(path, ...)`, so that the loader can name the key. Here
are the checks within one group, and those without which no fabric can be built. heddle/fabric/checks.py makes all
others on the built fabric. `link` is in linkspec.py; `routing` and `queues` are the policy's own classes, in
routingpolicy.py and queuepolicy.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_network
from typing import Annotated, ClassVar, Final, Literal, NamedTuple

from pydantic import Field, model_validator

from heddle.base.families import FAMILIES, IPV4, Family, Network, Version
from heddle.base.units import scale_of
from heddle.spec.frontend import FrontendSpec
from heddle.spec.groups import InFile
from heddle.spec.keys import Strict, at, pool_of
from heddle.spec.linkspec import LinkSpec
from heddle.spec.queuepolicy import NamedBuffers, QueuePolicy
from heddle.spec.routingpolicy import RoutingPolicy

MOST_HOSTS: Final = 2**16 - 1  # a MAC address has two octets for a node's number
MOST_SWITCHES: Final = 4095  # of a level: each has a block of 4,096 loopbacks


class RoceSpec(Strict):
    """Settings of the hosts' NICs."""

    ib_mtu: Literal[256, 512, 1024, 2048, 4096] = Field(4096, description="payload of a full RoCE packet")


class AddressingSpec(Strict):
    """Each rack gets a prefix of length `rack_prefix` from the pool, in order; the pool's last block is for loopbacks.

    The defaults here are those of IPv4; FabricSpec replaces them with those of its family.
    """

    pool: str = Field(
        IPV4.pool,
        description="a private network, /14 or larger; its last /16 is for loopbacks. IPv6: in fd00::/8, /56 or larger,"
        " the last /64 for loopbacks; default `fd00::/48`",
    )
    rack_prefix: int = Field(
        IPV4.rack_prefix,
        description="length of a rack's (`rail`: a leaf's) prefix, with a /31 for each NIC. IPv6: default `64`, a /127"
        " for each NIC",
    )

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
        pool_of(found.pool, family, "addressing.pool", family.pool)
        return found


class FabricSpec(Strict):
    """The keys that all shapes share."""

    synonyms: ClassVar[Mapping[str, str]] = {"hash": "routing.hash", "topology": "shape"}
    # Words of the shape's switch levels, from the leaves up: the keys of `queues.buffer`.
    levels: ClassVar[tuple[str, ...]] = ()
    # The function that builds its fabric, `module:name`; empty for heddle/fabric/shapes/SHAPE.py.
    builder: ClassVar[str] = ""

    name: str = Field(pattern=r"^[a-z][a-z0-9]{0,11}$", examples=["zone"], description="the lab's name")
    shape: str
    family: Literal["ipv4", "ipv6"] = Field(
        "ipv4", description="IP of hosts, routes and RoCEv2. BGP sessions are unnumbered in both"
    )
    link: LinkSpec = LinkSpec()
    scale: Annotated[int, Field(ge=1)] | None = Field(
        None, description="k: how many times slower than the hardware; by default 400 Gb/s / `link.host`"
    )
    routing: Annotated[RoutingPolicy, InFile()] = RoutingPolicy()
    queues: Annotated[QueuePolicy, InFile()] = QueuePolicy(buffer=NamedBuffers())
    roce: RoceSpec = RoceSpec()
    addressing: AddressingSpec = AddressingSpec()
    frontend: FrontendSpec | None = None
    attach: Mapping[str, str] = Field(
        {},
        description="hosts or ports that `up` gives to devices of yours: `tap`, `tap NAME`, `netns NAME`,"
        " `netdev NAME`, `container NAME`, as of `./inv attach`",
        examples=[{"host1": "tap", "host2": "netns blue"}],
    )

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
        if self.frontend is not None:
            object.__setattr__(self, "frontend", self.frontend.beside(self.addressing.network, self.ip))
        return self


class NodeCount(NamedTuple):
    """How many nodes a key makes. word: for them, in sentences. linear: twice the key makes twice as many."""

    key: str
    nodes: int
    word: str
    linear: bool = True

    def smaller(self, spec: FabricSpec, most: int) -> str:
        """The hint for more nodes than `most`."""
        return f"try {self.key}: {getattr(spec, self.key) * most // self.nodes}" if self.linear else "use a smaller one"


def refuse_too_many(spec: FabricSpec, edges: NodeCount, hosts: NodeCount, nics: int, given: Sequence[str]) -> None:
    """Raise `at(...)` for nodes without an address, when all other checks of the keys have passed.

    edges: switches with a prefix; nics: at one of them. given: keys of the shape that count nodes.
    """
    family, length, pool = spec.ip, spec.addressing.rack_prefix, spec.addressing.network
    room = 2 ** (family.bits - length) // 2  # a /31 or /127 per NIC
    if nics > room:
        fit = family.bits - (2 * nics - 1).bit_length()
        why = f"makes {nics} NICs for each of the {edges.word}, but a /{length} has room for {room}"
        hint = f"try addressing.rack_prefix: {fit}" if fit >= family.racks[0] else f"use more {edges.word}"
        raise at(hosts.key, why, hint, given=[*given, "nics_per_host", "addressing.rack_prefix"])
    for count, most, what in ((edges, MOST_SWITCHES, "loopback"), (hosts, MOST_HOSTS, "MAC")):
        if count.nodes > most:
            why = f"makes {count.nodes} {count.word}, but there are {what} addresses for {most} only"
            raise at(count.key, why, count.smaller(spec, most), given=given)
    prefixes = 2 ** (length - pool.prefixlen) - 2 ** max(0, length - family.last)
    if edges.nodes > prefixes:
        why = f"makes {edges.nodes} {edges.word}, more than the {prefixes} prefixes that {pool} holds"
        keys = [*given, "addressing.rack_prefix", "addressing.pool"]
        raise at(edges.key, why, "try a longer addressing.rack_prefix", given=keys)
