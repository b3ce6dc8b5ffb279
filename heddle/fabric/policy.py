"""The policy of a fabric's switches and hosts, separate from the wiring: frozen values, from a fabric file or topology.

heddle/fabric/policydata.py makes a Policy from a fabric file, heddle/lab/imported/description.py from a topology.
Out: Policy, which `Fabric.policy` carries: addresses, scale, MTUs, routing and queues. Sizes are bytes, durations
nanoseconds. Code that works on the built fabric never reads a fabric file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

from heddle.base.ethernet import DSCPS, HEADER, MAX_QUANTA, QUANTUM_BITS
from heddle.base.families import Family, Network, Version
from heddle.base.units import round_up, shown
from heddle.spec.impairments import NO_FAULT, LinkFault

if TYPE_CHECKING:
    from pydantic import TypeAdapter


# FIB_MULTIPATH_HASH_FIELD_*, in the words of a fabric file.
FIELDS: Final[Mapping[str, int]] = {
    "src": 0x01, "dst": 0x02, "proto": 0x04, "flowlabel": 0x08, "sport": 0x10, "dport": 0x20,
}  # fmt: skip
FIELDS_5_TUPLE: Final = 0x37  # FIB_MULTIPATH_HASH_FIELD_{SRC,DST}_{IP,PORT} and IP_PROTO
DEFAULT_BUCKETS: Final = 256
_NETWORK_CONTROL: Final = (6, 7)  # DSCPs 48 to 63: CS6 and CS7 (RFC 4594), for traffic between switches
AutoSize = int | Literal["auto"]
ClassKind = Literal["control", "lossless", "lossy"]


@dataclass(frozen=True, slots=True)
class Udf:
    """Bytes of a packet that are hashed in addition to addresses and ports: the user-defined field of an ASIC.

    base: the header that `offset` (bytes) counts from. Read as one big-endian number; 0 if the packet is too short.
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
    gap_ns: int = 20_000_000  # flowlet, adaptive: the silence after which a queue pair may change its path
    first: Literal["hash", "load"] = "hash"  # flowlet: how its path is chosen
    choice: Literal["random", "round-robin"] = "random"  # spray
    resilient: bool = False
    buckets: int = DEFAULT_BUCKETS

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HashOptions:
        return _options_reader().validate_python(data)


@cache
def _options_reader() -> TypeAdapter[HashOptions]:
    from pydantic import TypeAdapter  # processes that read no stored run start without it

    return TypeAdapter(HashOptions)


DEFAULT_OPTIONS: Final = HashOptions()


@dataclass(frozen=True, slots=True)
class RoutingPolicy:
    """Path choice. seed: a word of heddle/fabric/hashmodes.py, or a number for all switches.

    ucmp: next hops are weighted by the bandwidth behind them. loopbacks: switches announce their loopbacks.
    """

    ecmp: str = "flow"
    seed: str | int = "per-switch"
    hash: HashOptions = DEFAULT_OPTIONS
    ucmp: bool = False
    loopbacks: bool = False

    @property
    def by_program(self) -> bool:
        """Whether the switches' BPF program hashes or steers RoCEv2, and not the kernel alone."""
        return self.ecmp != "flow" or self.hash.resilient


@dataclass(frozen=True, slots=True)
class ClassCurve:
    """The marking curve of one class; None: as for all classes."""

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
    """The PFC watchdog of switches: a class that is paused and does not move for `detect` is forwarded, or dropped."""

    enabled: bool = True
    detect: int = 10**9
    restore: int = 10**9
    action: Literal["drop", "forward"] = "drop"


@dataclass(frozen=True, slots=True)
class PfcPolicy:
    """When a switch asks the peer of a link to pause a lossless class, in bytes of an ingress port.

    headroom `auto`: rate x reaction + 2 frames. quanta `auto`: a quarter of the watchdog's `detect`. reserve: bytes
    guaranteed to each lossless class of each port; `auto`: as other classes.
    """

    enabled: bool = True
    xoff: int = 60_000
    xon: int = 40_000
    quanta: AutoSize = "auto"
    reaction: int = 5 * 10**7
    headroom: AutoSize = "auto"
    reserve: AutoSize = "auto"
    watchdog: WatchdogPolicy = WatchdogPolicy()

    def headroom_bytes(self, rate_bps: int, mtu: int) -> int:
        """Bytes that arrive at a port after Xoff: those sent until the sender stops, and a frame in each direction."""
        if self.headroom != "auto":
            return self.headroom
        return -(-rate_bps * self.reaction // (8 * 10**9)) + 2 * (mtu + HEADER)

    def quanta_at(self, rate_bps: int) -> int:
        """The quanta of a pause frame sent by a port of this rate; 1 to 65535."""
        if self.quanta != "auto":
            return self.quanta
        if not self.watchdog.enabled:
            return MAX_QUANTA
        return max(1, min(MAX_QUANTA, rate_bps * self.watchdog.detect // (4 * QUANTUM_BITS * 10**9)))


@dataclass(frozen=True, slots=True)
class BufferPolicy:
    """Bytes that the ports of one switch share, one size per level from the leaves up; `auto` if none is given.

    host: the most that may wait in a port of a host.
    """

    host: int = 1_000_000
    switches: tuple[AutoSize, ...] = ()

    def at_level(self, level: int) -> AutoSize:
        """The size of a switch of a level, from 1."""
        return self.switches[level - 1] if level <= len(self.switches) else "auto"


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """The queues of every port: classes, the buffer of its switch, marking and pausing.

    weights: shares of a port, in packets per turn; a class that only weights names is an additional lossy class.
    dscp: DSCP -> class, for those that differ from the default. reserve: guaranteed bytes of each class of each port.
    burst: full packets that a port with a backlog may send at once, from one timer interrupt.
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
    burst: int = 2

    @property
    def numbers(self) -> tuple[int, ...]:
        """Classes in use, ascending."""
        return tuple(sorted({self.control, self.best_effort, *self.lossless, *self.weights}))

    def kind(self, number: int) -> ClassKind:
        """The kind of a class in use."""
        return "control" if number == self.control else "lossless" if number in self.lossless else "lossy"

    def weight(self, number: int) -> int:
        """A class's share among those that are not control. Default: 4 for lossless classes, 1 for others."""
        return self.weights.get(number, 4 if number in self.lossless else 1)

    @property
    def paused(self) -> tuple[int, ...]:
        """Classes that PFC may pause."""
        return self.lossless if self.pfc.enabled else ()

    def reserve_of(self, number: int) -> int:
        """Guaranteed bytes of a class in use, at each port."""
        own = self.pfc.reserve if number in self.paused else "auto"
        return self.reserve if own == "auto" else own

    @property
    def late_marks(self) -> tuple[str, ...]:
        """A sentence for each class that PFC pauses, at a port, from fewer bytes on than ECN marks it, in a queue."""
        xoff, kmins = self.pfc.xoff, {n: self.ecn.curve(n)[0] for n in self.paused if self.ecn.enabled}
        return tuple(
            f"class {number}: PFC acts before ECN: pfc.xoff pauses a port from {shown(xoff)} on that came in by it, and"
            f" ecn.kmin marks a queue from {shown(kmin)} on; use an ecn.kmin below pfc.xoff"
            for number, kmin in kmins.items()
            if kmin >= xoff
        )

    def lossy_data(self, *dscps: int) -> tuple[str, ...]:
        """A sentence for each DSCP of data whose class PFC does not pause, where it pauses others."""
        found = {dscp: self.class_of_dscp[dscp] for dscp in dscps if self.paused}
        return tuple(
            f"data with DSCP {dscp} is in class {number} ({self.kind(number)}): a full queue drops it, and nothing"
            f" is paused; set queues.dscp.{dscp}={self.paused[0]}, or use a DSCP of a lossless class"
            for dscp, number in found.items()
            if number not in self.paused
        )

    @property
    def class_of_dscp(self) -> tuple[int, ...]:
        """The class of each of the 64 DSCPs.

        DSCPs 8n to 8n+7 belong to class n if that is in use (the upper three bits, as in IP precedence and 802.1p).
        Otherwise 48 to 63 belong to control, and all others to best effort. `dscp` overrides these rules.
        """
        used = self.numbers

        def usual(dscp: int) -> int:
            if dscp // 8 in used:
                return dscp // 8
            return self.control if dscp // 8 in _NETWORK_CONTROL else self.best_effort

        return tuple(self.dscp.get(each, usual(each)) for each in range(DSCPS))


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """The policy of one network of hosts. pool: of its prefixes; mtu: of IP; queues: with ECN and PFC."""

    pool: Network
    mtu: int
    queues: QueuePolicy


@dataclass(frozen=True, slots=True)
class Policy:
    """The whole policy of a fabric. pool, mtu and queues are those of the network that carries ranks.

    pool: the network of the racks' prefixes and the loopbacks.
    k: rates are divided by it, and every printed bandwidth names it. mtu: of IP, the smallest of all links. ib_mtu:
    payload bytes of a RoCEv2 packet.
    delays: of links on hardware, one way, by the level of their lower end; empty: no delay is modelled.
    link_faults: of links, by the same level; empty: none.
    others: networks without ranks, by their names (`Port.network`).
    """

    ip: Family
    pool: Network
    k: int
    mtu: int
    ib_mtu: int
    routing: RoutingPolicy = RoutingPolicy()
    queues: QueuePolicy = QueuePolicy()
    delays: tuple[int, ...] = ()
    link_faults: tuple[LinkFault, ...] = ()
    others: Mapping[str, NetworkPolicy] = field(default_factory=dict)

    @property
    def pools(self) -> tuple[Network, ...]:
        """The address pools of all networks."""
        return (self.pool, *(each.pool for each in self.others.values()))

    def of(self, network: str) -> NetworkPolicy:
        """The policy of the network of a port."""
        return self.others.get(network) or NetworkPolicy(self.pool, self.mtu, self.queues)

    def link_fault(self, level: int) -> LinkFault:
        """The fault of each direction of a link from a node of this level upwards."""
        return self.link_faults[level] if level < len(self.link_faults) else NO_FAULT

    @property
    def delayed_on_links(self) -> bool:
        """Whether packets wait on their links, by netem; else the receiving NIC delays them, if there are delays."""
        return any(fault.delay_ns for fault in self.link_faults)

    def delay_ns(self, level: int) -> int:
        """Nanoseconds on hardware, one way, of a link from a node of this level upwards."""
        return self.delays[level] if level < len(self.delays) else 0

    @property
    def ip_version(self) -> Version:
        """4 or 6."""
        return self.ip.version


# Bytes per port that `auto` gives in addition to headroom: edge switches have shallow buffers, others deep ones.
SHALLOW: Final = 150_000
DEEP: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Budget:
    """The buffer layout of one switch, in bytes: buffer = headroom + reserved + shared."""

    buffer: int
    headroom: int
    reserved: int

    @property
    def shared(self) -> int:
        """The bytes that all classes of all ports share; below 0 if the buffer is too small."""
        return self.buffer - self.headroom - self.reserved


def buffer_bytes(queues: QueuePolicy, level: int, ports: Sequence[tuple[int, int]], *, is_edge: bool) -> Budget:
    """The layout of a switch of a level with these ports: (rate in bit/s, mtu) each. is_edge: of that level."""
    pauses = len(queues.paused)
    headroom = pauses * sum(queues.pfc.headroom_bytes(rate, mtu) for rate, mtu in ports)
    reserved = len(ports) * sum(map(queues.reserve_of, queues.numbers))
    given = queues.buffer.at_level(level)
    a_port = SHALLOW if is_edge else DEEP
    total = headroom + len(ports) * a_port if given == "auto" else given
    return Budget(buffer=total, headroom=headroom, reserved=reserved)


def too_small(queues: QueuePolicy, name: str, ports: int, found: Budget, mtu: int) -> tuple[str, str]:
    """The reason that a switch's buffer is too small, and a hint. name: of the switch, or its level."""
    frame = mtu + HEADER
    alike = Counter(map(queues.reserve_of, queues.numbers))
    parts = [f"reserve {shown(size)} x {count} classes x {ports} ports" for size, count in alike.items()]
    if found.headroom:
        pauses = "" if len(queues.lossless) == 1 else f" x {len(queues.lossless)} lossless classes"
        each = found.headroom // ports // len(queues.lossless)
        parts.insert(0, f"headroom {shown(each)}{pauses} x {ports} ports of {name}")
    need = found.headroom + found.reserved + frame
    why = f"is below {need} bytes: {' + '.join(parts)} + a frame of {frame}"
    smaller = "a smaller queues.reserve" if not found.headroom else "queues.pfc.enabled: false, or a smaller reserve"
    return why, f"try {round_up(need + len(queues.numbers) * frame * ports)}, {smaller}"
