"""The queues of a fabric's ports, as frozen values: the keys `queues` of a fabric file, with meanings and rules.

In:  a fabric file, read by heddle/spec/groups.py, or the values of an imported topology.
Out: QueuePolicy, which `Fabric.policy` carries. Sizes are bytes, durations nanoseconds.
Rules are those between keys of `queues`. heddle/fabric/checks.py has those that need the built fabric.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from heddle.base.ethernet import (
    CLASSES,
    DSCP_ANSWER,
    DSCP_DATA,
    DSCP_REPEATED,
    DSCPS,
    HEADER,
    MAX_QUANTA,
    QUANTUM_BITS,
)
from heddle.base.units import round_down, shown
from heddle.spec.key import Complaint, key

_NETWORK_CONTROL: Final = (6, 7)  # DSCPs 48 to 63: CS6 and CS7 (RFC 4594), for traffic between switches
BUFFERS: Final = (10_000, 2**29)  # the qdiscs take twice as much (portqueues.LEAF_LIMIT)
_HEAVIEST: Final = 100
_EIGHT: Final = f"classes are 0 to {CLASSES - 1}, as in a PFC frame"
_MARKS: Final = "marking starts at kmin and is certain from kmax on"
# Bounds that several keys have.
_DEPTH: Final[Any] = {"unit": "size", "least": 0, "most": 2**40}
_RESERVED: Final[Any] = {"unit": "size", "least": 0, "most": 2**31, "auto": True}
_BUFFER: Final[Any] = {"unit": "size", "least": BUFFERS[0], "most": BUFFERS[1], "auto": True}
_STORM: Final[Any] = {"unit": "duration", "least": 10**7, "most": 10**11}
_ONE_CLASS: Final[Any] = {"least": 0, "most": CLASSES - 1}
_ONE_DSCP: Final[Any] = {"least": 0, "most": DSCPS - 1}
_OF_HOSTS: Final[Mapping[int, str]] = {
    DSCP_DATA: "RoCE data", DSCP_ANSWER: "ACKs, NAKs and CNPs", DSCP_REPEATED: "retransmissions",
}  # fmt: skip
AutoSize = int | Literal["auto"]
ClassKind = Literal["control", "lossless", "lossy"]


def _class(text: str) -> int:
    if text not in map(str, range(CLASSES)):
        raise ValueError(f"has a key that is not a class; {_EIGHT}")
    return int(text)


def _dscp(text: str) -> int:
    if not (text.isdecimal() and len(text) <= 2 and int(text) < DSCPS):
        raise ValueError(f"has a key that is not a DSCP; DSCPs are 0 to {DSCPS - 1}")
    return int(text)


@dataclass(frozen=True, slots=True)
class ClassCurve:
    """The marking curve of one class; None: as for all classes."""

    kmin: int | None = key(None, "as `queues.ecn.kmin`", **_DEPTH)
    kmax: int | None = key(None, "as `queues.ecn.kmax`", **_DEPTH)
    pmax: float | None = key(None, "as `queues.ecn.pmax`", least=0, most=1)


_AS_ALL: Final = ClassCurve()


@dataclass(frozen=True, slots=True)
class EcnPolicy:
    """Marking: none below kmin, up to pmax just below kmax, all from kmax on (bytes of one class of one port)."""

    enabled: bool = key(True, "whether ECN-capable packets are marked (CE)")
    kmin: int = key(40_000, "bytes of the class in the port below which no packet is marked", **_DEPTH)
    kmax: int = key(160_000, "from this depth on each packet is marked", **_DEPTH)
    pmax: float = key(0.2, "the share that is marked just below `kmax`; it rises linearly from `kmin`", least=0, most=1)
    at: Literal["enqueue", "dequeue"] = key(
        "enqueue", "the depth that counts: when the packet arrives, or when it leaves"
    )
    marker: Literal["bpf", "red"] = key("bpf", "Heddle's BPF program, or the kernel's RED where it is available")
    classes: Mapping[int, ClassCurve] = key(
        {}, "curves for single classes: `{3: {kmin: 80KB, pmax: 0.5}}`; other values as above", numbers=_class
    )

    def curve(self, number: int) -> tuple[int, int, float]:
        """kmin, kmax and pmax of one class."""
        own = self.classes.get(number, _AS_ALL)
        return (
            self.kmin if own.kmin is None else own.kmin,
            self.kmax if own.kmax is None else own.kmax,
            self.pmax if own.pmax is None else own.pmax,
        )

    def rules(self) -> Iterator[Complaint]:
        """Every curve rises, and the marker marks where `at` says."""
        if self.kmin > self.kmax:
            yield _above("queues.ecn.kmin", self.kmin, self.kmax, "queues.ecn.kmax")
        for number, own in self.classes.items():
            path, (kmin, kmax, _) = f"queues.ecn.classes.{number}", self.curve(number)
            if kmin > kmax and own.kmin is not None:
                yield _above(f"{path}.kmin", kmin, kmax, f"{path}.kmax", "queues.ecn.kmax")
            elif kmin > kmax:
                why = f"is below kmin, {shown(kmin)}"
                yield Complaint(f"{path}.kmax", why, f"{_MARKS}; try {shown(kmin)}", given=("queues.ecn.kmin",))
        if self.marker == "red" and self.at == "dequeue":
            why = "has no effect with marker: red, which marks at enqueue"
            yield Complaint("queues.ecn.at", why, "remove it, or set marker: bpf", given=("queues.ecn.marker",))


def _above(path: str, kmin: int, kmax: int, *given: str) -> Complaint:
    hint = f"{_MARKS}; try {round_down(min(kmin, kmax) // 4)}"
    return Complaint(path, f"is above kmax, {shown(kmax)}", hint, given=given)


@dataclass(frozen=True, slots=True)
class WatchdogPolicy:
    """The PFC watchdog of switches: a class that is paused and does not move for `detect` is forwarded, or dropped."""

    enabled: bool = key(True, "whether a class that stays paused is cut off")
    detect: int = key(10**9, "a class that is paused at a port of a switch for longer is cut off (a storm)", **_STORM)
    restore: int = key(10**9, "after this time without a pause it works again", **_STORM)
    action: Literal["drop", "forward"] = key(
        "drop", "meanwhile `drop` its packets, or `forward` them in spite of pauses"
    )


@dataclass(frozen=True, slots=True)
class PfcPolicy:
    """When a switch asks the peer of a link to pause a lossless class, in bytes of an ingress port."""

    enabled: bool = key(True, "whether lossless classes are paused; without PFC their packets can be dropped")
    xoff: int = key(
        60_000,
        "ingress occupancy from which on the sender is paused: bytes of a class that came in by one port and wait"
        " in the switch",
        unit="size",
        least=1,
        most=2**40,
    )
    xon: int = key(40_000, "ingress occupancy at which the sender continues", **_DEPTH)
    quanta: AutoSize = key(
        "auto",
        "time in a pause frame, in 512 bits of the port; at least 1 ms on the fastest link. `auto`: a quarter of"
        f" `watchdog.detect`, at most {MAX_QUANTA}",
        auto=True,
        least=1,
        most=MAX_QUANTA,
    )
    reaction: int = key(
        5 * 10**7, "time that a sender may take to stop, for headroom", unit="duration", least=10**4, most=10**10
    )
    headroom: AutoSize = key(
        "auto",
        "bytes beyond `xoff`, for each lossless class and port. `auto`: rate x `reaction` + two frames",
        **_RESERVED,
    )
    reserve: AutoSize = key(
        "auto",
        "bytes of the buffer reserved for each lossless class of each port. `auto`: `queues.reserve`",
        **_RESERVED,
    )
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

    def rules(self) -> Iterator[Complaint]:
        """A paused class resumes below the occupancy that paused it."""
        if self.xon >= self.xoff:
            why = f"is not below xoff, {shown(self.xoff)}"
            hint = f"a class is paused at xoff and resumes at xon; try {round_down(self.xoff * 2 // 3)}"
            yield Complaint("queues.pfc.xon", why, hint, given=("queues.pfc.xoff",))


@dataclass(frozen=True, slots=True)
class TrimmingPolicy:
    """Packet trimming: a switch cuts a UDP packet that the buffer refuses to its headers, and sends those first."""

    queue: int | None = key(
        None,
        "class for trimmed packets, which is served after control and before all others; without it nothing is trimmed",
        **_ONE_CLASS,
    )
    enabled: bool = key(True, "whether packets are trimmed; `false` drops them")
    size: int = key(
        256, "bytes from the IP header on to which a packet is cut; shorter ones are dropped", unit="size", least=128,
        most=1024,
    )  # fmt: skip
    dscp: int = key(12, "DSCP of trimmed packets", **_ONE_DSCP)
    last_hop_dscp: int = key(16, "the same if the port to the host trimmed them", name="last-hop-dscp", **_ONE_DSCP)
    exempt: tuple[int, ...] = key((0,), "DSCPs that are never trimmed", name="except")
    actions: Mapping[int, Literal["trim", "drop"]] = key(
        {}, "`trim` or `drop` for single classes: `{0: drop}`. Classes that PFC pauses and control drop, others trim",
        numbers=_class,
    )  # fmt: skip

    @property
    def marks(self) -> Mapping[str, int]:
        """Key -> DSCP of trimmed packets."""
        return {"dscp": self.dscp, "last-hop-dscp": self.last_hop_dscp}

    @property
    def whole(self) -> frozenset[int]:
        """DSCPs that are never trimmed."""
        return frozenset({*self.exempt, *self.marks.values()})

    def rules(self) -> Iterator[Complaint]:
        """A DSCP has one meaning."""
        for word, dscp in self.marks.items():
            path = f"queues.trimming.{word}"
            if dscp in _OF_HOSTS:
                yield Complaint(path, f"is the DSCP of {_OF_HOSTS[dscp]}", "use a DSCP that no host sends, as 12")
            if dscp in self.exempt:
                why = "is also in except: trimmed packets are never trimmed again"
                yield Complaint(path, why, "remove it there", given=("queues.trimming.except",))
        if self.dscp == self.last_hop_dscp:
            why = "is also queues.trimming.dscp: a receiver could not tell where a packet was trimmed"
            hint = "use another DSCP, as 16"
            yield Complaint("queues.trimming.last-hop-dscp", why, hint, given=("queues.trimming.dscp",))
        for at, dscp in enumerate(self.exempt):
            if not 0 <= dscp < DSCPS:
                why = f"has {dscp}, which is not a DSCP"
                yield Complaint(f"queues.trimming.except.{at}", why, f"DSCPs are 0 to {DSCPS - 1}")


@dataclass(frozen=True, slots=True)
class BufferPolicy:
    """Bytes that the ports of one switch share, one size per level from the leaves up; `auto` if none is given.

    host: the most that may wait in a port of a host.
    """

    host: int = key(1_000_000, "bytes of a class in a host's port", unit="size", least=BUFFERS[0], most=2**31 - 1)
    switches: tuple[AutoSize, ...] = ()

    def at_level(self, level: int) -> AutoSize:
        """The size of a switch of a level, from 1."""
        return self.switches[level - 1] if level <= len(self.switches) else "auto"

    @property
    def words(self) -> tuple[str, ...]:
        """Levels with their own size, as a file names them."""
        return ()

    def of_levels(self, words: Sequence[str]) -> BufferPolicy:
        """The sizes of the levels with these words, from the leaves up."""
        return self


@dataclass(frozen=True, slots=True)
class NamedBuffers(BufferPolicy):
    """The same in a fabric file, by words of levels. The shape defines them, so the built fabric checks them."""

    switch: AutoSize = key(
        "auto",
        "bytes that the ports of a switch share. `auto`: their headroom, and 150 KB per port at switches with"
        " hosts, 1 MB at others. `queues.buffer: 2MB` sets it, too",
        **_BUFFER,
    )
    levels: Mapping[str, AutoSize] = key(
        {},
        "the size of the switches of a level, instead of `switch`: `{leaf: 2MB, spine: 8MB}`",
        **_BUFFER,
        levels=True,
    )

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.levels)

    def of_levels(self, words: Sequence[str]) -> BufferPolicy:
        return BufferPolicy(self.host, tuple(self.levels.get(word, self.switch) for word in words))


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """The queues of every port: classes, the buffer of its switch, marking and pausing.

    dscp: DSCP -> class, for those that differ from the default.
    """

    lossless: tuple[int, ...] = key((3,), "classes that PFC pauses, so that no queue drops them; `[]`: none")
    control: int = key(6, "the class that is served before all others: ACK, NAK, CNP, BGP, ARP", **_ONE_CLASS)
    best_effort: int = key(0, "the class of all other packets", **_ONE_CLASS)
    weights: Mapping[int, int] = key(
        {},
        f"shares of the bandwidth that control leaves, in packets per turn: `{{3: 4, 0: 1}}`, 1 to {_HEAVIEST}."
        " Lossless classes have 4, others 1. A class that only this key names is an additional lossy class",
        numbers=_class,
    )
    dscp: Mapping[int, int] = key({}, "DSCPs that map to a class: `{26: 3}`", numbers=_dscp)
    ecn: EcnPolicy = EcnPolicy()
    pfc: PfcPolicy = PfcPolicy()
    trimming: TrimmingPolicy = TrimmingPolicy()
    buffer: BufferPolicy = key(BufferPolicy(), file=NamedBuffers, one="switch")
    reserve: int = key(
        10_000, "bytes of the buffer reserved for each class of each port", unit="size", least=0, most=2**31
    )
    alpha: float = key(1.0, "a queue may use this many times the free bytes of the shared part", above=0, most=64)
    scheduler: Literal["auto", "htb", "ets"] = key(
        "auto", "`htb`, or the kernel's `ets`, which needs sch_ets and no pauses. `auto`: `ets` where possible"
    )
    burst: int = key(
        2,
        "full packets of a backlog that a port sends together, from one timer interrupt ([why](queues.md#bursts))",
        least=1,
        most=16,
    )

    @property
    def numbers(self) -> tuple[int, ...]:
        """Classes in use, ascending."""
        return tuple(sorted({self.control, self.best_effort, *self.lossless, *self.weights, *self.trim_queue}))

    @property
    def trim_queue(self) -> tuple[int, ...]:
        """The class of trimmed packets, if there is one."""
        return () if self.trimming.queue is None else (self.trimming.queue,)

    def trims(self, number: int) -> bool:
        """Whether packets of a class in use are trimmed where the buffer refuses them."""
        if not (self.trim_queue and self.trimming.enabled) or number in (self.control, *self.trim_queue, *self.paused):
            return False
        return self.trimming.actions.get(number, "trim") == "trim"

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
        """A sentence for each DSCP of data whose class is neither trimmed nor paused, where PFC pauses others."""
        found = {dscp: self.class_of_dscp[dscp] for dscp in dscps if self.paused}
        return tuple(
            f"data with DSCP {dscp} is in class {number} ({self.kind(number)}): a full queue drops it, and nothing"
            f" is paused; set queues.dscp.{dscp}={self.paused[0]}, or use a DSCP of a lossless class"
            for dscp, number in found.items()
            if number not in self.paused and not self.trims(number)
        )

    @property
    def class_of_dscp(self) -> tuple[int, ...]:
        """The class of each of the 64 DSCPs.

        DSCPs 8n to 8n+7 belong to class n if that is in use (the upper three bits, as in IP precedence and 802.1p).
        Otherwise 48 to 63 belong to control, and all others to best effort. `dscp` overrides these rules. The queue of
        trimmed packets has their DSCPs only.
        """
        used = {*self.numbers} - {*self.trim_queue}
        marks = {dscp: number for number in self.trim_queue for dscp in self.trimming.marks.values()}

        def usual(dscp: int) -> int:
            if dscp // 8 in used:
                return dscp // 8
            return self.control if dscp // 8 in _NETWORK_CONTROL else self.best_effort

        return tuple(marks.get(each, self.dscp.get(each, usual(each))) for each in range(DSCPS))

    def rules(self) -> Iterator[Complaint]:
        """Classes exist, have one purpose each, and are in use where a key names them."""
        yield from self._wrong_classes()
        given = ("queues.lossless", "queues.control", "queues.best_effort", "queues.weights")
        some = "classes in use: " + ", ".join(str(number) for number in self.numbers)
        for number in self.ecn.classes:
            if number not in self.numbers or number == self.control:
                why = "is not in use" if number != self.control else "is the control class, which is not marked"
                yield Complaint(f"queues.ecn.classes.{number}", why, some, given=given)
        for dscp, number in self.dscp.items():
            if number not in self.numbers:
                hint = f"{some}; add class {number} with queues.weights.{number}" if 0 <= number < CLASSES else some
                yield Complaint(f"queues.dscp.{dscp}", "is not a class in use", hint, given=given)
        if self.trim_queue:
            yield from self._wrong_trimming(*self.trim_queue)
        if self.scheduler == "ets" and self.paused:
            which = "class " + ", ".join(str(number) for number in self.lossless)
            why = f"does not work with {which}, which PFC may pause: sch_ets then serves no weighted class at all"
            hint = "remove it: auto selects htb here, and ets for queues.lossless: []; or set queues.pfc.enabled: false"
            yield Complaint("queues.scheduler", why, hint, given=("queues.lossless", "queues.pfc.enabled"))

    def _wrong_trimming(self, queue: int) -> Iterator[Complaint]:
        others = {self.control: "control", self.best_effort: "best_effort", **dict.fromkeys(self.lossless, "lossless")}
        others |= dict.fromkeys({*self.weights} - {*others}, "weights")
        free = next(number for number in (5, 4, 1, 2, 7, 3, 0, 6, None) if number not in others)
        if queue in others:
            why = f"is a class of queues.{others[queue]}: trimmed packets need a queue of their own, without pauses"
            hint = "remove a class" if free is None else f"try {free}"
            yield Complaint("queues.trimming.queue", why, hint, given=(f"queues.{others[queue]}",))
        for dscp, number in self.dscp.items():
            if dscp in self.trimming.marks.values():
                why = "is the DSCP of trimmed packets, which have their own class"
                yield Complaint(f"queues.dscp.{dscp}", why, "remove it", given=("queues.trimming",))
            elif number == queue:
                why = "is the class of trimmed packets: data would fill it"
                yield Complaint(f"queues.dscp.{dscp}", why, "use another class", given=("queues.trimming.queue",))
        for number, action in self.trimming.actions.items():
            path = f"queues.trimming.actions.{number}"
            if number not in self.numbers:
                yield Complaint(path, "is for a class that is not in use", "remove it")
            elif action == "trim" and number in self.paused:
                why = f"is for class {number}, which PFC pauses: its packets wait at the sender, none is to be trimmed"
                hint = "remove it, or set queues.pfc.enabled: false"
                yield Complaint(path, why, hint, given=("queues.lossless", "queues.pfc.enabled"))
            elif action == "trim" and number in (self.control, queue):
                what = "control" if number == self.control else "trimmed packets"
                yield Complaint(path, f"is for the class of {what}, which is not trimmed", "remove it")

    def _wrong_classes(self) -> Iterator[Complaint]:
        for place, number in enumerate(self.lossless):
            if not 0 <= number < CLASSES:
                yield Complaint("queues.lossless", f"has {number}, which is not a class", _EIGHT)
            if number in self.lossless[:place]:
                yield Complaint("queues.lossless", f"has {number} twice", "keep one of the two")
            for role, does in (("control", "is served before all others"), ("best_effort", "may be dropped")):
                if number == getattr(self, role):
                    hint = f"set one of the two to another of 0 to {CLASSES - 1}"
                    given = (f"queues.{role}", f"queues.lossless.{place}")
                    why = f"has {number}, the class {role}, which {does}"
                    yield Complaint("queues.lossless", why, hint, given=given)
        if self.best_effort == self.control:
            hint = "try 0, or another number for queues.control"
            yield Complaint(
                "queues.best_effort", "is also the class of queues.control", hint, given=("queues.control",)
            )
        for number, weight in self.weights.items():
            path = f"queues.weights.{number}"
            if number == self.control:
                why = "is for the control class, which has no weight: it is served before all others"
                yield Complaint(path, why, "remove it", given=("queues.control",))
            if not 1 <= weight <= _HEAVIEST:
                why = "is below 1" if weight < 1 else f"is above {_HEAVIEST}"
                yield Complaint(path, why, f"allowed: 1 to {_HEAVIEST}, in packets per turn")
