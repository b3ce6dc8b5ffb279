"""Receiver-driven admission, as NCCL does it: the parameters of one run, and the times that senders waited.

In:  `run --admission`, `--cts-class`, `--admission-set` and `--slow`, as the user typed them.
Out: Admission, or None; shares of slow hosts. InputError with every wrong parameter.

A receiver has `channels`, each with a buffer of `buffsize` bytes that is cut into `steps` slots. It grants a message to
its sender with a CTS (clear to send) when a slot is free, and a message is at most a slot. So the data in flight to a
receiver never exceeds channels x buffsize.

NCCL's defaults are NCCL_BUFFSIZE 4 MiB and NCCL_STEPS 8. They are of the connections of rings and trees. NCCL's
operations between two ranks, of which all-to-all and gather consist, share a buffer of 16 chunks for each channel
(NCCL_SHARED_STEPS in src/transport/net.cc, NCCL_P2P_NET_CHUNKSIZE). Here every collective has the first form. The
default buffer is 48 KiB: switches of the presets have 1 MB of packet buffer and pause a port from 60 KB on, and the
budget should be below that.

Waits for a CTS are kept in bounded memory: a count per bucket of a logarithmic scale. A bucket is 1/20 of a decade
wide, so a percentile is at most 12 % above the exact value. The counts of several senders can be added.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

from heddle.base.declared import Declared, Wrong, on_off
from heddle.base.problems import InputError, Problem, Problems
from heddle.base.units import format_size, parse_size
from heddle.traffic.tunables import SETTING, Tunable, pairs, settings_from, values_of

CtsClass = Literal["control", "data"]
_GROUP: Final = "Congestion"
_LEAST_SLOT: Final = 4096  # bytes: the least --chunk
_SLOT_ALIGN: Final = 128

ADMISSION_TUNABLES: Final = (
    Tunable("channels", 1, 1, 64, "", "channels of a receiver, each with its own buffer"),
    Tunable("buffsize", 49152, _LEAST_SLOT, 1 << 26, "bytes", "buffer of a channel (NCCL_BUFFSIZE, there 4194304)"),
    Tunable("steps", 8, 1, 64, "", "slots of a buffer: one message each (NCCL_STEPS)"),
    Tunable("cts_timeout", 0, 0, 3600, "s", "longest wait of a sender for any CTS; 0: by the length of the run"),
)

NOT_PREDICTED: Final = (
    "with admission, switches count ACKs of CTS packets with the data of the same queue pair: at most one for each"
    " message, which is not part of these figures"
)

_NAMES: Final = tuple(each.name for each in ADMISSION_TUNABLES)


@dataclass(frozen=True, slots=True)
class Admission:
    """Admission of one run. buffsize in bytes. cts_class: the traffic class of CTS packets.

    cts_timeout_s: a sender fails when no CTS arrives for so long; 0: chosen by the plan. compiled: the compiled loop
    has it.
    """

    compiled: ClassVar[bool] = False
    channels: int
    buffsize: int
    steps: int
    cts_timeout_s: float
    cts_class: CtsClass

    @property
    def values(self) -> dict[str, float]:
        """All parameters, by the names of ADMISSION_TUNABLES."""
        return dict(zip(_NAMES, (self.channels, self.buffsize, self.steps, self.cts_timeout_s), strict=True))

    @property
    def slot_bytes(self) -> int:
        """The longest message."""
        return self.buffsize // self.steps

    @property
    def slots(self) -> int:
        """Messages that may be in flight to a receiver."""
        return self.channels * self.steps

    @property
    def budget_bytes(self) -> int:
        """The most data that may be in flight to a receiver."""
        return self.channels * self.buffsize

    def text(self) -> str:
        """`1 channel x 48 KiB = 48 KiB in flight to a receiver, 8 slots of 6 KiB`."""
        channels = f"{self.channels} channel{'' if self.channels == 1 else 's'} x {format_size(self.buffsize)}"
        slots = f"{self.slots} slot{'' if self.slots == 1 else 's'} of {format_size(self.slot_bytes)}"
        return f"{channels} = {format_size(self.budget_bytes)} in flight to a receiver, {slots}"


def _admission_set(given: Sequence[str], wrong: Wrong) -> tuple[tuple[str, float], ...]:
    return settings_from("--admission-set", given, _number, "buffsize=64K", wrong)


def _number(text: str) -> float:
    """A number, or a size as `64K`; ValueError for other texts."""
    try:
        return float(text)
    except ValueError:
        return float(parse_size(text))


def _slow(given: Sequence[str], wrong: Wrong) -> tuple[tuple[str, float], ...]:
    """(host, share of its NIC's rate) of each `HOST=PERCENT%`; the last one of a host counts. A plan checks the hosts.

    wrong: takes what, why and hint of an error.
    """
    found: dict[str, float] = {}
    for text in given:
        match = re.fullmatch(r"([^=]+)=([0-9]+(?:\.[0-9]+)?)%?", text)
        percent = float(match[2]) if match is not None else 0.0
        if match is None:
            wrong(f"--slow {text}", "is not HOST=PERCENT", "write --slow host3=25%")
        elif not 1 <= percent <= 100:
            wrong(f"--slow {text}", "is outside 1% to 100% of the rate of its NIC", "write --slow host3=25%")
        else:
            found[match[1]] = percent / 100
    return tuple(found.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionOptions:
    """What users choose of admission and of slow hosts."""

    admission: Annotated[bool, Declared(
        "receivers grant each message with a CTS when a buffer slot is free, as NCCL: on or off", _GROUP,
        words=("on", "off"), closed=True, reads=on_off, typed="off", writes=lambda on: ["on" if on else "off"],
    )] = False  # fmt: skip
    cts_class: Annotated[CtsClass, Declared(
        "traffic class of CTS packets: control or data", _GROUP, unlike="is not control or data",
    )] = "control"  # fmt: skip
    # Its parameters that the user set.
    admission_set: Annotated[tuple[tuple[str, float], ...], Declared(
        "parameter of admission: channels, buffsize, steps, cts_timeout; can be repeated", _GROUP,
        value=SETTING, words=[f"{each.name}=" for each in ADMISSION_TUNABLES], gathers=_admission_set, writes=pairs,
    )] = ()  # fmt: skip
    # Hosts that process data at this share of their NIC's rate.
    slow: Annotated[tuple[tuple[str, float], ...], Declared(
        "its ranks process data at this share of their NIC's rate; can be repeated", "Faults", value="HOST=PERCENT",
        gathers=_slow, writes=lambda slow: [f"{host}={100 * share:.10g}%" for host, share in slow],
    )] = ()  # fmt: skip

    @property
    def admitted(self) -> Admission | None:
        """Admission with all its parameters; None when it is off. InputError with every wrong parameter."""
        if not self.admission:
            return None
        values = values_of("admission", ADMISSION_TUNABLES, self.admission_set, flag="--admission-set")
        *whole, timeout_s = (values[name] for name in _NAMES)
        channels, buffsize, steps = map(int, whole)
        made = Admission(channels, buffsize, steps, timeout_s, self.cts_class)
        if made.slot_bytes < _LEAST_SLOT or made.buffsize % (made.steps * _SLOT_ALIGN):
            what = f"--admission-set buffsize={made.buffsize} steps={made.steps}"
            why = f"gives slots of {made.buffsize / made.steps:g} bytes, not a multiple of {_SLOT_ALIGN} from 4096 on"
            raise InputError(Problem("", what, why, f"use a buffsize of {made.steps} x 8192 = {made.steps * 8192}"))
        return made

    def check_admission(self, problems: Problems) -> None:
        """Report options of admission that do not fit each other."""
        hint = "add --admission on"
        if not self.admission and self.admission_set:
            problems.add(where="", what="--admission-set", why="needs admission", hint=hint)
        if not self.admission and self.cts_class == "data":
            problems.add(where="", what="--cts-class data", why="needs admission", hint=hint)
        try:
            _ = self.admitted
        except InputError as error:
            problems.found += error.problems


WaitCounts = tuple[tuple[int, int], ...]  # (bucket, messages), ascending
_NO_WAIT: Final = 0
_LEAST_S: Final = 1e-6  # shorter waits count as this one
_PER_DECADE: Final = 20


def bucket_of(seconds: float) -> int:
    """The bucket of a wait; 0 if there was none."""
    if seconds <= 0:
        return _NO_WAIT
    return 1 + max(0, math.ceil(_PER_DECADE * math.log10(seconds / _LEAST_S) - 1e-9))


def end_of(bucket: int) -> float:
    """The longest wait of a bucket, seconds."""
    return 0.0 if bucket == _NO_WAIT else _LEAST_S * math.pow(10, (bucket - 1) / _PER_DECADE)


class WaitRecord:
    """The waits of one sender."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        """One message has waited for so long; 0: its CTS was there before it."""
        self._counts[bucket_of(seconds)] += 1

    def counts(self) -> WaitCounts:
        """All waits so far."""
        return tuple(sorted(self._counts.items()))


def merged(parts: Iterable[WaitCounts]) -> WaitCounts:
    """The sum of the waits of several senders."""
    total: Counter[int] = Counter()
    for part in parts:
        for bucket, count in part:
            total[bucket] += count
    return tuple(sorted(total.items()))


def percentile(counts: WaitCounts, share: float) -> float:
    """Seconds: at least this share of the messages waited no longer; 0 for no messages. share: 0 to 1."""
    rank, below = share * sum(count for _, count in counts), 0
    for bucket, count in counts:
        below += count
        if below >= rank:
            return end_of(bucket)
    return 0.0
