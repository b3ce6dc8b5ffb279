"""What a fabric file may say. Strict: an unknown key, a wrong type or a value out of range is an error.

In:  plain data (see `topologies/load.py`, which reads YAML and turns errors into problems with lines and hints).
Out: FabricSpec, frozen. Nothing here looks at the machine: a spec that is right here is right everywhere.
Checks that need more than one key raise ValueError through `at(path, ...)`, so that the loader can name the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Network
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from topologies.units import parse_rate, parse_size

# IPv4 20, UDP 8, BTH 12, RETH 16, ImmDt 4, ICRC 4: the most that a packet carries beside its payload.
ROCE_OVERHEAD: Final = 64
_PRIVATE: Final = (IPv4Network("10.0.0.0/8"), IPv4Network("172.16.0.0/12"))
_MOST_HOSTS: Final = 2**16 - 1  # a MAC address has two octets for a node's number
# What `scale` relates to: a 400 Gb/s NIC, as in the fabric that is rebuilt here.
HARDWARE_RATE_BPS: Final = 400 * 10**9


def at(path: str, why: str, hint: str = "", *, given: Sequence[str] = ()) -> PydanticCustomError:
    """An error of the whole file that belongs to the key `path` (`link.mtu`), given what other keys say.

    Where one of these is wrong itself, nothing is said of `path` yet.
    """
    return PydanticCustomError("heddle_at", "{why}", {"path": path, "why": why, "hint": hint, "given": list(given)})


def _parsed(parser: Any) -> BeforeValidator:
    def parse(value: Any) -> int:
        try:
            return int(parser(value))
        except ValueError as error:
            why, _, hint = str(error).partition("; ")
            raise PydanticCustomError("heddle_unit", "{why}", {"why": why, "hint": hint}) from None

    return BeforeValidator(parse)


Size = Annotated[int, _parsed(parse_size)]
Rate = Annotated[int, _parsed(parse_rate)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class LinkSpec(_Strict):
    """Rates in bit/s of a frame's bytes from Ethernet header to ICRC; mtu is the IP MTU in bytes."""

    host: Rate = Field(default=100 * 10**6, ge=10**6, le=10**10)
    fabric: Rate = Field(default=100 * 10**6, ge=10**6, le=10**10)
    mtu: Size = Field(default=4200, ge=1280, le=65535)


class RoutingSpec(_Strict):
    """Control plane and path choice."""

    bgp: Literal["unnumbered"] = "unnumbered"
    ecmp: Literal["flow", "e-ecmp"] = "flow"
    # per-switch: every switch hashes differently; shared: all alike (polarisation); a number: all have that one.
    seed: Literal["per-switch", "shared"] | Annotated[int, Field(ge=1, le=2**32 - 1)] = "per-switch"


class QueuesSpec(_Strict):
    """What stands behind every port."""

    buffer: Size = Field(default=1_000_000, ge=10_000, le=2**31 - 1)  # bytes a port can hold before it drops


class RoceSpec(_Strict):
    """What the hosts' NICs do."""

    ib_mtu: Literal[256, 512, 1024, 2048, 4096] = 4096  # payload bytes a packet


class AddressingSpec(_Strict):
    """Racks take prefixes of this length from the pool, in order; the pool's last /16 is for loopbacks."""

    pool: str = "10.0.0.0/8"
    rack_prefix: int = Field(default=24, ge=16, le=30)

    @property
    def network(self) -> IPv4Network:
        """The pool as a network."""
        return IPv4Network(self.pool)

    @model_validator(mode="after")
    def _pool_is_private_and_large(self) -> AddressingSpec:
        try:
            pool = IPv4Network(self.pool)
        except ValueError as error:
            raise at("addressing.pool", f"is not an IPv4 network: {error}", "try 10.0.0.0/8") from None
        # RFC 1918; what Python calls private includes loopback and class E, which no kernel forwards.
        if pool.prefixlen > 14 or not any(pool.subnet_of(private) for private in _PRIVATE):
            raise at("addressing.pool", "must be a private network of /14 or larger", "try 10.0.0.0/8 or 172.16.0.0/12")
        return self


class FabricSpec(_Strict):
    """One fabric file."""

    name: str = Field(pattern=r"^[a-z][a-z0-9]{0,11}$")
    shape: Literal["clos"] = "clos"
    racks: int = Field(ge=1, le=1024)
    ctsw: int = Field(ge=1, le=128)
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

    @model_validator(mode="after")
    def _fits(self) -> FabricSpec:
        need = self.roce.ib_mtu + ROCE_OVERHEAD
        if self.link.mtu < need:
            raise at(
                "link.mtu",
                f"is below {need}: IB MTU {self.roce.ib_mtu} and {ROCE_OVERHEAD} bytes of headers",
                f"try mtu: {max(need, 4200)}, or a smaller roce.ib_mtu",
                given=["roce.ib_mtu"],
            )
        nics = self.hosts_per_rack * self.nics_per_host
        room = 2 ** (32 - self.addressing.rack_prefix) // 2  # a /31 a NIC
        if nics > room:
            fit = 32 - (2 * nics - 1).bit_length()
            raise at(
                "hosts_per_rack",
                f"asks for {nics} NICs a rack, and a /{self.addressing.rack_prefix} has room for {room}",
                f"try addressing.rack_prefix: {fit}" if fit >= 16 else "use more racks",
                given=["nics_per_host", "addressing.rack_prefix"],
            )
        if self.racks * self.hosts_per_rack > _MOST_HOSTS:
            why = f"makes {self.racks * self.hosts_per_rack} hosts, and there are MAC addresses for {_MOST_HOSTS}"
            raise at("hosts_per_rack", why, f"try hosts_per_rack: {_MOST_HOSTS // self.racks}", given=["racks"])
        pool = self.addressing.network
        racks = 2 ** (self.addressing.rack_prefix - pool.prefixlen) - 2 ** max(0, self.addressing.rack_prefix - 16)
        if self.racks > racks:
            why = f"are more than the {racks} prefixes that {pool} holds"
            raise at(
                "racks", why, "try a longer addressing.rack_prefix", given=["addressing.rack_prefix", "addressing.pool"]
            )
        if self.queues.buffer < 2 * self.link.mtu:
            raise at("queues.buffer", f"is below two packets of {self.link.mtu} bytes", "try 1MB", given=["link.mtu"])
        return self
