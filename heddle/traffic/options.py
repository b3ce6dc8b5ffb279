"""The options of a run: checked values, no packets yet.

In:  the arguments of `./inv run` (or keyword arguments from a test).
Out: RunOptions, frozen. InputError with all errors in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

from heddle.base.declared import OUTPUT, Declared, Wrong, on_off, options_of
from heddle.base.problems import Problems
from heddle.traffic.admission import (
    ADMISSION_TUNABLES,
    Admission,
    CtsClass,
    admission_from,
    check_admission,
    parse_slow,
    read_admission_set,
)
from heddle.traffic.collectives import Pattern, find_pattern, patterns, usual_algorithm
from heddle.traffic.collectives.pattern import MAX_RANKS
from heddle.traffic.communicators import AUTO, parse_split
from heddle.traffic.readers import (
    ELEMENT_BYTES,
    MAX_SIZE,
    SourcePorts,
    check_faults,
    parse_bucket,
    parse_chunk,
    parse_sizes,
    parse_source_ports,
)
from heddle.traffic.tunables import settings_from

Kind = TypeVar("Kind")
QpMode = Literal["split", "round-robin"]
FastPath = Literal["auto", "on", "off"]
CongestionProfile = Literal["default", "nvidia", "meta"]  # of dcqcn
MAX_QPS: Final = 128  # NCCL's limit for a connection
TIMEOUTS: Final = (8, 31)  # exponents: 8 is 1 ms, the resolution of NICs' timers; 31 is IBTA's largest
TRANSPORT: Final = "rc"  # the default
NO_CONTROL: Final = "none"
SPRAYING: Final = "srd"  # accepts packets in any order, so a sender may spray them
MAX_ENTROPY: Final = 256


_WHAT, _SIZES, _PLACES = "What runs", "Sizes", "Placement"
_TRANSPORT, _CONGESTION, _FAULTS = "Transport", "Congestion", "Faults"
_SETTING: Final = "NAME=NUMBER"
_BY_NUMBERS: Final = SourcePorts()


def _collectives(_: object) -> Sequence[str]:
    return list(dict.fromkeys(collective for collective, _ in patterns()))


def _algorithms(typed: Any) -> Sequence[str]:
    """Of the typed collective; for `--help` of all collectives."""
    wanted = typed.value_of("--collective") or "all-reduce"
    return list(dict.fromkeys(each for collective, each in patterns() if typed.in_help or collective == wanted))


def _congestion_set(texts: Sequence[str], wrong: Wrong) -> tuple[tuple[str, float], ...]:
    return settings_from("--cc-set", texts, float, "rpg_time_reset=100", wrong)


def _pairs(values: Sequence[tuple[str, float]]) -> Sequence[str]:
    return [f"{name}={number:.15g}" for name, number in values]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """One collective, with the options of nccl-tests. Sizes and `chunk` in bytes.

    Each field with a Declared is an option: the flags of `run`, their help and completion, the arguments of tests and
    of assistants are made from it (base/declared.py).
    """

    collective: Annotated[str, Declared(
        "the collective (incast: all ranks send to rank 0)", _WHAT, words=_collectives, listed="one of",
    )] = "all-reduce"  # fmt: skip
    # Empty: the collective's default.
    algorithm: Annotated[str, Declared(
        "the algorithm (default: the collective's first)", _WHAT, words=_algorithms, listed="one of",
    )] = ""  # fmt: skip
    # Default: every NIC of the fabric.
    ranks: Annotated[int | None, Declared(
        "number of ranks (default: one per NIC)", _PLACES, value="N", least=2,
        hint="leave it out for one rank per NIC",
    )] = None  # fmt: skip
    sizes: Annotated[tuple[int, ...], Declared(
        "bytes per rank: 8, 64K, or 64K:16M:x2; rounded down as in nccl-tests", _SIZES, word="size", value="SIZE",
        reads=parse_sizes, typed="1M",
    )] = (1 << 20,)  # fmt: skip
    iters: Annotated[int, Declared(
        "measured iterations", _WHAT, value="N", short="-n", least=1, most=10_000, hint="the default is 5",
    )] = 5  # fmt: skip
    warmup: Annotated[int, Declared(
        "iterations before the measurement", _WHAT, value="N", short="-w", least=0, most=1_000,
        hint="the default is 1",
    )] = 1  # fmt: skip
    qps: Annotated[int, Declared(
        "queue pairs per connection, 1 to 128", _TRANSPORT, value="N", least=1, most=MAX_QPS,
        hint="the default is 1; NCCL's limit for a connection is 128",
    )] = 1  # fmt: skip
    qp_mode: Annotated[QpMode, Declared(
        "split (each message over all QPs) or round-robin (one message per QP in turn)", _TRANSPORT, value="MODE",
        unlike="is not a mode of QPs",
    )] = "split"  # fmt: skip
    # Block, cyclic, or host names with commas.
    placement: Annotated[str, Declared(
        "placement of ranks on hosts: block, cyclic, or host names with commas", _PLACES,
    )] = "block"  # fmt: skip
    source_ports: Annotated[SourcePorts, Declared(
        "UDP source ports: qpn (both QP numbers), own-qpn, rxe, fixed[:PORT], list:A,B,C", _TRANSPORT, word="sport",
        reads=parse_source_ports, typed="qpn", writes=lambda ports: [ports.text],
        words=("qpn", "own-qpn", "rxe", "fixed", "fixed:", "list:"),
    )] = _BY_NUMBERS  # fmt: skip
    # One message; NCCL's P2P net chunk.
    chunk: Annotated[int, Declared("bytes per message", _SIZES, reads=parse_chunk, typed="128K")] = 1 << 17
    # Unacknowledged packets of a QP; default: 64 per connection, shared by its QPs.
    window: Annotated[int | None, Declared(
        "unacknowledged packets per queue pair (default: 64 per connection, shared by its queue pairs)", _TRANSPORT,
        value="N", least=1, most=1 << 14,
        hint="leave it out for 64 packets per connection, and what a delay keeps in flight",
    )] = None  # fmt: skip
    # Local ACK timeout is 4.096 us x 2^timeout (IBTA); default: ack_timeout in plan.py.
    timeout: Annotated[int | None, Declared(
        "N of the retransmission timeout, 4.096 us x 2^N, as NCCL_IB_TIMEOUT: 8 to 31 "
        "(default: by rates, queues and pauses)", _TRANSPORT, word="local_ack_timeout", value="N",
        was={"--timeout": {}}, assistants=False, least=TIMEOUTS[0], most=TIMEOUTS[1],
        hint="leave it out for a timeout that follows rates, queues and pauses",
    )] = None  # fmt: skip
    retries: int = 7
    # Of the queues' record over time.
    bucket_ns: Annotated[int, Declared(
        "time between two samples of the queues, for plot: 1ms to 100ms", OUTPUT, word="bucket", assistants=False,
        reads=parse_bucket, typed="10ms", writes=lambda ns: [f"{ns / 1e6:g}ms"],
    )] = 10_000_000  # fmt: skip
    transport: Annotated[str, Declared(
        "protocol of the queue pairs (rc: InfiniBand's reliable connection)", _TRANSPORT, listed="one of",
    )] = TRANSPORT  # fmt: skip
    # The compiled loop of the NICs: if possible, always, or never.
    fastpath: Annotated[FastPath, Declared(
        "compiled code for the NICs: on, off, or auto (on if this machine and the transport support it)", _TRANSPORT,
        assistants=False, unlike="is not one of auto, on and off",
    )] = "auto"  # fmt: skip
    # Into communicators that run at the same time; see communicators.py.
    split: Annotated[str, Declared(
        "split ranks into parallel communicators, as NCCL_TESTS_SPLIT: 'MOD 2', 'AND 0x1'; auto: one per plane",
        _PLACES, words=(AUTO,), reads=parse_split, typed=AUTO,
    )] = AUTO  # fmt: skip
    # UDP source ports over which each QP of srd sprays its packets.
    entropy: Annotated[int, Declared(
        "UDP source ports of each queue pair of srd, used packet by packet: 1 to 256 (1: no spraying by NICs)",
        _TRANSPORT, value="N", least=1, most=MAX_ENTROPY, hint="the default is 1: no spraying by NICs",
    )] = 1  # fmt: skip
    congestion: Annotated[str, Declared(
        "congestion control: none, dcqcn (receivers report ECN marks by CNPs, senders reduce their rate), "
        "or swift (a window that follows delay and CNPs)", _CONGESTION, word="cc",
        was={"--dcqcn": {"on": "dcqcn", "off": "none"}},
    )] = NO_CONTROL  # fmt: skip
    # Its parameters that the user set, in hardware units.
    congestion_set: Annotated[tuple[tuple[str, float], ...], Declared(
        "parameter of the congestion control in hardware units; can be repeated", _CONGESTION, word="cc_set",
        value=_SETTING, gathers=_congestion_set, writes=_pairs,
    )] = ()  # fmt: skip
    # All other parameters; empty: a controller without any.
    congestion_profile: Annotated[CongestionProfile | Literal[""], Declared(
        "parameters of DCQCN: default (settles in short runs), nvidia, or meta (with doubled ECN thresholds)",
        _CONGESTION, word="cc_profile", unlike="is not a profile of dcqcn",
    )] = ""  # fmt: skip
    # Receivers grant each message with a CTS.
    admission: Annotated[bool, Declared(
        "receivers grant each message with a CTS when they have a free buffer slot, as NCCL: on or off", _CONGESTION,
        words=("on", "off"), reads=on_off, typed="off", writes=lambda on: ["on" if on else "off"],
    )] = False  # fmt: skip
    cts_class: Annotated[CtsClass, Declared(
        "traffic class of CTS packets: control or data", _CONGESTION, unlike="is not control or data",
    )] = "control"  # fmt: skip
    # Its parameters that the user set.
    admission_set: Annotated[tuple[tuple[str, float], ...], Declared(
        "parameter of admission: channels, buffsize, steps, cts_timeout; can be repeated", _CONGESTION,
        value=_SETTING, words=[f"{each.name}=" for each in ADMISSION_TUNABLES], gathers=read_admission_set,
        writes=_pairs,
    )] = ()  # fmt: skip
    # Hosts that process data at this share of their NIC's rate.
    slow: Annotated[tuple[tuple[str, float], ...], Declared(
        "its ranks process data at this share of their NIC's rate; can be repeated", _FAULTS, value="HOST=PERCENT",
        gathers=parse_slow, writes=lambda slow: [f"{host}={100 * share:.10g}%" for host, share in slow],
    )] = ()  # fmt: skip
    # Of links for this run, as typed: `rtsw1:eth3,loss=1/256`.
    faults: Annotated[tuple[str, ...], Declared(
        "fault of a link for this run, as PORT,loss=1/256 or PORT,down,from=2s,to=4s,every=5s; "
        "kinds as in fault; can be repeated", _FAULTS, word="fault", value="PORT,KIND=VALUE", assistants=False,
        gathers=check_faults, writes=list,
    )] = ()  # fmt: skip

    own: Mapping[str, Any] = field(default_factory=dict)  # of its transport and congestion control, if not the default
    parameters: tuple[tuple[str, str | int], ...] = ()  # of the collective, those that the user set

    def of(self, kind: type[Kind]) -> Kind:
        """The options that a transport or a congestion control declares, as its own dataclass."""
        names = {each.name for each in options_of(kind)}
        return kind(**{name: value for name, value in self.own.items() if name in names})

    def plain(self) -> dict[str, Any]:
        """Plain data, with the options of transport, congestion control and collective beside the others."""
        found: dict[str, Any] = asdict(self)
        own, parameters = found.pop("own"), dict(found.pop("parameters"))
        return {**found, **own, **parameters}

    @property
    def pattern(self) -> Pattern:
        """The collective with its parameters; InputError for wrong ones."""
        return find_pattern(self.collective, self.algorithm, **dict(self.parameters))

    @property
    def admitted(self) -> Admission | None:
        """Admission with all its parameters; None when it is off. InputError for wrong parameters."""
        return admission_from(self.admission_set, self.cts_class) if self.admission else None

    def check_live(self, problems: Problems) -> None:
        """Report what a run cannot do, but a prediction can."""
        if self.ranks is not None and self.ranks > MAX_RANKS:
            why, hint = f"is outside 2 to {MAX_RANKS}", "leave it out for one rank per NIC"
            problems.add(where="", what=f"--ranks {self.ranks}", why=why, hint=hint)
        if (size := next((each for each in self.sizes if each > MAX_SIZE), None)) is not None:
            why = f"has {size} bytes, which is outside {ELEMENT_BYTES} (one float32) to {MAX_SIZE} (256M)"
            problems.add(where="", what=f"--size {size}", why=why)

    def check(self, profile: str | None, problems: Problems) -> None:
        """Report options that do not fit each other. profile: as typed."""

        def wrong(what: str, why: str, hint: str) -> None:
            problems.add(where="", what=what, why=why, hint=hint)

        if self.entropy > 1 and self.transport != SPRAYING:
            why = f"is not for --transport {self.transport}, which needs packets in order"
            wrong(f"--entropy {self.entropy}", why, f"use --transport {SPRAYING}, or more --qps")
        _check_congestion(self, profile, wrong)
        check_admission(self.admission, self.cts_class, self.admission_set, wrong)

    def __post_init__(self) -> None:
        object.__setattr__(self, "algorithm", self.algorithm or usual_algorithm(self.collective))
        if self.congestion == "dcqcn" and not self.congestion_profile:
            object.__setattr__(self, "congestion_profile", get_args(CongestionProfile)[0])


def _check_congestion(o: RunOptions, profile: str | None, wrong: Wrong) -> None:
    """Options of one congestion control. A later room checks names and ranges of parameters."""
    if o.congestion_set and o.congestion == "none":
        wrong("--cc-set", "needs congestion control", "add --cc dcqcn, or --cc swift")
    if profile is not None and o.congestion != "dcqcn":
        why = f"is not for {o.congestion}, which has no profiles" if o.congestion != "none" else "needs DCQCN"
        wrong(f"--cc-profile {profile}", why, "leave --cc-profile out" if o.congestion != "none" else "add --cc dcqcn")


def _controlled(options: RunOptions) -> str:
    profile = f" ({options.congestion_profile})" if options.congestion_profile else ""
    return f"congestion control: {options.congestion}{profile}"


def describe(options: RunOptions) -> Sequence[str]:
    """The options as `key: value` strings for a header line."""
    return (
        f"collective: {options.collective}",
        f"algorithm: {options.algorithm}",
        f"QPs: {options.qps} ({options.qp_mode})",
        f"source ports: {options.source_ports.mode}{f', {options.entropy} for each QP' if options.entropy > 1 else ''}",
        f"placement: {options.placement}",
        f"transport: {options.transport}",
        *(f"{name.replace('_', ' ')}: {value}" for name, value in options.own.items()),
        *([_controlled(options)] if options.congestion != "none" else []),
        *([f"admission: {options.admitted.text()}"] if options.admitted is not None else []),
    )
