"""Faults of links: what a link does to the packets that leave by one of its ports. One table has all kinds.

In:  `link.loss` of a fabric file, `--loss 1/256` of `./inv fault`, or `rtsw1:eth3,loss=1/256` of `./inv run --fault`.
     `rtsw1:eth3,down,from=2s,to=4s,every=5s` too.
Out: LinkFault, or RunFault with its ports and times. InputError with every wrong value.
Which ports a lab has is checked later.
Times are nanoseconds on hardware, one way: here they are multiplied by k. Shares are of packets, from 0 to 1.
A new kind is a field of LinkFault, with its row of the table beside it. Keys and limits of the file, flags, texts,
counters, the row of the map `faults` and netem's parameters follow from it. For the program, one line of
switch/bpf/fault.h is what the kind does; then build the object again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal

from heddle.base.problems import InputError, Problem, did_you_mean, nearest
from heddle.base.units import format_duration, format_share, parse_duration, parse_share
from heddle.spec.faultsettings import ALWAYS, TIMES, Times, read_times

# What `./inv fault` does to links and switches -> their state then. The others are kinds of faults.
OUTAGES: Final[Mapping[str, str]] = {"down": "down", "up": "up", "drain": "drained", "undrain": "in use again"}
LONGEST_NS: Final = 10**6  # of a delay or jitter on hardware: 200 km of fibre
_EXAMPLE: Final = "PORT,loss=1/256"
_TIME_HINT: Final = "write the time on hardware, as 500ns or 10us: Heddle multiplies it by k"
_SHOWN: Final = 40  # letters of a wrong value
DOWN: Final = "down"
DRAIN: Final = "drain"  # a fault of the verb `fault` alone
PACKETS: Final = "packets"  # the kind of all faults in LinkFault; its values stand without this word
_ALIKE: Final = 0.75  # of the letters of a port and of a kind: it is the kind, mistyped


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault. key: in a fabric file, and the flag of `./inv fault`. field: of LinkFault.

    word: in sentences, `1/256 lost` or `delay 10us`; for the program also the name of its counter. netem: its option,
    `{}` for the value; empty: the program does it. reads: where `tc -j` has the value, below `options`.
    """

    key: str
    field: str
    unit: Literal["time", "share"]
    word: str
    help: str
    netem: str = ""
    reads: str = ""

    @property
    def by(self) -> Literal["program", "netem"]:
        """What does it."""
        return "netem" if self.netem else "program"

    def read(self, text: str) -> int | float:
        """The value of a flag; ValueError with the reason, `; ` and a hint."""
        if self.unit == "share":
            return parse_share(text)
        try:
            found = parse_duration(text)
        except ValueError as error:
            raise ValueError(f"{str(error).partition('; ')[0]}; {_TIME_HINT}") from None
        if found > LONGEST_NS:
            raise ValueError(f"is above {format_duration(LONGEST_NS)}; {_TIME_HINT}")
        return found


def _time(help_text: str, **more: str) -> Any:
    return field(default=0, metadata={"unit": "time", "help": help_text, **more})


def _share(word: str, help_text: str, **more: str) -> Any:
    return field(default=0.0, metadata={"unit": "share", "word": word, "help": help_text, **more})


@dataclass(frozen=True, slots=True)
class LinkFault:
    """Faults of one direction of a link.

    jitter_ns: the delay is uniform between delay - jitter and delay + jitter; packets keep their order. reorder: this
    share of packets skips the delay, and so overtakes others. corrupt: one bit of a RoCEv2 packet is inverted.
    """

    delay_ns: int = _time(
        "one way, on hardware; multiplied by k here: 500ns, 10us (netem)", netem="delay {}", reads="delay.delay"
    )
    jitter_ns: int = _time(
        "the delay varies by this time, up and down; packets keep their order: 1us (netem)",
        netem="{}",  # the second word of `delay`
        reads="delay.jitter",
    )
    loss: float = _share("lost", "share of packets that is lost: 1/256, 0.5%")
    corrupt: float = _share("corrupted", "share of RoCEv2 packets in which one bit is inverted: 1/256, 0.5%")
    duplicate: float = _share("duplicated", "share of packets that arrives twice: 1/256, 0.5%")
    reorder: float = _share(
        "reordered",
        "share of packets that skips the delay, and so overtakes others: 1/256, 0.5% (netem)",
        netem="reorder {}",
        reads="reorder.reorder",
    )

    def __bool__(self) -> bool:
        """Whether there is any fault."""
        return self != NO_FAULT

    @property
    def needs_netem(self) -> bool:
        """Whether only the kernel's netem can do it: a packet must wait on the link."""
        return any(getattr(self, kind.field) for kind in NETEM_KINDS)

    def complaint(self) -> tuple[str, str, str]:
        """(key, why, hint) of values that do not fit together; empty texts when they do."""
        if self.reorder and not self.delay_ns:
            return "reorder", "needs a delay: packets that skip it overtake the others", "set a delay, such as 10us"
        if self.jitter_ns > self.delay_ns:
            delay = format_duration(self.delay_ns) if self.delay_ns else "0"
            return "jitter", f"is above the delay, {delay}", "set a delay of at least the jitter"
        return "", "", ""

    def text(self, k: int) -> str:
        """`1/256 lost, delay 10us (40ms here)`. k: of the fabric."""
        found = [(kind, getattr(self, kind.field)) for kind in KINDS.values()]
        shares = [f"{format_share(value)} {kind.word}" for kind, value in found if kind.unit == "share" and value]
        times = [
            f"{kind.word} {format_duration(ns)} ({format_duration(ns * k)} here)"
            for kind, ns in found
            if kind.unit == "time" and ns
        ]
        return ", ".join([*shares, *times]) or "none"

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LinkFault:
        known = {each.name for each in fields(cls)}
        if not set(data) <= known or not all(isinstance(value, int | float) for value in data.values()):
            raise ValueError("is not a link fault")
        return cls(**data)


def _kinds() -> dict[str, FaultKind]:
    """Key -> kind, in the order of LinkFault's fields."""
    found = {}
    for each in fields(LinkFault):
        key = each.name.removesuffix("_ns")
        found[key] = FaultKind(**{"key": key, "field": each.name, "word": key, **each.metadata})
    return found


KINDS: Final[Mapping[str, FaultKind]] = _kinds()
PROGRAM_KINDS: Final = tuple(kind for kind in KINDS.values() if kind.by == "program")
NETEM_KINDS: Final = tuple(kind for kind in KINDS.values() if kind.by == "netem")
NO_FAULT: Final = LinkFault()
# What a port with a fault counts, in packets. packets: all that left its queue. delayed: sent into the delay line;
# waiting: in it now.
COUNTED: Final = ("packets", *(kind.word for kind in PROGRAM_KINDS), "delayed")
COUNTS: Final = (*COUNTED, "waiting")


@dataclass(frozen=True, slots=True)
class RunFault:
    """A fault for one run. places: names and patterns, as typed. kind: its name. values: texts by key."""

    places: tuple[str, ...]
    kind: str
    values: Mapping[str, str] = field(default_factory=dict)
    times: Times = ALWAYS


def read_fault(given: Mapping[str, str], clear: str, named: Callable[[str, str], tuple[str, str]]) -> LinkFault:
    """The fault with these values. clear: the hint where every value is 0.

    named: key and value -> where and what of a Problem, as the user wrote them.
    """
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for key, text in given.items():
        try:
            values[KINDS[key].field] = KINDS[key].read(text)
        except ValueError as error:
            why, _, hint = str(error).partition("; ")
            problems.append(Problem(*named(key, text[:_SHOWN]), why, hint))
    if problems:
        raise InputError(*problems)
    fault = LinkFault(**values)
    key, why, hint = fault.complaint()
    if why:
        raise InputError(Problem(*named(key, given[key]), why, hint))
    if not fault:
        where, _ = named(*next(iter(given.items())))
        raise InputError(Problem("", where or "fault", "sets nothing: every value is 0", clear))
    return fault


def parse_run_fault(text: str, kinds: Mapping[str, Collection[str]]) -> RunFault:
    """`PORT[,PORT...],KEY=VALUE[,KEY=VALUE...]`, or with the word of a kind, and times; InputError with the reason.

    kinds: words of kinds, each with the keys of its values.
    """
    where = f"--fault {text}"
    words = [word.strip() for word in text.split(",") if word.strip()]
    named = [*dict.fromkeys(word for word in words if word in kinds and word != DRAIN)]
    kind = named[0] if named else PACKETS
    places = tuple(word for word in words if "=" not in word and word not in kinds)
    own = [*KINDS] if kind in (PACKETS, DOWN) else [*kinds[kind]]
    given: dict[str, str] = {}
    problems: list[Problem] = []
    for key, _, value in (word.partition("=") for word in words if "=" in word):
        if key not in own and key not in TIMES:
            near = did_you_mean(key, [*own, *TIMES])
            why = "is not a fault of a link" if kind in (PACKETS, DOWN) else f"is not for {kind}"
            if not named and (others := [name for name, keys in kinds.items() if key in keys]):
                why, near = "is a value of a kind of fault", f"name the kind, too: {', '.join(others)}"
            problems.append(Problem(where, key or "=", why, near))
        elif key in given:
            problems.append(Problem(where, key, "has two values", "write each of them once"))
        given[key] = value
    if not words:
        raise InputError(Problem("", "--fault", "has an empty value", f"write --fault {_EXAMPLE}"))
    if DRAIN in words:
        hint = "run ./inv fault drain SWITCH before the run, and ./inv fault undrain SWITCH after it"
        problems.append(Problem(where, DRAIN, "is no fault of a run", hint))
    if not places:
        problems.append(Problem("", where, "names no port", f"write --fault {_EXAMPLE}"))
    values = {key: value for key, value in given.items() if key in own}
    apart = "use two --fault, each with its times"
    if len(named) > 1:
        problems.append(Problem(where, " and ".join(named), "exclude each other", apart))
    # A mistyped kind looks like a port, and its values like mistakes.
    doubtful = places if not named and (problems or not values) else ()
    problems = _mistyped(where, doubtful, [*kinds]) or problems
    if not values and not named and not problems:
        problems.append(Problem("", where, "sets no fault", f"write --fault {_EXAMPLE}"))
    if values and named == [DOWN]:
        why = "exclude each other: no packet passes a link that is down"
        problems.append(Problem(where, f"{DOWN} and {next(iter(values))}", why, apart))
    if problems:
        raise InputError(*problems)
    times = read_times({key: given[key] for key in TIMES if key in given}, where)
    if not named:
        read_fault(values, "leave it out", lambda key, value: (where, f"{key}={value}"))  # only for its errors
    return RunFault(places, kind, values, times)


def _mistyped(where: str, ports: Sequence[str], legal: Sequence[str]) -> list[Problem]:
    """A Problem for the first word among ports that is almost a kind."""
    near = [each for each in ports if nearest(each, legal, _ALIKE)]
    return [Problem(where, each, "is not a kind of fault", did_you_mean(each, legal)) for each in near[:1]]


def parse_run_faults(texts: Sequence[str], kinds: Mapping[str, Collection[str]]) -> tuple[RunFault, ...]:
    """All of a run; InputError with every error. kinds: as of parse_run_fault."""
    found: list[RunFault] = []
    problems: list[Problem] = []
    for text in texts:
        try:
            found.append(parse_run_fault(text, kinds))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*problems)
    return tuple(found)
