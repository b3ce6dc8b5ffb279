"""The options of a run: checked values, no packets yet.

In:  the arguments of `./inv run` (or keyword arguments from a test).
Out: RunOptions, frozen. InputError with all errors in them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypedDict, TypeVar, get_args

from heddle.base.problems import InputError, Problems
from heddle.base.units import parse_duration, parse_size
from heddle.spec.impairments import parse_run_faults
from heddle.traffic.admission import Admission, CtsClass, admission_from, parse_admission, parse_slow
from heddle.traffic.collectives import find_pattern, usual_algorithm
from heddle.traffic.communicators import AUTO, parse_split
from heddle.traffic.tunables import Wrong, chosen, settings_from

QpMode = Literal["split", "round-robin"]
FastPath = Literal["auto", "on", "off"]
CongestionName = Literal["none", "dcqcn", "swift"]
CongestionProfile = Literal["default", "nvidia", "meta"]  # of dcqcn
Recovery = Literal["go-back-n", "go-back-0", "selective-repeat"]
WINDOWED: Final[frozenset[CongestionName]] = frozenset({"swift"})  # measure the delay of each acknowledgement
ELEMENT_BYTES: Final = 4  # float32
MAX_SIZE: Final = 1 << 28
MAX_QPS: Final = 128  # NCCL's limit for a connection
TIMEOUTS: Final = (8, 31)  # exponents: 8 is 1 ms, the resolution of NICs' timers; 31 is IBTA's largest
BUCKETS_NS: Final = (10**6, 10**8)  # a bucket of the queues' record; shorter ones cost too much
TRANSPORT: Final = "rc"  # the default
SPRAYING: Final = "srd"  # accepts packets in any order, so a sender may spray them
MAX_ENTROPY: Final = 256
FIXED_SPORT: Final = 49152  # OTG's default
_USUAL_WINDOW: Final = "64 packets per connection, and what a delay keeps in flight"
_USUAL_TIMEOUT: Final = "a timeout that follows rates, queues and pauses"
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class SourcePorts:
    """How a NIC chooses UDP source ports.

    qpn: from both QP numbers, as Linux does. own-qpn: from the sender's own QP number. rxe: from a hash of it, as
    soft-RoCE does for queue pairs without a flow label. fixed: one port. list: `ports` in turn.
    """

    mode: Literal["qpn", "own-qpn", "rxe", "fixed", "list"] = "qpn"
    ports: tuple[int, ...] = ()


_BY_NUMBER: Final = {"qpn": SourcePorts(), "own-qpn": SourcePorts("own-qpn"), "rxe": SourcePorts("rxe")}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """One collective, with the options of nccl-tests. Sizes and `chunk` in bytes."""

    collective: str = "all-reduce"
    algorithm: str = ""  # empty: the collective's default
    ranks: int | None = None  # default: every NIC of the fabric
    sizes: tuple[int, ...] = (1 << 20,)
    iters: int = 5
    warmup: int = 1
    qps: int = 1
    qp_mode: QpMode = "split"
    placement: str = "block"  # block, cyclic, or host names with commas
    source_ports: SourcePorts = SourcePorts()
    chunk: int = 1 << 17  # one message; NCCL's P2P net chunk
    window: int | None = None  # unacknowledged packets of a QP; default: 64 per connection, shared by its QPs
    timeout: int | None = None  # local ACK timeout is 4.096 us x 2^timeout (IBTA); default: ack_timeout in plan.py
    retries: int = 7
    bucket_ns: int = 10_000_000  # of the queues' record over time
    transport: str = TRANSPORT
    fastpath: FastPath = "auto"  # the compiled loop of the NICs: if possible, always, or never
    split: str = AUTO  # into communicators that run at the same time; see communicators.py
    recovery: Recovery = "go-back-n"  # of rc, from loss
    entropy: int = 1  # UDP source ports over which each QP of srd sprays its packets
    congestion: CongestionName = "none"
    congestion_set: tuple[tuple[str, float], ...] = ()  # its parameters that the user set, in hardware units
    congestion_profile: CongestionProfile | Literal[""] = ""  # all other parameters; empty: a controller without any
    admission: bool = False  # receivers grant each message with a CTS
    cts_class: CtsClass = "control"
    admission_set: tuple[tuple[str, float], ...] = ()  # its parameters that the user set
    slow: tuple[tuple[str, float], ...] = ()  # hosts that process data at this share of their NIC's rate
    faults: tuple[str, ...] = ()  # of links for this run, as typed: `rtsw1:eth3,loss=1/256`

    @property
    def admitted(self) -> Admission | None:
        """Admission with all its parameters; None when it is off. InputError for wrong parameters."""
        return admission_from(self.admission_set, self.cts_class) if self.admission else None

    def __post_init__(self) -> None:
        object.__setattr__(self, "algorithm", self.algorithm or usual_algorithm(self.collective))
        if self.congestion == "dcqcn" and not self.congestion_profile:
            object.__setattr__(self, "congestion_profile", get_args(CongestionProfile)[0])


def parse_sizes(text: str) -> tuple[int, ...]:
    """`8`, `64K:16M`, `64K:16M:x2` or `64K:1M:64K` (nccl-tests' -b, -e, -f, -i); ValueError with the reason.

    Bytes as typed; `build_plan` rounds them to those that the collective uses.
    """
    parts = text.split(":")
    if len(parts) > 3:
        raise ValueError("has too many parts; write 64K, or 64K:16M:x2")
    low = parse_size(parts[0])
    if len(parts) == 1:
        sizes = [low]
    else:
        high = parse_size(parts[1])
        sizes = _series(low, high, parts[2] if len(parts) == 3 else "x2")
    for size in sizes:
        if size < ELEMENT_BYTES or size > MAX_SIZE:
            raise ValueError(f"has {size} bytes, which is outside {ELEMENT_BYTES} (one float32) to {MAX_SIZE} (256M)")
    return tuple(sizes)


def _series(low: int, high: int, step: str) -> list[int]:
    if high < low:
        raise ValueError("ends below its start; write 64K:16M:x2")
    sizes = [low]
    if step.startswith("x"):
        if not re.fullmatch(r"x[0-9]+", step) or int(step[1:]) < 2:
            raise ValueError(f"has the factor {step}, which must be x2 or more")
        while sizes[-1] * int(step[1:]) <= high and len(sizes) <= 64:
            sizes.append(sizes[-1] * int(step[1:]))
    else:
        width = parse_size(step)
        if width < 1:
            raise ValueError("has a step of 0")
        while sizes[-1] + width <= high and len(sizes) <= 64:
            sizes.append(sizes[-1] + width)
    if len(sizes) > 64:
        raise ValueError("gives more than 64 sizes")
    return sizes


def parse_source_ports(text: str) -> SourcePorts:
    """`qpn`, `own-qpn`, `rxe`, `fixed`, `fixed:50000` or `list:50000,50001`; ValueError with the reason."""
    if text in _BY_NUMBER:
        return _BY_NUMBER[text]
    mode, _, rest = text.partition(":")
    if mode == "fixed":
        return SourcePorts("fixed", (_port(rest) if rest else FIXED_SPORT,))
    if mode == "list" and rest:
        return SourcePorts("list", tuple(_port(p) for p in rest.split(",")))
    raise ValueError("is not one of qpn, own-qpn, rxe, fixed, fixed:PORT and list:PORT,PORT,...")


def _port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise ValueError(f"has {text or 'an empty word'}, which is not a UDP port; use ports from 1 to 65535")
    return int(text)


class RunArguments(TypedDict, total=False):
    """The arguments of `run_options` that a user types. Callers that pass them on need no defaults of their own."""

    collective: str
    algorithm: str | None
    ranks: int | None
    size: str
    iters: int
    warmup: int
    qps: int
    qp_mode: str
    placement: str
    sport: str
    chunk: str
    window: int | None
    local_ack_timeout: int | None
    bucket: str
    transport: str
    split: str
    fastpath: str
    cc: str
    cc_profile: str | None
    cc_set: Sequence[str]
    recovery: str
    entropy: int
    admission: str
    cts_class: str
    admission_set: Sequence[str]
    slow: Sequence[str]
    fault: Sequence[str]


def run_options(
    *,
    collective: str = "all-reduce",
    algorithm: str | None = None,
    ranks: int | None = None,
    size: str = "1M",
    iters: int = 5,
    warmup: int = 1,
    qps: int = 1,
    qp_mode: str = "split",
    placement: str = "block",
    sport: str = "qpn",
    chunk: str = "128K",
    window: int | None = None,
    local_ack_timeout: int | None = None,
    bucket: str = "10ms",
    transport: str = TRANSPORT,
    find_transport: Callable[[str], object] | None = None,
    split: str = AUTO,
    fastpath: str = "auto",
    cc: str = "none",
    cc_profile: str | None = None,
    cc_set: Sequence[str] = (),
    recovery: str = "go-back-n",
    entropy: int = 1,
    admission: str = "off",
    cts_class: str = "control",
    admission_set: Sequence[str] = (),
    slow: Sequence[str] = (),
    fault: Sequence[str] = (),
) -> RunOptions:
    """Options as the user typed them; InputError with all errors in them.

    find_transport: raises InputError for an unknown transport. A later room supplies it, since it has the list.
    """
    problems = Problems()

    def wrong(flag: str, why: str, hint: str = "") -> None:
        problems.add(where="", what=flag, why=why, hint=hint)

    def parsed(flag: str, text: str, parser: Callable[[str], Value], default: Value) -> Value:
        try:
            return parser(text)
        except ValueError as error:
            why, _, hint = str(error).partition("; ")
            wrong(f"{flag} {text}", why, hint)
            return default

    sizes: tuple[int, ...] = parsed("--size", size, parse_sizes, ())
    ports = parsed("--sport", sport, parse_source_ports, SourcePorts())
    chunk_bytes = parsed("--chunk", chunk, parse_size, 1 << 17)
    communicators = parsed("--split", split, parse_split, AUTO)
    bucket_ns = parsed("--bucket", bucket, parse_duration, BUCKETS_NS[0])
    mode: QpMode = chosen("--qp-mode", qp_mode, get_args(QpMode), "is not a mode of QPs", wrong)
    loop: FastPath = chosen("--fastpath", fastpath, get_args(FastPath), "is not one of auto, on and off", wrong)
    congestion, settings = _congestion(cc, cc_set, wrong)
    profile = _profile(cc_profile, congestion, wrong)
    if congestion == "swift" and fastpath == "on":
        wrong("--fastpath on", "is not possible with swift", "leave --fastpath out")
    try:
        if find_transport is not None:
            find_transport(transport)
        if entropy > 1 and transport != SPRAYING:
            why = f"is not for --transport {transport}, which needs packets in order"
            wrong(f"--entropy {entropy}", why, f"use --transport {SPRAYING}, or more --qps")
        recovers = _recovery(recovery, transport, fastpath, wrong)
    except InputError as error:  # nothing can be said about what an unknown transport supports
        problems.found += error.problems
        recovers = "go-back-n"
    admitted, cts, admission_settings = parse_admission(admission, cts_class, admission_set, fastpath, wrong)
    slow_hosts, faults = parse_slow(slow, wrong), _faults(fault, problems)
    try:
        find_pattern(collective, algorithm or usual_algorithm(collective))
    except InputError as error:
        problems.found += error.problems
    for flag, value, low, high, hint in (
        ("--qps", qps, 1, MAX_QPS, "the default is 1; NCCL's limit for a connection is 128"),
        ("--iters", iters, 1, 10_000, "the default is 5"),
        ("--warmup", warmup, 0, 1_000, "the default is 1"),
        ("--ranks", ranks, 2, 2048, "leave it out for one rank per NIC"),
        ("--window", window, 1, 1 << 14, f"leave it out for {_USUAL_WINDOW}"),
        (
            "--local-ack-timeout",
            local_ack_timeout,
            *TIMEOUTS,
            f"leave it out for {_USUAL_TIMEOUT}",
        ),
        ("--entropy", entropy, 1, MAX_ENTROPY, "the default is 1: no spraying by NICs"),
    ):
        if value is not None and not low <= value <= high:
            wrong(f"{flag} {value}", f"is outside {low} to {high}", hint)
    if not 4096 <= chunk_bytes <= 1 << 24 or chunk_bytes % 128:
        wrong(f"--chunk {chunk}", "is not a multiple of 128 bytes between 4K and 16M", "try 128K, the chunk of NCCL")
    if not BUCKETS_NS[0] <= bucket_ns <= BUCKETS_NS[1]:
        wrong(f"--bucket {bucket}", "is outside 1ms to 100ms")
    problems.raise_if_any()
    return RunOptions(
        collective, algorithm or "", ranks, sizes, iters, warmup, qps, mode, placement, ports, chunk_bytes, window,
        local_ack_timeout, bucket_ns=bucket_ns, transport=transport, fastpath=loop,
        split=communicators, recovery=recovers, entropy=entropy, congestion=congestion,
        congestion_set=settings, congestion_profile=profile,
        admission=admitted, cts_class=cts, admission_set=admission_settings, slow=slow_hosts,
        faults=faults,
    )  # fmt: skip


def _faults(texts: Sequence[str], problems: Problems) -> tuple[str, ...]:
    """The checked texts of `--fault`; whether the lab has their ports is checked before the run."""
    try:
        parse_run_faults(texts)
    except InputError as error:
        problems.found += error.problems
    return tuple(texts)


def _recovery(recovery: str, transport: str, fastpath: str, wrong: Wrong) -> Recovery:
    """The checked `--recovery`."""
    found: Recovery = chosen("--recovery", recovery, get_args(Recovery), "is not a recovery from loss", wrong)
    if found != "go-back-n" and transport != TRANSPORT:
        wrong(f"--recovery {found}", f"is not for --transport {transport}", f"use --transport {TRANSPORT}")
    elif found != "go-back-n" and fastpath == "on":
        wrong("--fastpath on", f"is not possible with --recovery {found}", "leave --fastpath out")
    return found


def _congestion(cc: str, cc_set: Sequence[str], wrong: Wrong) -> tuple[CongestionName, tuple[tuple[str, float], ...]]:
    """The controller, and the `NAME=NUMBER` texts as pairs; the last value of a name counts.

    A later room checks names and ranges, since it has the controllers.
    """
    named: CongestionName = chosen("--cc", cc, get_args(CongestionName), "is not a congestion control", wrong)
    if cc_set and cc == "none":
        wrong("--cc-set", "needs congestion control", "add --cc dcqcn, or --cc swift")
    return named, settings_from("--cc-set", cc_set, float, "rpg_time_reset=100", wrong)


def _profile(name: str | None, congestion: CongestionName, wrong: Wrong) -> CongestionProfile | Literal[""]:
    """The checked `--cc-profile`; empty for none."""
    if name is None:
        return ""
    if congestion != "dcqcn":
        why = f"is not for {congestion}, which has no profiles" if congestion != "none" else "needs DCQCN"
        wrong(f"--cc-profile {name}", why, "leave --cc-profile out" if congestion != "none" else "add --cc dcqcn")
    return chosen("--cc-profile", name, get_args(CongestionProfile), "is not a profile of dcqcn", wrong)


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
        *([f"recovery: {options.recovery}"] if options.recovery != "go-back-n" else []),
        *([_controlled(options)] if options.congestion != "none" else []),
        *([f"admission: {options.admitted.text()}"] if options.admitted is not None else []),
    )
