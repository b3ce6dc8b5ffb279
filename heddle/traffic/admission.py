"""Receiver-driven admission, as NCCL does it: the parameters of one run. No packets yet.

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
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from heddle.base.declared import Wrong
from heddle.base.problems import InputError, Problem
from heddle.base.units import format_size, parse_size
from heddle.traffic.tunables import Tunable, settings_from, values_of

CtsClass = Literal["control", "data"]
_LEAST_SLOT: Final = 4096  # bytes: the least --chunk
_SLOT_ALIGN: Final = 128
CTS_TIMEOUT: Final = "cts_timeout"

ADMISSION_TUNABLES: Final = (
    Tunable("channels", 1, 1, 64, "", "channels of a receiver, each with its own buffer"),
    Tunable("buffsize", 49152, _LEAST_SLOT, 1 << 26, "bytes", "buffer of a channel (NCCL_BUFFSIZE, there 4194304)"),
    Tunable("steps", 8, 1, 64, "", "slots of a buffer: one message each (NCCL_STEPS)"),
    Tunable(CTS_TIMEOUT, 0, 0, 3600, "s", "longest wait of a sender for any CTS; 0: by the length of the run"),
)


@dataclass(frozen=True, slots=True)
class Admission:
    """Admission of one run. buffsize in bytes. cts_class: the traffic class of CTS packets.

    cts_timeout_s: a sender fails when no CTS arrives for so long; 0: chosen by the plan.
    """

    channels: int
    buffsize: int
    steps: int
    cts_timeout_s: float
    cts_class: CtsClass

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


def admission_from(given: Sequence[tuple[str, float]], cts_class: CtsClass) -> Admission:
    """From the parameters that were set; InputError with range and default of every wrong one."""
    values = values_of("admission", ADMISSION_TUNABLES, given, flag="--admission-set")
    made = Admission(
        int(values["channels"]), int(values["buffsize"]), int(values["steps"]), values[CTS_TIMEOUT], cts_class
    )
    if made.slot_bytes < _LEAST_SLOT or made.buffsize % (made.steps * _SLOT_ALIGN):
        what = f"--admission-set buffsize={made.buffsize} steps={made.steps}"
        why = f"gives slots of {made.buffsize / made.steps:g} bytes, not a multiple of {_SLOT_ALIGN} from 4096 on"
        raise InputError(Problem("", what, why, f"use a buffsize of {made.steps} x 8192 = {made.steps * 8192}"))
    return made


def check_admission(on: bool, cts_class: CtsClass, given: Sequence[tuple[str, float]], wrong: Wrong) -> None:
    """Report options of admission that do not fit each other."""
    if not on and given:
        wrong("--admission-set", "needs admission", "add --admission on")
    if not on and cts_class == "data":
        wrong("--cts-class data", "needs admission", "add --admission on")
    if on:
        try:
            admission_from(given, cts_class)
        except InputError as error:
            for each in error.problems:
                wrong(each.what, each.why, each.hint)


def read_admission_set(given: Sequence[str], wrong: Wrong) -> tuple[tuple[str, float], ...]:
    """The `NAME=NUMBER` texts as pairs; the last value counts."""
    return settings_from("--admission-set", given, _number, "buffsize=64K", wrong)


def _number(text: str) -> float:
    """A number, or a size as `64K`; ValueError for other texts."""
    try:
        return float(text)
    except ValueError:
        return float(parse_size(text))


def parse_slow(given: Sequence[str], wrong: Wrong) -> tuple[tuple[str, float], ...]:
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
