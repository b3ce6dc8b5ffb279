"""What a fabric's switches and hosts do, beside how they are wired: frozen values, from a fabric file or a topology.

In:  nothing; heddle/fabric/policyof.py makes a Policy of a fabric file, heddle/lab/imported/derive.py of a topology.
Out: Policy, which `Fabric.policy` carries: addresses, scale, MTUs, routing and queues. Sizes are bytes, durations
nanoseconds. No code behind the built fabric reads a fabric file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from heddle.base.ethernet import HEADER, MAX_QUANTA, QUANTUM_BITS
from heddle.base.families import Family, Network, Version

# FIB_MULTIPATH_HASH_FIELD_*, in the words of a fabric file.
FIELDS: Final[Mapping[str, int]] = {
    "src": 0x01, "dst": 0x02, "proto": 0x04, "flowlabel": 0x08, "sport": 0x10, "dport": 0x20,
}  # fmt: skip
FIELDS_5_TUPLE: Final = 0x37  # FIB_MULTIPATH_HASH_FIELD_{SRC,DST}_{IP,PORT} and IP_PROTO
DEFAULT_BUCKETS: Final = 256
AutoSize = int | Literal["auto"]
ClassKind = Literal["control", "lossless", "lossy"]


@dataclass(frozen=True, slots=True)
class Udf:
    """Bytes of a packet that are hashed beside addresses and ports, as an ASIC's user-defined field names them.

    base: the header that `offset` (bytes) counts from. Read as one big-endian number; 0 where the packet is too short.
    """

    base: Literal["l3", "l4", "bth"] = "bth"
    offset: int = 5
    bytes: int = 3


DEFAULT_UDF: Final = Udf()  # the BTH's destination QP


@dataclass(frozen=True, slots=True)
class HashOptions:
    """`routing.hash` and `routing.resilient` of the fabric file, as plain values."""

    policy: Literal["fields", "l3", "l4"] = "fields"  # of mode flow
    fields: int = FIELDS_5_TUPLE  # FIB_MULTIPATH_HASH_FIELD_*
    udf: Udf = DEFAULT_UDF  # of every mode that hashes a queue pair
    gap_ns: int = 20_000_000  # flowlet, adaptive: the silence after which a queue pair may go another way
    first: Literal["hash", "load"] = "hash"  # flowlet: how its way is chosen
    choice: Literal["random", "round-robin"] = "random"  # spray
    resilient: bool = False
    buckets: int = DEFAULT_BUCKETS

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HashOptions:
        """What `to_json` wrote."""
        return cls(**{**data, "udf": Udf(**data["udf"])})


DEFAULT_OPTIONS: Final = HashOptions()


@dataclass(frozen=True, slots=True)
class RoutingPolicy:
    """Path choice. seed: a word of heddle/fabric/seeds.py, or a number that all switches have.

    ucmp: next hops are weighted by the bandwidth behind them.
    """

    ecmp: str = "flow"
    seed: str | int = "per-switch"
    hash: HashOptions = DEFAULT_OPTIONS
    ucmp: bool = False

    @property
    def by_program(self) -> bool:
        """Whether RoCEv2 is hashed or steered by the switches' BPF program, and not by the kernel alone."""
        return self.ecmp != "flow" or self.hash.resilient


@dataclass(frozen=True, slots=True)
class ClassCurve:
    """A class's own marking curve; None: as for all classes."""

    kmin: int | None = None
    kmax: int | None = None
    pmax: float | None = None


_AS_ALL: Final = ClassCurve()


@dataclass(frozen=True, slots=True)
class EcnPolicy:
    """Marking: none below kmin, up to pmax just below kmax, all from kmax on (bytes of one class of one port)."""

    enabled: bool = True
    kmin: int = 40_000
    kmax: int = 160_000
    pmax: float = 0.2
    at: Literal["enqueue", "dequeue"] = "enqueue"
    marker: Literal["bpf", "red"] = "bpf"
    classes: Mapping[int, ClassCurve] = field(default_factory=dict)

    def curve(self, number: int) -> tuple[int, int, float]:
        """kmin, kmax and pmax of one class."""
        own = self.classes.get(number, _AS_ALL)
        return (
            self.kmin if own.kmin is None else own.kmin,
            self.kmax if own.kmax is None else own.kmax,
            self.pmax if own.pmax is None else own.pmax,
        )


@dataclass(frozen=True, slots=True)
class WatchdogPolicy:
    """What becomes of a class that is paused and does not move: after `detect` its packets go on, or are dropped."""

    enabled: bool = True
    detect: int = 10**9
    restore: int = 10**9
    action: Literal["drop", "forward"] = "drop"


@dataclass(frozen=True, slots=True)
class PfcPolicy:
    """When a switch asks the sender on the other end of a link to pause a lossless class, in bytes of an ingress port.

    headroom `auto`: rate x reaction + 2 frames. quanta `auto`: as many as last a quarter of the watchdog's `detect`.
    """

    enabled: bool = True
    xoff: int = 60_000
    xon: int = 40_000
    quanta: AutoSize = "auto"
    reaction: int = 5 * 10**7
    headroom: AutoSize = "auto"
    watchdog: WatchdogPolicy = WatchdogPolicy()

    def headroom_bytes(self, rate_bps: int, mtu: int) -> int:
        """Bytes that still arrive at a port after Xoff: what the sender sends until it stops, and a frame each way."""
        if self.headroom != "auto":
            return self.headroom
        return -(-rate_bps * self.reaction // (8 * 10**9)) + 2 * (mtu + HEADER)

    def quanta_at(self, rate_bps: int) -> int:
        """Of a pause frame sent by a port of this rate; 1 to 65535."""
        if self.quanta != "auto":
            return self.quanta
        if not self.watchdog.enabled:
            return MAX_QUANTA
        return max(1, min(MAX_QUANTA, rate_bps * self.watchdog.detect // (4 * QUANTUM_BITS * 10**9)))


@dataclass(frozen=True, slots=True)
class BufferPolicy:
    """Bytes that the ports of one switch share, a size for each level from the leaves up; `auto` where none is given.

    host: what may wait in a port of a host.
    """

    host: int = 1_000_000
    switches: tuple[AutoSize, ...] = ()

    def at_level(self, level: int) -> AutoSize:
        """The size of a switch of a level, from 1."""
        return self.switches[level - 1] if level <= len(self.switches) else "auto"


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """What stands behind every port: classes, the buffer of its switch, marking and pausing.

    weights: shares of a port, in packets a turn; a class that is named here alone is a further lossy one.
    dscp: DSCP -> class, where that is not the usual one. reserve: bytes of each class of each port that no other uses.
    """

    lossless: tuple[int, ...] = (3,)
    control: int = 6
    best_effort: int = 0
    weights: Mapping[int, int] = field(default_factory=dict)
    dscp: Mapping[int, int] = field(default_factory=dict)
    ecn: EcnPolicy = EcnPolicy()
    pfc: PfcPolicy = PfcPolicy()
    buffer: BufferPolicy = BufferPolicy()
    reserve: int = 10_000
    alpha: float = 1.0
    scheduler: Literal["auto", "htb", "ets"] = "auto"

    @property
    def numbers(self) -> tuple[int, ...]:
        """Classes in use, ascending."""
        return tuple(sorted({self.control, self.best_effort, *self.lossless, *self.weights}))

    def kind(self, number: int) -> ClassKind:
        """What a class in use is."""
        return "control" if number == self.control else "lossless" if number in self.lossless else "lossy"

    def weight(self, number: int) -> int:
        """Its share among those that are not control: 4 for lossless ones and 1 for others, where nothing is said."""
        return self.weights.get(number, 4 if number in self.lossless else 1)

    @property
    def paused(self) -> tuple[int, ...]:
        """Classes that PFC may pause."""
        return self.lossless if self.pfc.enabled else ()


@dataclass(frozen=True, slots=True)
class Policy:
    """All of it. delays: of links on hardware, one way, by the level of their lower end; none: no delay is modelled.

    pool: the network that the racks' prefixes and the loopbacks are from.

    k: rates are divided by it, and every printed bandwidth names it. mtu: of IP, the smallest of all links. ib_mtu:
    payload bytes of a RoCEv2 packet.
    """

    ip: Family
    pool: Network
    k: int
    mtu: int
    ib_mtu: int
    routing: RoutingPolicy = RoutingPolicy()
    queues: QueuePolicy = QueuePolicy()
    delays: tuple[int, ...] = ()

    def delay_ns(self, level: int) -> int:
        """Nanoseconds on hardware, one way, of a link from a node of this level upwards."""
        return self.delays[level] if level < len(self.delays) else 0

    @property
    def ip_version(self) -> Version:
        """4 or 6."""
        return self.ip.version
