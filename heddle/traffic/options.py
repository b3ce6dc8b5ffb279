"""The options of a run: checked values, no packets yet.

In:  the arguments of `./inv run`, as typed (or keyword arguments from a test).
Out: RunOptions, frozen. InputError with all errors in them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeVar

from heddle.base.declared import OUTPUT, Declared, options_of
from heddle.base.problems import Problems, did_you_mean
from heddle.base.units import parse_duration
from heddle.fabric.wiring import BACKEND
from heddle.traffic import readers
from heddle.traffic.admission import AdmissionOptions
from heddle.traffic.collectives import Pattern, file_options, find_pattern, patterns, usual_algorithm
from heddle.traffic.collectives.pattern import MAX_RANKS, InPlace
from heddle.traffic.communicators import AUTO, parse_split
from heddle.traffic.sequence import PartSequence
from heddle.traffic.tunables import pairs
from heddle.wire.layout import DSCP_DATA, ECT0

Kind = TypeVar("Kind")
QpMode = Literal["split", "round-robin"]
FastPath = Literal["auto", "on", "off"]
MAX_QPS: Final = 128  # NCCL's limit for a connection
TIMEOUTS: Final = (8, 31)  # exponents: 8 is 1 ms, the resolution of NICs' timers; 31 is IBTA's largest
TRANSPORT: Final = "rc"  # the default
NO_CONTROL: Final = "none"

_WHAT, _SIZES, _PLACES = "What runs", "Sizes", "Placement"
_TRANSPORT, _CONGESTION, _FAULTS = "Transport", "Congestion", "Faults"
_BY_NUMBERS: Final = readers.SourcePorts()


def _collectives(_: object) -> Sequence[str]:
    return list(dict.fromkeys(collective for collective, _ in patterns(of_files=True)))


def _algorithms(typed: Any) -> Sequence[str]:
    """Of the typed collective; for `--help` of all collectives."""
    wanted = typed.value_of("--collective") or "all-reduce"
    return list(
        dict.fromkeys(each for collective, each in patterns(of_files=True) if typed.in_help or collective == wanted)
    )


def as_tuples(value: Any) -> Any:
    """Tuples instead of the lists that JSON has."""
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class RunOptions(AdmissionOptions):
    """One collective, with the options of nccl-tests. Sizes and `chunk` in bytes.

    Each field with a Declared is an option: the flags of `run`, their help and completion, the arguments of tests and
    of assistants are made from it (base/declared.py). Admission has its options in a file of its own.
    """

    collective: Annotated[str, Declared(
        "the collective", _WHAT, words=_collectives, listed="one of", value="NAME",
    )] = "all-reduce"  # fmt: skip
    # Empty: the collective's default.
    algorithm: Annotated[str, Declared(
        "the algorithm (default: the collective's first)", _WHAT, words=_algorithms, listed="one of", value="NAME",
    )] = ""  # fmt: skip
    # Default: every NIC of the fabric.
    ranks: Annotated[int | None, Declared(
        "number of ranks (default: one per NIC)", _PLACES, value="N", least=2,
        hint="leave it out for one rank per NIC",
    )] = None  # fmt: skip
    sizes: Annotated[tuple[int, ...], Declared(
        "bytes per rank: 8, 64K, or 64K:16M:x2; rounded down as in nccl-tests", _SIZES, word="size", value="SIZE",
        reads=readers.parse_sizes, typed="1M",
    )] = (1 << 20,)  # fmt: skip
    iters: Annotated[int, Declared(
        "measured iterations", _WHAT, value="N", short="-n", least=1, most=10_000, hint="the default is 5",
    )] = 5  # fmt: skip
    warmup: Annotated[int, Declared(
        "iterations before the measurement", _WHAT, value="N", short="-w", least=0, most=1_000,
        hint="the default is 1",
    )] = 1  # fmt: skip
    in_place: Annotated[InPlace, Declared(
        "whether the result replaces the input: on, off, both one after the other, or auto (as the algorithm works)",
        _WHAT, value="WHERE", unlike="is not one of auto, off, on and both",
    )] = "auto"  # fmt: skip
    # As nccl-tests numbers them.
    average: Annotated[int, Declared(
        "whose time is printed: 0 rank 0, 1 the mean over ranks, 2 the fastest rank, 3 the slowest", _WHAT, value="N",
        short="-a", assistants=False, least=0, most=3, hint="the default is 1, the mean",
    )] = 1  # fmt: skip
    qps: Annotated[int, Declared(
        "queue pairs per connection, 1 to 128", _TRANSPORT, value="N", least=1, most=MAX_QPS,
        hint="the default is 1; NCCL's limit for a connection is 128",
    )] = 1  # fmt: skip
    qp_mode: Annotated[QpMode, Declared(
        "split (each message over all QPs) or round-robin (one message per QP in turn)", _TRANSPORT, value="MODE",
        unlike="is not a mode of QPs",
    )] = "split"  # fmt: skip
    # See placement.py.
    placement: Annotated[str, Declared(
        "block, cyclic, interleaved, random[:SEED], fragmented:RACKS:HOSTS[:SEED], hosts or NICs with commas, or a "
        "file with a line for each rank", _PLACES, value="ORDER",
    )] = "block"  # fmt: skip
    source_ports: Annotated[readers.SourcePorts, Declared(
        "UDP source ports: qpn (both QP numbers), own-qpn, rxe, fixed[:PORT], list:A,B,C", _TRANSPORT, word="sport",
        reads=readers.parse_source_ports, typed="qpn", writes=lambda ports: [ports.text],
        words=("qpn", "own-qpn", "rxe", "fixed", "fixed:", "list:"),
    )] = _BY_NUMBERS  # fmt: skip
    network: Annotated[Literal["backend", "frontend"], Declared(
        "network whose ports have the ranks: backend, or the fabric file's frontend, which carries tcp", _PLACES,
        value="NAME", unlike="is not a network",
    )] = BACKEND  # fmt: skip
    # None only until __post_init__: so the default of a transport is known from a typed value.
    dscp: Annotated[int, Declared(
        "DSCP of the data, which queues.dscp maps to a class; left out: 24, and 0 with tcp", _TRANSPORT, value="N",
        least=0, most=63, hint="the default is 24",
    )] = None  # type: ignore[assignment]  # fmt: skip
    # One message; NCCL's P2P net chunk.
    chunk: Annotated[int, Declared("bytes per message", _SIZES, reads=readers.parse_chunk, typed="128K")] = 1 << 17
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
        assistants=False, least=TIMEOUTS[0], most=TIMEOUTS[1],
        hint="leave it out for a timeout that follows rates, queues and pauses",
    )] = None  # fmt: skip
    retries: int = 7
    # Of the queues' record over time.
    bucket_ns: Annotated[int, Declared(
        "time between two samples of the queues, for plot: 1ms to 100ms", OUTPUT, word="bucket", assistants=False,
        reads=readers.parse_bucket, typed="10ms", writes=lambda ns: [f"{ns / 1e6:g}ms"],
    )] = 10_000_000  # fmt: skip
    transport: Annotated[str, Declared(
        "protocol (rc: InfiniBand's reliable connection)", _TRANSPORT, listed="one of", value="NAME",
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
    nvlink: Annotated[int | None, Declared(
        "Gb/s on hardware of a rank's copies inside its host; 0: they use their NICs. "
        "Left out, it is 3600 where the algorithm needs copies, else 0", _PLACES,
        word="nvlink_rate", value="GBPS", least=0, most=100_000,
        hint="3600 is a GPU of the Hopper generation, 450 GB/s in each direction",
    )] = None  # fmt: skip
    # Default: posting a message takes no time.
    posting: Annotated[Posting | None, Declared(
        "threads that post messages to the NICs of a host, as 8,pinned,sharded,batch,lazy (default: at no cost)",
        _TRANSPORT, value="THREADS", reads=parse_posting, typed="", words=POSTING_WORDS,
        writes=lambda posting: [posting.text] if posting is not None else [],
    )] = None  # fmt: skip
    congestion: Annotated[str, Declared("congestion control", _CONGESTION, word="cc", value="NAME")] = NO_CONTROL
    # Of links for this run, as typed: `rtsw1:eth3,loss=1/256`.
    faults: Annotated[tuple[str, ...], Declared(
        "fault of a link for this run, as PORT,loss=1/256 or PORT,down,from=2s,to=4s,every=5s; "
        "kinds as in fault; can be repeated", _FAULTS, word="fault", value="FAULT", assistants=False,
        gathers=readers.check_faults, writes=list,
    )] = ()  # fmt: skip

    own: Mapping[str, Any] = field(default_factory=dict)  # of its transport and congestion control, if not the default
    parameters: tuple[tuple[str, str | int], ...] = ()  # of the collective, those that the user set
    steps: str = ""  # instead of a collective: parts of an iteration, as text (sequence.py)

    def of(self, kind: type[Kind]) -> Kind:
        """The options that a transport or a congestion control declares, as its own dataclass."""
        names = {each.name for each in options_of(kind)}
        return kind(**{name: value for name, value in self.own.items() if name in names})

    @property
    def pattern(self) -> Pattern:
        """The collective with its parameters, or the parts; InputError for wrong ones."""
        if self.steps:
            return PartSequence(steps=self.steps, **dict(self.parameters))  # type: ignore[arg-type]
        return find_pattern(self.collective, self.algorithm, **dict(self.parameters))

    @property
    def tos(self) -> int:
        """The traffic class of the data: DSCP and ECT(0)."""
        return self.dscp << 2 | ECT0

    def inside_gbps(self, pattern: Pattern) -> int:
        """Gb/s on hardware between ranks of one host; 0: they use their NICs."""
        return pattern.inside_gbps if self.nvlink is None else self.nvlink

    def passes(self, pattern: Pattern) -> tuple[tuple[int, bool], ...]:
        """All measurements, in their order: bytes, and whether they are in place."""
        return tuple((size, placed) for size in self.sizes for placed in pattern.placed(self.in_place))

    def check_live(self, problems: Problems) -> None:
        """Report what a run cannot do, but a prediction can."""
        if self.ranks is not None and self.ranks > MAX_RANKS:
            why, hint = f"is outside 2 to {MAX_RANKS}", "leave it out for one rank per NIC"
            problems.add(where="", what=f"--ranks {self.ranks}", why=why, hint=hint)
        if (size := next((each for each in self.sizes if each > readers.MAX_SIZE), None)) is not None:
            why = (
                f"has {size} bytes, which is outside {readers.ELEMENT_BYTES} (one float32) to {readers.MAX_SIZE} (256M)"
            )
            problems.add(where="", what=f"--size {size}", why=why)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dscp", DSCP_DATA if self.dscp is None else self.dscp)
        object.__setattr__(self, "algorithm", self.algorithm or usual_algorithm(self.collective))
        object.__setattr__(self, "own", {name: as_tuples(value) for name, value in self.own.items()})


def _own_text(name: str, value: Any) -> str:
    text = ", ".join(pairs(value)) if isinstance(value, tuple) else value
    return f"{name.replace('_', ' ')}: {text}"


def describe(options: RunOptions) -> Sequence[str]:
    """The options as `key: value` strings for a header line."""
    return (
        f"collective: {options.collective}",
        f"algorithm: {options.algorithm}",
        *(f"file: {of.name(str(value))}" for key, value in options.parameters if (of := file_options().get(key))),
        *([f"channels: {many}"] if (many := dict(options.parameters).get("channels", 1)) != 1 else []),
        *([f"inside hosts: {gbps} Gb/s"] if (gbps := options.inside_gbps(options.pattern)) else []),
        f"QPs: {options.qps} ({options.qp_mode})",
        f"source ports: {options.source_ports.mode}",
        *([f"DSCP: {options.dscp}"] if options.dscp != DSCP_DATA else []),
        f"placement: {options.placement}",
        *([f"network: {options.network}"] if options.network != BACKEND else []),
        f"transport: {options.transport}",
        *([f"posting: {options.posting.text}"] if options.posting is not None else []),
        *([f"congestion control: {options.congestion}"] if options.congestion != NO_CONTROL else []),
        *(_own_text(name, value) for name, value in options.own.items()),
        *([f"admission: {options.admitted.text()}"] if options.admitted is not None else []),
    )


BATCH: Final = 16
OTHERS: Final = 0.0775  # of the cost of one thread, for each other thread
SHARED: Final = 1.2301
UNPINNED: Final = 3.4836
LAZY: Final = 0.825  # of post_ns: posting makes no progress, which is left to the poll loop
_MOST_THREADS: Final = 1024
_MOST_NS: Final = 10**9


@dataclass(frozen=True, slots=True)
class Posting:
    """What it costs the processors of a host to give messages to its NICs: the model of `run --posting`.

    A host has posting threads, and each serves an equal share of its NICs, one NIC after the other. In a turn at a NIC
    a thread posts up to `batch` messages. A turn has a cost of its own (it polls for completions), and so has each
    message. Other threads make both dearer: they share memory and the driver. Threads that share the state of the
    transfer, or that are not pinned to a processor near their NICs, do so far more.
    post_ns, turn_ns: of one thread alone, on hardware: a message, and a turn.

    The numbers are fitted to the rates that "Harnessing 3200 Gbps Network" (Lequn Chen, 2024) publishes for two AWS p5
    hosts with 32 EFA NICs of 100 Gb/s and writes of 64 KiB, in Gb/s: one thread 293.461 (post_ns + turn_ns, 1,786 ns),
    8 threads 355.301 (UNPINNED), pinned 1,237.738 (SHARED), sharded 1,522.567 (OTHERS), batch 2,589.488 (the shares of
    post_ns and turn_ns), lazy 3,108.283 (LAZY; near the rate of the NICs, so the cost may be lower).
    """

    threads: int
    pinned: bool = False
    sharded: bool = False
    lazy: bool = False
    batch: int = 1
    post_ns: float = 1001.0
    turn_ns: float = 785.0

    @property
    def text(self) -> str:
        """As typed."""
        words = [str(self.threads), *(word for word in _FLAGS if getattr(self, word))]
        usual = Posting(self.threads)
        words += [f"batch={self.batch}"] * (self.batch != usual.batch)
        words += [
            f"{word}={getattr(self, key):g}ns"
            for word, key in _TIMES.items()
            if getattr(self, key) != getattr(usual, key)
        ]
        return ",".join(words)

    def costs_ns(self, nics: int) -> tuple[float, float]:
        """Of a message and of a turn, as one of the NICs of a host sees them while all of them are busy."""
        factor = -(-nics // self.threads) * (1 + OTHERS * (self.threads - 1))
        if self.threads > 1:
            factor *= (1 if self.sharded else SHARED) * (1 if self.pinned else UNPINNED)
        return factor * self.post_ns * (LAZY if self.lazy else 1), factor * self.turn_ns


_FLAGS: Final = ("pinned", "sharded", "lazy")
_TIMES: Final = {"post": "post_ns", "turn": "turn_ns"}
POSTING_WORDS: Final = (
    "1",
    "8",
    "8,pinned",
    "8,pinned,sharded",
    "8,pinned,sharded,batch",
    "8,pinned,sharded,batch,lazy",
)


def parse_posting(text: str) -> Posting:
    """`8,pinned,sharded,batch=16,lazy,post=1us,turn=785ns`; ValueError with the reason."""
    first, *words = text.split(",")
    if not re.fullmatch("[0-9]{1,6}", first) or not 1 <= int(first) <= _MOST_THREADS:
        raise ValueError(f"does not begin with a number of threads from 1 to {_MOST_THREADS}; write 8,pinned,sharded")
    values: dict[str, bool | int | float] = {}
    for word in words:
        name, _, number = word.partition("=")
        if name in _FLAGS and not number:
            values[name] = True
        elif name == "batch" and (number or str(BATCH)).isdecimal() and 1 <= int(number or BATCH) <= _MOST_THREADS:
            values[name] = int(number or BATCH)
        elif name in _TIMES and number:
            found = parse_duration(number)
            if not 1 <= found <= _MOST_NS:
                raise ValueError(f"has {number}, which is not a time from 1ns to 1s; write it as 800ns")
            values[_TIMES[name]] = float(found)
        else:
            legal = [*_FLAGS, "batch", *(f"{each}=" for each in _TIMES)]
            raise ValueError(f"has {word or 'an empty word'}, which is no part of it; {did_you_mean(name, legal)}")
    return Posting(int(first), **values)  # type: ignore[arg-type]
